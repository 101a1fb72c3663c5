// The selected item, which all views share.

import { find_holder } from "./data.js";

/**
 * @typedef {{kind: "op" | "module" | "line" | "tensor" | "parameter", index: number,
 *   dim?: number}} Selected
 *   an operator, a module, a line of the cell, a tensor, or a parameter, buffer or attribute
 *   by its number among the tensors of all modules; `dim`: the
 *   dimension of a tensor whose size is to be explained
 */

export class Selection {
  /** @type {Set<(selected: Selected | null, source: object | null) => void>} */
  #listeners = new Set();

  /** @type {Selected | null} */
  current = null;

  /**
   * Select something; every view hears of it.
   * @param {Selected | null} selected
   * @param {object | null} source the view that did it, which need not follow
   */
  select(selected, source = null) {
    this.current = selected;
    for (const listener of this.#listeners) listener(selected, source);
  }

  /**
   * Call a listener at each selection.
   * @param {(selected: Selected | null, source: object | null) => void} listener
   */
  subscribe(listener) {
    this.#listeners.add(listener);
  }
}

/**
 * The module that a selection is about, or -1.
 * @param {import("./data.js").TraceView} trace @param {Selected | null} selected
 */
export function find_module(trace, selected) {
  const { kind, index } = selected ?? {};
  if (kind === "parameter") return find_holder(trace, index);
  return { module: index, op: trace.op_module[index] }[kind] ?? -1;
}
