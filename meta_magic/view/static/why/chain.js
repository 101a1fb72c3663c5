// Where a size comes from: a chain of steps, saved with an explanation or sent by the kernel.

import { make } from "../dom.js";

/**
 * @typedef {{depth: number, value: number, text: string, line: number}} ChainStep
 *   a number and how it comes about, from the next ones that are deeper; `line`: of the cell, or 0
 * @typedef {{name: string, caveat: string, steps: ChainStep[]}} Chain
 *   `name`: what its first step is the size of; `caveat`: what is not known, or ""
 * @typedef {{op: number, slot: number, dim: number}} AskedSize
 *   a dimension of a tensor among those of an operator
 * @typedef {(line: number) => void} ShowLine
 * @typedef {(asked: AskedSize, call: string, draw_chain: (chain: Chain) => HTMLElement) => HTMLElement}
 *   MakeWhy makes an element that shows where a size comes from; `call`: the same in Python
 */

const DEEPER = 14; // pixels
const DEEPEST = 12; // that is indented further

/** A link to a line of the source. @param {number} line @param {ShowLine} show_line */
export const make_line_link = (line, show_line) => make("button", {
  type: "button", class: "mm-link", onclick: () => show_line(line),
}, `line ${line}`);

/** Shows where sizes come from: from the saved explanation, or else from the kernel. */
export class Whys {
  /**
   * @param {import("../data.js").TraceView} trace
   * @param {import("../details/lineage.js").Lineage} lineage
   * @param {MakeWhy} make_why @param {ShowLine} show_line
   */
  constructor(trace, lineage, make_why, show_line) {
    this.trace = trace;
    this.lineage = lineage;
    this.make_why = make_why;
    this.show_line = show_line;
  }

  /** A chain as a list; the numbers that a number comes from are indented below it. */
  draw_chain = (/** @type {Chain} */ { steps, caveat }) => make("div", {},
    make("ul", { class: "mm-chain" }, ...steps.map(({ depth, value, text, line }) =>
      make("li", { style: `margin-left: ${DEEPER * Math.min(depth, DEEPEST)}px` }, make("b", {}, `${value}`),
        ` = ${text} `, line ? make_line_link(line, this.show_line) : ""))), caveat);

  /** Why a tensor has the size of a dimension. @param {number} tensor @param {number} dim */
  explain(tensor, dim) {
    const { trace, lineage } = this;
    const { given = [], lineages = [] } = trace.explanation ?? {};
    const names = given.map((one) => one.tensor === tensor && name_size(one, dim));
    const saved = lineages.find(({ name }) => names.includes(name));
    if (saved) return this.draw_chain(saved);
    const slot = lineage.find_slot(trace.storage_of_tensor[tensor], ({ id }) => id === tensor);
    if (!slot) return make("p", {}, "no operator of this trace has it");
    const n_inputs = trace.signature(slot.op).inputs.length;
    const [side, i] = slot.slot < n_inputs ? ["inputs", slot.slot] : ["outputs", slot.slot - n_inputs];
    const call = `trace.why(trace.ops[${slot.op}].${side}[${i}], ${dim})`;
    return this.make_why({ ...slot, dim }, call, this.draw_chain);
  }
}

/** A dimension of what a failed call was given, as Python names it. @param {{name: string}} given @param {number} dim */
export const name_size = ({ name }, dim) => `dimension ${dim} of ${name}`;
