// A roofline: how many operations a second each operator reaches at best on the device, over
// how many it does for each byte. Williams, Waterman and Patterson, "Roofline", 2009.

import { make_device_select } from "../devices.js";
import { FORMATS, draw, fill, format_flops, format_share, make } from "../dom.js";
import { ESTIMATE } from "../times.js";
import { choose_labels } from "./depth.js";
import { find_decades, has_place, list_dots, list_roofs } from "./roofs.js";
import { lead_through } from "./treemap.js";

const ROOFLINE_HEIGHT = 260; // pixels
const ROOFLINE_EDGE = 16; // around, and below for numbers
const LEAST_RADIUS = 4;
const MOST_RADIUS = 26; // of what takes all the time
const N_DOT_COLORS = 6;
const MOST_LISTED = 8; // operators below the chart
const ROOFLINE_TITLE = "a dot is an operator, as large as its share of the time: below the slope it waits for "
  + `the memory, below a flat line for the arithmetic; ${ESTIMATE}`;

const format_rate = (/** @type {number} */ flops) => `${format_flops(flops)}/s`;

/** @typedef {import("./roofs.js").Dot} Dot */

/** Shows the operators of a trace under the roofs of a device. */
class Roofline {
  width = 0;
  told = make("output");
  groups = make("div", { class: "mm-groups" });
  /** The one that is selected, or -1. */ marked = -1;

  /**
   * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
   * @param {{select: (op: number) => void, measure: (text: string) => number}} tools
   */
  constructor(trace, times, tools) {
    this.trace = trace;
    this.times = times;
    this.tools = tools;
    const tell = ({ target }) => this.tell(target.closest("[data-dot]"));
    this.svg = draw("svg", {
      role: "group", "aria-label": "Roofline; the arrow keys lead through the operators", tabindex: 0,
      height: ROOFLINE_HEIGHT, onclick: ({ target }) => this.choose(target), onpointerover: tell, onfocusin: tell,
      onkeydown: (event) => lead_through(this.svg, event, (target) => this.choose(target)),
    });
    this.element = make("figure", { class: "mm-roofline" },
      make("figcaption", { title: ROOFLINE_TITLE },
        "Roofline: operations a second at best, by operations for each byte, on ", make_device_select(times)),
      this.svg, this.groups, this.told);
    times.subscribe(() => this.renew());
    this.renew();
  }

  /** Show the times on the device that is chosen. */
  renew() {
    const { trace, times } = this;
    this.dots = list_dots(trace, times);
    this.placed = this.dots.filter(has_place);
    this.roofs = list_roofs(this.placed, times.device);
    const { bandwidth } = times.device;
    const ridges = this.roofs.map(({ flops }) => flops / bandwidth);
    this.across = find_decades([...ridges, ...this.placed.map(({ work, nbytes }) => work / nbytes)]);
    this.up = find_decades([
      ...this.roofs.map(({ flops }) => flops), ...this.placed.map(({ work, seconds }) => work / seconds)]);
    const n_more = this.dots.length - MOST_LISTED;
    this.groups.replaceChildren(...this.dots.slice(0, MOST_LISTED).map((dot) => this.list(dot)),
      n_more > 0 ? `and ${n_more} that take less` : "");
    this.resize(this.width);
  }

  x = (/** @type {number} */ intensity) => ROOFLINE_EDGE + (this.width - 2 * ROOFLINE_EDGE)
    * (Math.log10(intensity) - this.across.from) / (this.across.to - this.across.from);

  y = (/** @type {number} */ rate) => ROOFLINE_EDGE + (ROOFLINE_HEIGHT - 2 * ROOFLINE_EDGE)
    * (this.up.to - Math.log10(rate)) / (this.up.to - this.up.from);

  share = (/** @type {Dot} */ { seconds }) => format_share(seconds / this.times.total);

  color = (/** @type {Dot} */ dot) => `mm-color-${this.dots.indexOf(dot) % N_DOT_COLORS}`;

  /** A button of an operator, below the chart. @param {Dot} dot */
  list(dot) {
    const words = has_place(dot) ? "" : ", no arithmetic";
    return make("button", {
      type: "button", title: "select the call that takes longest", "data-dot": this.dots.indexOf(dot),
      onclick: () => this.tools.select(dot.longest),
    }, make("i", { class: has_place(dot) ? this.color(dot) : "" }), `${dot.op}  `,
    make("span", {}, `${this.share(dot)}${words}`));
  }

  /** @param {number} width */
  resize = (width) => {
    this.width = width;
    const dots = this.placed.map((dot) => this.draw_dot(dot));
    const labels = [...this.list_roof_labels(), ...this.list_ticks(), ...this.placed.map((dot) => this.name_dot(dot))];
    const texts = choose_labels(labels, this.tools.measure).map(({ text, x, y }) => draw("text", { x, y }, text));
    this.svg.replaceChildren(...this.draw_roofs(), ...dots, ...texts);
    this.show_marked();
  };

  draw_roofs() {
    const { across, up, width, times: { device: { bandwidth } } } = this;
    const start = Math.max(10 ** across.from, 10 ** up.from / bandwidth);
    return this.roofs.map(({ flops }) => draw("path", {
      class: "mm-roof",
      d: `M${this.x(start)} ${this.y(start * bandwidth)}L${this.x(flops / bandwidth)} ${this.y(flops)}H${width}`,
    }));
  }

  list_roof_labels() {
    const { measure } = this.tools;
    const { bandwidth } = this.times.device;
    const flat = this.roofs.map(({ name, flops }) => {
      const text = `${name} ${format_rate(flops)}`;
      const x = this.width - measure(text) - 3;
      return { text, x, y: this.y(flops) - 4, room: x };
    });
    const text = `memory ${format_flops(bandwidth).replace("FLOPs", "B/s")}`;
    const middle = Math.sqrt(10 ** this.across.from * this.roofs[0]?.flops / bandwidth);
    const x = this.x(middle) - measure(text) - 8;
    return this.roofs.length ? [...flat, { text, x, y: this.y(middle * bandwidth), room: x }] : [];
  }

  list_ticks() {
    const { across, up } = this;
    const count = ({ from, to }) => Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i));
    return [
      ...count(up).map((rate) => ({ text: format_rate(rate).replace(".0", ""), x: 2, y: this.y(rate) + 4, room: 90 })),
      ...count(across).map((value) => ({
        text: FORMATS.number(value), x: this.x(value) - 3, y: ROOFLINE_HEIGHT - 2, room: this.width - this.x(value) + 3,
      })),
    ];
  }

  radius = (/** @type {Dot} */ { seconds }) =>
    Math.max(LEAST_RADIUS, MOST_RADIUS * Math.sqrt(seconds / this.times.total));

  /** @param {Dot} dot */
  draw_dot(dot) {
    const { work, nbytes, seconds } = dot;
    return draw("g", {
      role: "button", tabindex: -1, class: this.color(dot), "data-dot": this.dots.indexOf(dot),
      "aria-label": this.describe(dot),
    }, draw("circle", { cx: this.x(work / nbytes), cy: this.y(work / seconds), r: this.radius(dot) }));
  }

  /** @param {Dot} dot */
  name_dot(dot) {
    const x = this.x(dot.work / dot.nbytes) + this.radius(dot) + 3;
    return { text: dot.op, x, y: this.y(dot.work / dot.seconds) + 4, room: this.width - x };
  }

  /** @param {Dot} dot */
  describe(dot) {
    const { op, kind, n_calls, work, nbytes, seconds, waiting } = dot;
    const { peaks } = this.times.device;
    const wait = waiting / seconds;
    return [
      op, kind >= 0 && peaks[kind][0], `${n_calls} call${n_calls === 1 ? "" : "s"}`,
      `${this.share(dot)} of the time`,
      ...has_place(dot) ? [`${FORMATS.number(work / nbytes)} a byte`, format_rate(work / seconds)] : [],
      wait > 0 && wait < 1 ? `${format_share(wait)} of it bound by memory` : `bound by ${wait ? "memory" : "computing"}`,
    ].filter(Boolean).join(" · ");
  }

  /** @param {HTMLElement | null} part */
  tell(part) {
    if (part) this.told.textContent = this.describe(this.dots[part.dataset.dot]);
  }

  choose(target) {
    const part = target.closest("[data-dot]");
    if (part) this.tools.select(this.dots[part.dataset.dot].longest);
  }

  /** Mark what is selected. @param {number[]} path @param {import("../selection.js").Selected | null} selected */
  mark(path, selected) {
    this.marked = selected?.kind === "op" ? this.trace.op_signature[selected.index] : -1;
    this.show_marked();
  }

  show_marked() {
    for (const part of this.element.querySelectorAll("[data-dot]")) {
      const is_it = this.dots[part.getAttribute("data-dot")].signatures.includes(this.marked);
      part.classList.toggle("mm-selected", is_it);
      fill(part, { "aria-pressed": `${is_it}` });
    }
  }
}

/**
 * A roofline; null if no operator computes anything.
 * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
 * @param {{select: (op: number) => void, measure: (text: string) => number}} tools
 */
export const make_roofline = (trace, times, tools) =>
  (list_dots(trace, times).some(has_place) ? new Roofline(trace, times, tools) : null);
