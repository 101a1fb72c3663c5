// The World view: what the recorded process holds at its peak, and what it sends.

import { make_measure } from "../charts/charts.js";
import { draw, fill, format_bytes, format_share, make } from "../dom.js";
import { add_up_lives, read_lives } from "../memory/lives.js";
import { KINDS, Timeline } from "../memory/timeline.js";
import { is_op_selected } from "../tables/operators.js";
import { describe_ranks, describe_sent, find_nearest, group_sent, list_ranks, name_line, read_sent } from "./sent.js";

/** @typedef {import("./sent.js").Sent} Sent @typedef {import("./sent.js").SentGroup} SentGroup */

const STRIP_HEIGHT = 130; // pixels
const MOST_RANKS = 256; // of a mesh that is drawn
const [WITHIN, ACROSS, LANE_HEIGHT] = [7, 14, 17]; // heights of a tick, within a node and across nodes, and of a lane

/**
 * Shows the collectives as ticks, each kind in a lane of its own: an all-reduce follows a reduce-scatter
 * within a pixel. Owns the one that is pointed at.
 */
class Ticks {
  at = 0;
  width = 0;
  band = draw("path", { class: "mm-band" });
  cursor = draw("path", { class: "mm-cursor" });
  output = make("output");

  /** @param {import("../data.js").TraceView} trace @param {Sent[]} sent @param {(op: number) => void} select */
  constructor(trace, sent, select) {
    this.trace = trace;
    this.sent = sent;
    this.select = select;
    this.kinds = group_sent(sent, ({ kind }) => kind);
    this.height = this.kinds.length * LANE_HEIGHT;
    this.svg = draw("svg", {
      role: "slider", tabindex: 0, height: this.height, "aria-label": "Collective",
      "aria-valuemin": 0, "aria-valuemax": sent.length - 1,
      onpointermove: ({ offsetX }) => this.point(find_nearest(sent, offsetX * trace.n_ops / this.width - 0.5)),
      onclick: () => select(sent[this.at].op), onkeydown: (event) => this.press(event),
    });
    this.point(0);
  }

  x = (/** @type {number} */ op) => (op + 0.5) * this.width / this.trace.n_ops;

  /** @param {number} width */
  resize(width) {
    this.width = width;
    const ticks = this.kinds.map(({ name, all }, lane) => draw("path", {
      class: `mm-sent-${name}`,
      d: all.map(({ op, n_nodes }) => `M${this.x(op).toFixed(1)} ${lane * LANE_HEIGHT}v${n_nodes > 1 ? ACROSS : WITHIN}`).join(""),
    }));
    this.svg.replaceChildren(this.band, ...ticks, this.cursor);
    this.point(this.at);
  }

  /** Point at a collective. @param {number} at */
  point(at) {
    this.at = Math.max(0, Math.min(this.sent.length - 1, at));
    const words = describe_sent(this.trace, this.sent[this.at]);
    this.output.textContent = words;
    fill(this.svg, { "aria-valuenow": this.at, "aria-valuetext": words });
    this.cursor.setAttribute("d", `M${this.x(this.sent[this.at].op)} 0V${this.height}`);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { length } = this.sent;
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -length, End: length }[event.key];
    if (step) this.point(this.at + step);
    else if (event.key === "Enter" || event.key === " ") this.select(this.sent[this.at].op);
    else return;
    event.preventDefault();
  }

  /** Mark those that are selected, and point at the first. @param {(op: number) => boolean} is_in */
  mark(is_in) {
    const at = this.sent.findIndex(({ op }) => is_in(op));
    const marked = this.sent.filter(({ op }) => is_in(op));
    this.band.setAttribute("d", marked.map(({ op }) => `M${this.x(op) - 3} 0h6V${this.height}h-6Z`).join(""));
    if (at >= 0 && !is_in(this.sent[this.at].op)) this.point(at);
  }
}

/** Shows the world of a trace. */
class WorldView {
  width = 0;

  /** @param {import("../data.js").TraceView} trace @param {import("../selection.js").Selection} selection */
  constructor(trace, selection) {
    this.trace = trace;
    this.selection = selection;
    this.sent = read_sent(trace.world);
    const select = (/** @type {number} */ index) => selection.select({ kind: "op", index });
    const { places, accelerator } = trace.memory;
    const series = add_up_lives(trace, read_lives(trace), places.indexOf(accelerator));
    this.timeline = new Timeline(trace, series, { measure: make_measure(), select, height: STRIP_HEIGHT });
    this.ticks = this.sent.length ? new Ticks(trace, this.sent, select) : null;
    this.strip = make("figure", { class: "mm-curve mm-world-strip" }, this.timeline.svg,
      ...this.ticks ? [this.ticks.svg, this.make_legend(), this.ticks.output] : [], this.timeline.output);
    this.element = make("div", { class: "mm-charts mm-memory" },
      this.make_peak(series), this.strip, ...trace.world.meshes.map(this.make_mesh), ...this.make_tables());
  }

  /** A mesh: its ranks in a grid, and what lies on it. @param {import("./sent.js").Mesh} mesh */
  make_mesh = ({ dims, rows }) => {
    const { rank, per_node } = this.trace.world;
    const sizes = dims.map(([name, { length }]) => `${name} ${length}`.trim());
    const cells = list_ranks(dims, rank);
    const nodes = new Set(cells.map(({ number }) => Math.floor(number / per_node)));
    const title = dims.length ? `Mesh ${sizes.join(" × ")}${nodes.size > 1 ? ` on ${nodes.size} nodes, every second one dashed` : ""}`
      : "On no mesh";
    const columns = dims.length > 1 ? dims.at(-1)[1].length : per_node;
    const grid = make("div", { class: "mm-mesh", role: "img", "aria-label": `${title}: ranks ${cells.map(({ number }) => number).join(", ")}`,
      style: `grid-template-columns: repeat(${Math.min(columns, cells.length)}, auto)` },
    ...cells.map(({ number, at }) => make("span", {
      class: `${number === rank ? "mm-mesh-own" : ""} ${Math.floor(number / per_node) % 2 ? "mm-mesh-odd" : ""}`,
      title: [`rank ${number}, node ${Math.floor(number / per_node)}`, ...dims.map(([name], i) => `${name} ${at[i]}`)].join(", "),
    }, `${number}`)));
    return make("figure", { class: "mm-fit" }, make("figcaption", {}, title),
      dims.length && cells.length <= MOST_RANKS ? grid : "",
      make("table", { class: "mm-room", "aria-label": title },
        make("thead", {}, make("tr", {}, ...["placement", "tensors", "bytes on this rank", "in all"].map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...rows.map(([placement, count, local, whole]) => make("tr", {}, make("th", { scope: "row" }, placement),
          ...[`${count}`, format_bytes(local), format_bytes(whole)].map((text) => make("td", {}, text)))))));
  };

  /** The recorded process, and its bytes at the peak by category. @param {import("../memory/lives.js").Series} series */
  make_peak({ by_category, totals, peak }) {
    const { trace: { world: { rank, size, per_node }, memory } } = this;
    const node = size > per_node ? `, on node ${Math.floor(rank / per_node)}` : "";
    const whole = totals[peak] ?? 0;
    const parts = memory.categories.map((name, i) => ({ i, words: KINDS[name]?.[0] ?? name, nbytes: by_category[i][peak] }))
      .filter(({ nbytes }) => nbytes).sort((a, b) => b.nbytes - a.nbytes);
    return make("figure", { class: "mm-curve" },
      make("figcaption", {}, `Rank ${rank} of ${size}${node}: ${format_bytes(whole)} at the peak on ${memory.accelerator}`),
      make("div", { class: "mm-world-bar" }, ...parts.map(({ i, nbytes }) =>
        make("i", { class: `mm-kind-${i}`, style: `flex-grow: ${nbytes}` }))),
      make("div", { class: "mm-groups" }, ...parts.map(({ i, words, nbytes }) => make("span", {},
        make("i", { class: `mm-kind-${i}` }), `${words} ${format_bytes(nbytes)}, ${format_share(nbytes / whole)}`))));
  }

  make_legend() {
    const is_wide = this.sent.some(({ n_nodes }) => n_nodes > 1);
    return make("div", { class: "mm-groups" },
      ...this.ticks.kinds.map(({ name, all }) => make("span", {}, make("i", { class: `mm-sent-${name}` }), `${name} ${all.length}`)),
      is_wide ? make("span", {}, "long ticks: between nodes") : "");
  }

  make_tables() {
    if (!this.sent.length) return [make("p", {}, "This process sends nothing.")];
    const { trace, selection } = this;
    const groups = group_sent(this.sent, (one) => `${one.kind} ${describe_ranks(one)}`);
    const lines = group_sent(this.sent, ({ op }) => name_line(trace, op));
    const find_line = (/** @type {SentGroup} */ { all: [one] }) => trace.source && trace.site(one.op).line;
    return [
      this.make_table("Collectives by group", ["collective", "ranks", "nodes"], groups,
        ({ all: [one] }) => [one.kind, describe_ranks(one), `${one.n_nodes}`], (group) => this.go_to_next(group)),
      this.make_table("Collectives by line", ["line", "what"], lines,
        ({ name, all }) => [name, [...new Set(all.map(({ kind }) => kind))].join(", ")],
        (group) => (find_line(group) ? selection.select({ kind: "line", index: find_line(group) }) : this.go_to_next(group))),
    ];
  }

  /**
   * @param {string} title @param {string[]} heads @param {SentGroup[]} groups
   * @param {(group: SentGroup) => string[]} describe @param {(group: SentGroup) => void} choose
   */
  make_table(title, heads, groups, describe, choose) {
    const rows = groups.map((group) => {
      const [first, ...others] = describe(group);
      return make("tr", {},
        make("th", { scope: "row" }, make("button", { type: "button", class: "mm-link", onclick: () => choose(group) }, first)),
        ...[...others, `${group.all.length}`, format_bytes(group.nbytes)].map((text) => make("td", {}, text)));
    });
    const head = make("tr", {}, ...[...heads, "count", "bytes"].map((text) => make("th", { scope: "col" }, text)));
    return make("figure", { class: "mm-fit" }, make("figcaption", {}, title),
      make("div", { class: "mm-scroll", role: "group", tabindex: 0, "aria-label": title },
        make("table", { class: "mm-room", "aria-label": title }, make("thead", {}, head), make("tbody", {}, ...rows))));
  }

  /** Select the next collective of a group; after the last one the first. @param {SentGroup} group */
  go_to_next({ all }) {
    const { kind, index } = this.selection.current ?? {};
    const next = kind === "op" && all.find(({ op }) => op > index);
    this.selection.select({ kind: "op", index: (next || all[0]).op });
  }

  resize() {
    const { clientWidth } = this.strip;
    if (!clientWidth || clientWidth === this.width) return;
    this.width = clientWidth;
    this.timeline.resize(clientWidth);
    this.ticks?.resize(clientWidth);
    this.follow();
  }

  /** Show what is selected. */
  follow() {
    const { trace, selection: { current } } = this;
    const is_in = (/** @type {number} */ op) => is_op_selected(trace, current, op);
    if (current?.kind === "op") this.timeline.point(current.index);
    this.timeline.mark(is_in);
    this.ticks?.mark(is_in);
  }
}

/**
 * Show the world of a trace.
 * @param {HTMLElement} element @param {import("../data.js").TraceView} trace
 * @param {import("../selection.js").Selection} selection
 */
export function mount_world(element, trace, selection) {
  if (!trace.n_ops) {
    const { rank, size } = trace.world;
    element.append(`Rank ${rank} of ${size} called no operator.`);
    return;
  }
  const view = new WorldView(trace, selection);
  element.append(view.element);
  new ResizeObserver(() => view.resize()).observe(view.element);
  selection.subscribe(() => view.follow());
}
