// The values of a small tensor, which a running kernel computes on request.

import { show_answer } from "../asking.js";
import { draw, make } from "../dom.js";
import { make_section } from "./parts.js";

/**
 * @typedef {{facts?: [string, string][], first?: string,
 *   bins?: {counts: number[], low: string, high: string}}} ShownValues
 * @typedef {{op: number, slot: number}} Slot a tensor among those of an operator
 * @typedef {(slot: Slot) => Promise<any>} Ask
 */

/** Elements of the largest tensor that is shown, as in `view/answers.py`. */
const MOST_VALUES = 100_000;
const BARS = { width: 240, height: 48 };

/** Draw a histogram. @param {NonNullable<ShownValues["bins"]>} bins */
function draw_histogram({ counts, low, high }) {
  const most = Math.max(...counts);
  const { width, height } = BARS;
  const step = width / counts.length;
  const bars = counts.map((n, i) => draw("rect", {
    x: i * step, width: step - 1, y: height * (1 - n / most), height: height * n / most,
  }));
  const graph = draw("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", preserveAspectRatio: "none",
    "aria-label": `Histogram from ${low} to ${high}`,
  }, ...bars);
  return make("figure", { class: "mm-histogram" }, graph,
    make("figcaption", {}, make("span", {}, low), make("span", {}, high)));
}

/** The elements that show an answer of the kernel. @param {ShownValues} answer @returns {(Node | string)[]} */
function show_values({ facts = [], first, bins }) {
  return [bins ? draw_histogram(bins) : "",
    make("dl", {}, ...[...facts, ["first", first]].flatMap(([term, value]) =>
      [make("dt", {}, term), make("dd", {}, value)]))];
}

/**
 * A button that asks for values; nothing where there are none.
 * @param {Ask} ask @param {Slot | null} slot @param {number[]} shape
 */
export function make_values(ask, slot, shape) {
  const numel = shape.reduce((a, b) => a * b, 1);
  if (!slot || !numel) return false;
  if (numel > MOST_VALUES) {
    const words = `shown of tensors of up to ${MOST_VALUES.toLocaleString("en")} elements`;
    return make_section("Values", [["", words]]);
  }
  const answer = make("div", { class: "mm-values", role: "status" });
  const button = make("button", {
    type: "button", class: "mm-button",
    onclick: async () => {
      button.disabled = true;
      await show_answer(answer, "computing…", ask(slot), show_values);
      button.disabled = false;
    },
  }, "Compute values");
  return make("div", {}, make("div", { class: "mm-caption" }, "Values at the end"), button, answer);
}
