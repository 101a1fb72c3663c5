// The live storages over time, computed once for all views of a trace. No DOM.

import { add_up_lives, read_lives } from "./memory/lives.js";

/**
 * @typedef {import("./memory/lives.js").Life} Life
 * @typedef {{lives: Life[], by_storage: Map<number, Life[]>, totals: Float64Array}} LiveBytes
 *   `totals`: bytes after each operator, on all devices
 */

/** @type {WeakMap<import("./data.js").TraceView, LiveBytes>} */
const KNOWN = new WeakMap();

/** The live storages of a trace over time. @param {import("./data.js").TraceView} trace @returns {LiveBytes} */
export function find_live(trace) {
  if (!KNOWN.has(trace)) {
    const lives = read_lives(trace);
    const by_storage = new Map();
    for (const life of lives) by_storage.set(life.storage, [...by_storage.get(life.storage) ?? [], life]);
    KNOWN.set(trace, { lives, by_storage, totals: add_up_lives(trace, lives, -1).totals });
  }
  return KNOWN.get(trace);
}

/** Bytes that a storage has after an operator. @param {import("./data.js").TraceView} trace @param {number} storage @param {number} op */
export const count_alive = (trace, storage, op) => (find_live(trace).by_storage.get(storage) ?? [])
  .reduce((sum, { start, stop, nbytes }) => (start <= op && op < stop ? sum + nbytes : sum), 0);
