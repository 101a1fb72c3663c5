// The one thing that is selected, in all views at once.

/**
 * @typedef {{kind: "op" | "module" | "line" | "tensor" | "parameter", index: number}} Selected
 *   an operator, a module, a line of the cell, a tensor, or a parameter, buffer or attribute
 *   by its number among the tensors of all modules
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
   * Be told of each selection.
   * @param {(selected: Selected | null, source: object | null) => void} listener
   */
  subscribe(listener) {
    this.#listeners.add(listener);
  }
}
