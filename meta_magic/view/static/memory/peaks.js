// A chart of the peak over a size, a line for each of the choices, with the memory of devices.

import { draw, format_bytes, make } from "../dom.js";
import { format_room, group_devices } from "./fit.js";
import { choose_ticks, find_peak, name_choices } from "./growth.js";
import { choose_marks } from "./lives.js";

const PEAKS_HEIGHT = 190; // pixels
const UNDER = 18; // for sizes
const OVER = 6;
const N_STEPS = 100; // of a line
const N_LINE_COLORS = 5;
const LEAST_GAP = 14; // pixels between two labels

/**
 * @typedef {import("./growth.js").Growth} Growth
 * @typedef {{growths: Growth[], times: import("../times.js").Times, end: number, size: number}} Shown
 *   from size 1 up to `end`; `size`: that is marked
 */

export class Peaks {
  width = 0;
  legend = make("div", { class: "mm-groups" });
  svg = draw("svg", { role: "img", height: PEAKS_HEIGHT, onclick: ({ offsetX }) => this.choose(this.size_at(offsetX)) });
  element = make("div", { class: "mm-peaks" }, this.svg, this.legend);

  /** @param {(size: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    new ResizeObserver(() => {
      if (this.shown && this.element.clientWidth !== this.width) this.show(this.shown);
    }).observe(this.element);
  }

  x = (/** @type {number} */ size) => (size - 1) * this.width / (this.shown.end - 1);

  size_at = (/** @type {number} */ x) => Math.round(1 + x * (this.shown.end - 1) / this.width);

  y = (/** @type {number} */ nbytes) => {
    const floor = PEAKS_HEIGHT - UNDER;
    return floor - (floor - OVER) * nbytes / this.most;
  };

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    this.width = this.element.clientWidth;
    const { growths, times: { device }, size } = shown;
    this.most = 1.15 * Math.max(device.nbytes, find_peak(growths[0], growths[0].current) || 0);
    const floor = PEAKS_HEIGHT - UNDER;
    const scale = [...this.draw_scale(), ...this.draw_rooms()];
    const is_text = ({ localName }) => localName === "text";
    this.svg.replaceChildren(...scale.filter((one) => !is_text(one)),
      ...growths.flatMap((growth, i) => this.draw_growth(growth, i)),
      draw("path", { class: "mm-peak", d: `M${this.x(size)} 0V${floor}` }), ...scale.filter(is_text));
    const words = growths.map((growth) => {
      const nbytes = find_peak(growth, size);
      return `${name_choices(growth.choices)}: ${Number.isNaN(nbytes) ? "not recorded" : format_bytes(nbytes)}`;
    });
    this.legend.replaceChildren(...words.map((text, i) =>
      make("span", {}, make("i", { class: `mm-line-${i % N_LINE_COLORS}` }), text)));
    const at = `${growths[0].name} = ${size}`;
    this.svg.setAttribute("aria-label", `Peak over ${growths[0].name}; with ${at}, ${words.join(", ")}`);
  }

  draw_scale() {
    const { end } = this.shown;
    return [
      ...choose_marks(this.most).map((nbytes) => draw("path", { class: "mm-tick", d: `M0 ${this.y(nbytes)}H${this.width}` })),
      ...choose_marks(this.most).map((nbytes) => draw("text", { x: 3, y: this.y(nbytes) - 3 }, format_bytes(nbytes))),
      ...choose_ticks(end).map((size) => draw("text", {
        x: this.x(size), y: PEAKS_HEIGHT - 4, "text-anchor": this.x(size) > this.width - 20 ? "end" : "middle",
      }, size.toLocaleString("en"))),
    ];
  }

  /** The memory of devices, that of the chosen one first: others have a name where there is room. */
  draw_rooms() {
    const { device, trace } = this.shown.times;
    const rooms = [device.nbytes, ...group_devices(trace.work.devices).map(([one]) => one.nbytes)];
    const named = [];
    return rooms.filter((nbytes, i) => nbytes < this.most && rooms.indexOf(nbytes) === i).flatMap((nbytes, i) => {
      const y = this.y(nbytes);
      const line = draw("path", { class: i ? "mm-tick" : "mm-limit", d: `M0 ${y}H${this.width}` });
      if (named.some((other) => Math.abs(other - y) < LEAST_GAP)) return [line];
      named.push(y);
      const words = `${i ? "" : `${device.name}, `}${format_room(nbytes)}`;
      return [line, draw("text", { x: this.width - 3, y: y - 3, "text-anchor": "end" }, words)];
    });
  }

  /** @param {Growth} growth @param {number} i */
  draw_growth(growth, i) {
    const { end } = this.shown;
    const color = `mm-line-${i % N_LINE_COLORS}`;
    const at = (size) => `${this.x(size).toFixed(1)} ${this.y(find_peak(growth, size)).toFixed(1)}`;
    const steps = Math.min(N_STEPS, end - 1);
    const sizes = Array.from({ length: steps + 1 }, (_, k) => Math.round(1 + k * (end - 1) / steps));
    const dots = growth.recorded.filter(([size]) => size <= end).map(([size, nbytes]) =>
      draw("circle", { class: color, cx: this.x(size), cy: this.y(nbytes), r: 3 }));
    if (!growth.highest.length) return dots;
    // Lines of equal peaks lie on each other.
    const line = draw("path", { class: color, d: `M${sizes.map(at).join("L")}`, "stroke-dasharray": i % 2 ? "6 5" : false });
    return [line, ...dots];
  }
}
