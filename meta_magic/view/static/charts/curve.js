// A chart of the shapes that modules return, in the order in which they are called.

import { draw, fill, format_bytes, format_count, format_shape, make, shorten_dtype } from "../dom.js";
import { fit_path } from "./areas.js";
import { choose_labels, find_plateaus, find_stretches, list_dimensions, list_steps } from "./depth.js";

const CURVE_HEIGHT = 150;
const FOOT = 18; // pixels below, for names
const HEAD = 16; // and above, for the highest label
const N_LINES = 5; // colours
const TITLE = "what each innermost module returns, in the order of the calls; sizes on a "
  + "logarithmic scale, grey: the number of elements; ← → lead through the calls, Enter selects";

const size_of = (/** @type {import("../data.js").Call} */ { outputs: [{ geometry }] }) =>
  geometry.shape.reduce((a, b) => a * b, 1);

/** Shows the steps; owns the one that is pointed at. */
class Curve {
  at = 0;
  width = 0;

  /**
   * @param {import("../data.js").TraceView} trace @param {import("../data.js").Call[]} steps
   * @param {import("./treemap.js").ChartTools} tools
   */
  constructor(trace, steps, tools) {
    this.trace = trace;
    this.steps = steps;
    this.tools = tools;
    this.dims = list_dimensions(steps);
    this.stretches = find_stretches(trace, steps);
    this.sizes = steps.map(size_of);
    const largest = this.dims.flat().reduce((most, { value }) => Math.max(most, value), 2);
    this.scale = (CURVE_HEIGHT - FOOT - HEAD) / Math.log2(largest);
    this.band = draw("path", { class: "mm-band" });
    this.cursor = draw("path", { class: "mm-cursor" });
    this.svg = draw("svg", {
      role: "slider", tabindex: 0, height: CURVE_HEIGHT, "aria-label": "Step",
      "aria-valuemin": 0, "aria-valuemax": steps.length - 1,
      onpointermove: ({ offsetX }) => this.point(Math.floor(offsetX / this.width * steps.length)),
      onclick: () => this.choose(), onkeydown: (event) => this.press(event),
    });
    this.output = make("output", {}, "");
    this.element = make("figure", { class: "mm-curve" },
      make("figcaption", { title: TITLE }, `Shapes along the depth: ${steps.length} calls`),
      this.svg, this.make_legend(), this.output);
    this.point(0);
  }

  make_legend() {
    const lines = this.dims.map((plateaus, dim) => {
      const values = plateaus.map(({ value }) => value);
      const [least, most] = [Math.min(...values.slice(0, 1e5)), Math.max(...values.slice(0, 1e5))];
      return make("span", {}, make("i", { class: `mm-line-${dim % N_LINES}` }),
        `dim ${dim}: ${least === most ? least : `${least} to ${most}`}`);
    });
    const most = this.sizes.reduce((a, b) => Math.max(a, b), 0);
    return make("div", { class: "mm-groups" }, ...lines,
      make("span", {}, make("i", { class: "mm-elements" }), `elements: at most ${format_count(most)}`));
  }

  x = (/** @type {number} */ step) => step * this.width / this.steps.length;

  y = (/** @type {number} */ size) =>
    CURVE_HEIGHT - FOOT - this.scale * Math.log2(Math.max(1, size));

  /** @param {number} width */
  resize = (width) => {
    this.width = width;
    const lines = this.dims.map((plateaus, dim) => draw("path", {
      class: `mm-line-${dim % N_LINES}`, d: this.trace_line(plateaus),
      // Lines of equal sizes lie on each other.
      "stroke-dasharray": dim % 2 ? "6 5" : false,
    }));
    this.svg.replaceChildren(this.band, draw("path", { class: "mm-elements", d: this.trace_sizes() }),
      ...lines, ...this.draw_labels(), ...this.draw_names(), this.cursor);
    this.point(this.at);
  };

  /** @param {import("./depth.js").Plateau[]} plateaus */
  trace_line(plateaus) {
    let end = -1;
    return plateaus.map((plateau) => {
      const way = plateau.start === end ? "L" : "M";
      end = plateau.end;
      const y = this.y(plateau.value).toFixed(1);
      return `${way}${this.x(plateau.start).toFixed(1)} ${y}H${this.x(end).toFixed(1)}`;
    }).join("");
  }

  trace_sizes() {
    const most = this.sizes.reduce((a, b) => Math.max(a, b), 1);
    const floor = CURVE_HEIGHT - FOOT;
    const steps = this.sizes.map((size, i) => {
      const y = floor - (floor - HEAD) * size / most;
      return `V${y.toFixed(1)}H${this.x(i + 1).toFixed(1)}`;
    });
    return `M0 ${floor}${steps.join("")}V${floor}Z`;
  }

  draw_labels() {
    const labels = this.dims.flatMap((plateaus) => plateaus.map(({ start, end, value }) => ({
      text: String(value), x: this.x(start) + 2, y: this.y(value) - 4, room: this.x(end) - this.x(start) - 2,
    })));
    return choose_labels(labels, this.tools.measure).map(({ text, x, y }) => draw("text", { x, y }, text));
  }

  draw_names() {
    return this.stretches.flatMap(({ start, end, name }) => {
      const [from, to] = [this.x(start), this.x(end)];
      const text = fit_path(name, to - from - 6, this.tools.measure);
      const tick = draw("path", { class: "mm-tick", d: `M${to} ${HEAD}V${CURVE_HEIGHT}` });
      return text ? [tick, draw("text", { x: from + 3, y: CURVE_HEIGHT - 5 }, text)] : [tick];
    });
  }

  /** Point at a step. @param {number} at */
  point(at) {
    const { steps, trace } = this;
    this.at = Math.max(0, Math.min(steps.length - 1, at));
    const { module, outputs: [{ geometry }] } = steps[this.at];
    const { fqn, name, class_name } = trace.modules[module] ?? { name: "a module that is gone" };
    const shape = `${format_shape(geometry.shape)} ${shorten_dtype(geometry.dtype)}`;
    const words = [fqn || name || "(root)", class_name, shape, format_bytes(geometry.nbytes)].filter(Boolean).join(" · ");
    this.output.textContent = words;
    fill(this.svg, { "aria-valuenow": this.at, "aria-valuetext": words });
    this.cursor.setAttribute("d", `M${this.x(this.at + 0.5)} 0V${CURVE_HEIGHT - FOOT}`);
  }

  choose() {
    const { module } = this.steps[this.at];
    if (module >= 0) this.tools.select(module);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { length } = this.steps;
    const step = {
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10,
      Home: -length, End: length,
    }[event.key];
    if (step) this.point(this.at + step);
    else if (event.key === "Enter" || event.key === " ") this.choose();
    else return;
    event.preventDefault();
  }

  /** Mark the steps of a module, and point at the first. @param {number[]} path */
  mark([module = -1]) {
    const { modules } = this.trace;
    const is_in = this.steps.map((step) => {
      let at = step.module;
      while (at > module) at = modules[at].parent;
      return at === module && module >= 0;
    });
    const parts = find_plateaus(is_in).map(({ start, end, value }) => (value
      ? `M${this.x(start)} 0H${this.x(end)}V${CURVE_HEIGHT - FOOT}H${this.x(start)}Z` : ""));
    this.band.setAttribute("d", parts.join(""));
    if (!is_in[this.at] && is_in.includes(true)) this.point(is_in.indexOf(true));
  }
}

/**
 * A chart of shapes along the depth; null if no module was called.
 * @param {import("../data.js").TraceView} trace @param {import("./treemap.js").ChartTools} tools
 */
export function make_curve(trace, tools) {
  const steps = list_steps(trace);
  return steps.length ? new Curve(trace, steps, tools) : null;
}
