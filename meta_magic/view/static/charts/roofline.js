// A roofline: how many operations a second each operator reaches at best on the device, over
// how many it does for each byte. Williams, Waterman and Patterson, "Roofline", 2009.

import { make_device_select } from "../devices.js";
import { FORMATS, draw, format_flops, format_seconds, format_share, make } from "../dom.js";
import { ESTIMATE } from "../times.js";
import { choose_labels, has_room } from "./depth.js";
import { find_decades, has_rate, list_dots, list_roofs } from "./roofs.js";
import { Marks, lead_through, make_groups } from "./treemap.js";

const ROOFLINE_HEIGHT = 260; // pixels
const ROOFLINE_EDGE = 16; // around
const [LEAST_RADIUS, MOST_RADIUS] = [4, 26]; // the latter of what takes all the time
const N_DOT_COLORS = 6;
const ROOFLINE_TITLE = "a dot is an operator, as large as its share of the time; on the slope it is bound by memory, "
  + `on a flat line by computing, below them its calls differ; initialization is not counted; ${ESTIMATE}`;

const format_rate = (/** @type {number} */ flops) => `${format_flops(flops)}/s`;

/** @typedef {import("./roofs.js").Dot} Dot */

/** Shows the operators of a trace under the roofs of a device. */
class Roofline {
  width = 0;
  /** The signature of the operator that is selected. @type {number[]} */ marked = [];
  listed = new Marks();
  output = make("output");
  groups = make("div");

  /**
   * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
   * @param {{select: (op: number) => void, measure: (text: string) => number}} tools
   */
  constructor(trace, times, tools) {
    this.trace = trace;
    this.times = times;
    this.tools = tools;
    const find = ({ target }) => this.dots[target.closest("g")?.dataset.dot];
    const choose = (target) => find({ target }) && tools.select(find({ target }).longest);
    const show = (event) => { if (find(event)) this.output.textContent = this.describe(find(event)); };
    this.svg = draw("svg", {
      role: "group", "aria-label": "Roofline; the arrow keys lead through the operators", tabindex: 0,
      height: ROOFLINE_HEIGHT, onclick: ({ target }) => choose(target), onpointerover: show, onfocusin: show,
      onkeydown: (event) => lead_through(this.svg, event, choose),
    });
    this.element = make("figure", { class: "mm-roofline" },
      make("figcaption", { title: ROOFLINE_TITLE },
        "Roofline: operations a second at best, by operations for each byte, on ", make_device_select(times)),
      this.svg, this.groups, this.output);
    times.subscribe(() => this.renew());
    this.renew();
  }

  /** Show the times on the device that is chosen. */
  renew() {
    const { trace, times, groups } = this;
    this.dots = list_dots(trace, times);
    this.placed = this.dots.filter(has_rate);
    this.roofs = list_roofs(this.placed, times.device);
    const points = [...this.roofs.map(({ flops }) => [flops / times.device.bandwidth, flops]),
      ...this.placed.map(({ work, nbytes, seconds }) => [work / nbytes, work / seconds])];
    this.across = find_decades(points.map(([intensity]) => intensity));
    this.up = find_decades(points.map(([, rate]) => rate));
    this.listed = new Marks();
    const areas = this.dots.map((dot, i) => {
      const words = dot.op + (has_rate(dot) ? "" : " (no arithmetic)");
      return { name: `${i}`, words, value: dot.seconds, at: dot.longest, modules: dot.signatures, children: [] };
    });
    groups.replaceChildren(make_groups(areas, this.listed, {
      ...this.tools, format: format_seconds, kind: "call that takes longest", paint: ({ name }) => this.color(name),
    }));
    this.resize(this.width);
  }

  x = (/** @type {number} */ intensity) => ROOFLINE_EDGE + (this.width - 2 * ROOFLINE_EDGE)
    * (Math.log10(intensity) - this.across.from) / (this.across.to - this.across.from);

  y = (/** @type {number} */ rate) => ROOFLINE_EDGE + (ROOFLINE_HEIGHT - 2 * ROOFLINE_EDGE)
    * (this.up.to - Math.log10(rate)) / (this.up.to - this.up.from);

  /** Where an operator is drawn, and how large. @param {Dot} dot */
  locate({ work, nbytes, seconds }) {
    const r = Math.max(LEAST_RADIUS, MOST_RADIUS * Math.sqrt(seconds / this.times.total));
    return { cx: this.x(work / nbytes), cy: this.y(work / seconds), r };
  }

  color = (i) => `mm-color-${i % N_DOT_COLORS}`;

  /** @param {number} width */
  resize = (width) => {
    this.width = width;
    this.drawn = new Marks();
    const dots = this.placed.map((dot) => this.draw_dot(dot, this.dots.indexOf(dot)));
    const texts = this.name_dots([...this.name_roofs(), ...this.name_ticks()]);
    this.svg.replaceChildren(...this.draw_roofs(), ...dots, ...texts.map(({ text, x, y }) => draw("text", { x, y }, text)));
    this.mark([]);
  };

  draw_roofs() {
    const { across, up, width, times: { device: { bandwidth } } } = this;
    const start = Math.max(10 ** across.from, 10 ** up.from / bandwidth);
    return this.roofs.map(({ flops }) => draw("path", {
      class: "mm-roof",
      d: `M${this.x(start)} ${this.y(start * bandwidth)}L${this.x(flops / bandwidth)} ${this.y(flops)}H${width}`,
    }));
  }

  /** @param {Dot} dot @param {number} i */
  draw_dot(dot, i) {
    const element = draw("g", {
      role: "button", tabindex: -1, class: this.color(i), "data-dot": i, "aria-label": this.describe(dot),
    }, draw("circle", this.locate(dot)));
    this.drawn.add(element, dot.signatures);
    return element;
  }

  name_roofs() {
    const { roofs, width, tools: { measure }, times: { device: { bandwidth } } } = this;
    const lead_to = (text, x, y) => ({ text, x: x - measure(text) - 8, y: y - 4, room: x });
    const middle = Math.sqrt(10 ** this.across.from * roofs[0]?.flops / bandwidth);
    return [
      ...roofs.map(({ name, flops }) => lead_to(`${name} ${format_rate(flops)}`, width, this.y(flops))),
      lead_to(`memory ${format_flops(bandwidth).replace("FLOPs", "B/s")}`, this.x(middle), this.y(middle * bandwidth)),
    ];
  }

  name_ticks() {
    const list = ({ from, to }) => Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i));
    const put = (text, x, y) => ({ text, x, y, room: this.width - x });
    return [
      ...list(this.up).map((rate) => put(format_rate(rate).replace(".0", ""), 2, this.y(rate) + 4)),
      ...list(this.across).map((n) => put(FORMATS.number(n), this.x(n) - 3, ROOFLINE_HEIGHT - 2)),
    ];
  }

  /** The labels with the names that have room below their dots or else above, the longest's first. */
  name_dots(labels) {
    const { measure } = this.tools;
    const kept = choose_labels(labels, measure);
    for (const dot of this.placed) {
      const { cx, cy, r } = this.locate(dot);
      const [text, edge] = [dot.op, 0.7 * r + 1];
      const spots = [[cx + edge, cy + edge + 9], [cx - measure(text) / 2, cy - r - 3]];
      kept.push(...spots.map(([x, y]) => ({ text, x, y, room: x > 0 ? this.width - x : 0 }))
        .filter((label) => has_room(kept, label, measure)).slice(0, 1));
    }
    return kept;
  }

  /** @param {Dot} dot */
  describe(dot) {
    const { op, kind, n_calls, work, nbytes, seconds, waiting } = dot;
    return [
      op, this.times.device.peaks[kind]?.[0] ?? "elementwise", `${n_calls} call${n_calls === 1 ? "" : "s"}`,
      `${format_share(seconds / this.times.total)} of the time`, `${format_share(waiting / seconds)} of it bound by memory`,
      `${FORMATS.number(work / nbytes)} operations a byte`, format_rate(work / seconds),
    ].join(" · ");
  }

  /** Mark what is selected. @param {number[]} path @param {import("../selection.js").Selected | null} [selected] */
  mark(path, selected) {
    if (selected !== undefined) this.marked = selected?.kind === "op" ? [this.trace.op_signature[selected.index]] : [];
    this.listed.mark(this.marked);
    this.drawn.mark(this.marked);
  }
}

/**
 * A roofline; null if no operator computes anything.
 * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
 * @param {{select: (op: number) => void, measure: (text: string) => number}} tools
 */
export const make_roofline = (trace, times, tools) =>
  (list_dots(trace, times).some(has_rate) ? new Roofline(trace, times, tools) : null);
