// A chart of the live bytes after each operator, by category.

import { fit_path } from "../charts/areas.js";
import { find_plateaus } from "../charts/depth.js";
import { PHASES } from "../data.js";
import { draw, fill, format_bytes, make, shorten_op } from "../dom.js";
import { choose_marks, choose_ops, find_most } from "./lives.js";

const TIMELINE_HEIGHT = 220; // pixels
const BELOW = 18; // for phases
const ABOVE = 18; // for the peak
const LEAST_BAND = 2;

/** The name of a category, and its description. @type {Record<string, [string, string]>} */
export const KINDS = {
  parameter: ["parameters", "of modules and optimizers"],
  buffer: ["buffers", "of modules"],
  gradient: ["gradients", "of parameters, from backward"],
  optimizer_state: ["optimizer state", "what an optimizer keeps"],
  saved: ["saved for backward", "made by the forward pass, and read by backward"],
  temporary: ["temporary", "freed before the end, and none of the others"],
  input: ["input and data", "given to the cell, or made outside of modules"],
  output: ["output", "alive at the end, and none of the others"],
  unsharded: ["unsharded parameters", "whole for a while, gathered from all ranks"],
};

/**
 * @typedef {import("./lives.js").Series} Series
 * @typedef {{select: (op: number) => void, measure: (text: string) => number, height?: number}} TimelineTools
 *   `measure`: pixels that a text takes in a chart; `height`: pixels
 */

/** Shows the bytes of a device; owns the operator that is pointed at. */
export class Timeline {
  at = 0;
  width = 0;
  band = draw("path", { class: "mm-band" });
  cursor = draw("path", { class: "mm-cursor" });
  output = make("output");

  /**
   * @param {import("../data.js").TraceView} trace @param {Series} series
   * @param {TimelineTools} tools
   */
  constructor(trace, series, tools) {
    this.trace = trace;
    this.series = series;
    this.tools = tools;
    this.height = tools.height ?? TIMELINE_HEIGHT;
    this.phases = find_plateaus(Array.from(trace.op_site, (_, op) => trace.site(op).phase));
    this.svg = draw("svg", {
      role: "slider", tabindex: 0, height: this.height, "aria-label": "Operator",
      "aria-valuemin": 0, "aria-valuemax": trace.n_ops - 1,
      onpointermove: ({ offsetX }) => this.point(this.find_op(offsetX)),
      onclick: () => this.tools.select(this.at), onkeydown: (event) => this.press(event),
    });
    this.keys = trace.memory.categories.map((name, i) => {
      const [words, help] = KINDS[name] ?? [name, ""];
      const value = make("span");
      const key = make("span", { title: help }, make("i", { class: `mm-kind-${i}` }), `${words}  `, value);
      return { words, value, key };
    });
    this.element = make("figure", { class: "mm-curve" }, this.svg,
      make("div", { class: "mm-groups" }, ...this.keys.map(({ key }) => key)), this.output);
    this.point(series.peak);
  }

  /** Show another device. @param {Series} series */
  show(series) {
    this.series = series;
    this.at = series.peak;
    this.resize(this.width);
  }

  x = (/** @type {number} */ op) => op * this.width / this.trace.n_ops;

  y = (/** @type {number} */ nbytes) => {
    const { totals, peak } = this.series;
    const floor = this.height - BELOW;
    return floor - (floor - ABOVE) * nbytes / Math.max(1, totals[peak]);
  };

  /** The operator at a pixel; of several the one after which most is alive. */
  find_op(x) {
    const { n_ops } = this.trace;
    const [from, to] = [x, x + 1].map((i) => Math.floor(i / this.width * n_ops));
    return find_most(this.series.totals, Math.max(0, from), Math.min(n_ops, Math.max(to, from + 1)));
  }

  /** @param {number} width */
  resize = (width) => {
    this.width = width;
    this.svg.replaceChildren(...this.draw_areas(), this.band, ...this.draw_marks(),
      ...this.draw_phases(), ...this.draw_peak(), this.cursor);
    this.keys.forEach(({ key }, i) => { key.hidden = !this.series.by_category[i].some(Boolean); });
    this.point(this.at);
  };

  /** The areas, each over what is higher, from the floor up to its upper edge. */
  draw_areas() {
    const { by_category, totals } = this.series;
    const kept = choose_ops(totals, this.width);
    const ends = [...kept.slice(1), this.trace.n_ops].map((op) => this.x(op).toFixed(1));
    const sums = kept.map(() => 0);
    return by_category.map((bytes, i) => {
      const steps = kept.map((op, k) => `V${this.y(sums[k] += bytes[op]).toFixed(1)}H${ends[k]}`);
      const floor = this.height - BELOW;
      return draw("path", { class: `mm-kind-${i}`, d: `M0 ${floor}${steps.join("")}V${floor}Z` });
    }).reverse();
  }

  draw_marks() {
    const { totals, peak } = this.series;
    return choose_marks(totals[peak]).flatMap((nbytes) => [
      draw("path", { class: "mm-tick", d: `M0 ${this.y(nbytes)}H${this.width}` }),
      draw("text", { x: 3, y: this.y(nbytes) - 3 }, format_bytes(nbytes)),
    ]);
  }

  draw_phases() {
    return this.phases.flatMap(({ start, end, value }) => {
      const [from, to] = [this.x(start), this.x(end)];
      const name = fit_path(PHASES[value], to - from - 6, this.tools.measure);
      const tick = draw("path", { class: "mm-tick", d: `M${to} ${ABOVE}V${this.height}` });
      return name ? [tick, draw("text", { x: from + 3, y: this.height - 5 }, name)] : [];
    });
  }

  draw_peak() {
    const { peak } = this.series;
    const x = this.x(peak + 0.5);
    const is_left = x > this.width / 2;
    const room = Math.max(x, this.width - x) - 8;
    const words = this.describe_peak();
    const text = [words, words.split(":")[0]].find((text) => this.tools.measure(text) <= room) ?? "peak";
    return [
      draw("path", { class: "mm-peak", d: `M${x} 0V${this.height - BELOW}` }),
      draw("text", { x: is_left ? x - 4 : x + 4, y: 12, "text-anchor": is_left && "end" }, text),
    ];
  }

  describe_peak = () => `peak ${format_bytes(this.series.totals[this.series.peak])}: ${this.describe_op(this.series.peak)}`;

  /** An operator, with its line and module, as text. @param {number} op */
  describe_op(op) {
    const { line } = this.trace.site(op);
    const { fqn } = this.trace.modules[this.trace.op_module[op]] ?? {};
    return [`#${op} ${shorten_op(this.trace.signature(op).op)}`, line && `line ${line}`, fqn && `in ${fqn}`].filter(Boolean).join(" · ");
  }

  /** Point at an operator. @param {number} op */
  point(op) {
    const { by_category, totals } = this.series;
    this.at = Math.max(0, Math.min(this.trace.n_ops - 1, op));
    const words = `${this.describe_op(this.at)} · ${format_bytes(totals[this.at])}`;
    const parts = this.keys.flatMap(({ words, value }, i) => {
      const nbytes = by_category[i][this.at];
      value.textContent = format_bytes(nbytes);
      return nbytes ? [`${words} ${value.textContent}`] : [];
    });
    this.output.textContent = words;
    fill(this.svg, { "aria-valuenow": this.at, "aria-valuetext": `${words}: ${parts.join(", ")}` });
    const x = this.x(this.at + 0.5);
    this.cursor.setAttribute("d", `M${x} 0V${this.height - BELOW}`);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { n_ops } = this.trace;
    const page = Math.max(10, Math.round(n_ops / 50));
    const step = {
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page,
      Home: -n_ops, End: n_ops,
    }[event.key];
    if (step) this.point(this.at + step);
    else if (event.key === "Enter" || event.key === " ") this.tools.select(this.at);
    else return;
    event.preventDefault();
  }

  /** Mark some operators. @param {(op: number) => boolean} is_in */
  mark(is_in) {
    const parts = find_plateaus(Array.from(this.trace.op_site, (_, op) => is_in(op)));
    const boxes = parts.map(({ start, end, value }) => {
      const from = this.x(start);
      const to = Math.max(this.x(end), from + LEAST_BAND);
      return value ? `M${from} 0H${to}V${this.height - BELOW}H${from}Z` : "";
    });
    this.band.setAttribute("d", boxes.join(""));
  }
}
