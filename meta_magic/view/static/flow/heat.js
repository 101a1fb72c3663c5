// Heat colours of boxes in the flow, by a chosen quantity. No DOM.

import { count_alive } from "../alive.js";
import { format_bytes, format_count, format_flops, format_seconds } from "../dom.js";
import { ESTIMATE } from "../times.js";
import { walk } from "./items.js";

const MOST_MIXED = 60; // percent of the hue in the hottest box: text on it can be read

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("./values.js").Values} Values
 * @typedef {import("../times.js").Times} Times
 * @typedef {{name: string, format: (n: number) => string, help?: string, has?: (values: Values) => boolean,
 *   list: (values: Values, op: number, last: number, times: Times) => [number | string, number][]}} Measure
 *   `list`: what an operator adds to a box that ends with the operator `last`, with a key:
 *   what has the same one in a box is counted once; `has`: whether there is any, where that is quicker
 */

/** The storages that an operator made, each with its bytes. @param {Values} values @param {number} op */
const list_new = ({ makes }, op) => makes[op].filter(({ kind }) => kind === "new");

/** The quantities that colour boxes. @type {Record<string, Measure>} */
const MEASURES = {
  flops: {
    name: "FLOPs", format: format_flops,
    list: ({ trace }, op) => [[op, Math.max(0, trace.signature(op).flops)]],
  },
  time: {
    name: "time", format: format_seconds, help: `Seconds ${ESTIMATE}. `,
    list: (_, op, last, times) => [[op, times.of_op(op)]],
  },
  made: {
    name: "bytes of new tensors", format: format_bytes,
    list: (values, op) => list_new(values, op).map(({ storage, geometry }) => [storage, geometry.nbytes]),
  },
  kept: {
    name: "memory kept", format: format_bytes,
    has: ({ trace }) => trace.memory.sizes.some(Boolean),
    help: "Bytes of new tensors that are alive at the end of the box. ",
    list: (values, op, last) => list_new(values, op)
      .map(({ storage }) => [storage, count_alive(values.trace, storage, last)]),
  },
  held: {
    name: "bytes of parameters", format: format_bytes,
    list: ({ reads, trace }, op) => reads[op]
      .filter(({ storage }) => trace.owner_of_storage.has(storage))
      .map(({ storage, geometry }) => [storage, geometry.nbytes]),
  },
};

/** The measures of which a trace has numbers, by name. @param {Values} values @param {Times} times */
export function list_measures(values, times) {
  const has_any = (/** @type {Measure} */ { list, has }) => has?.(values)
    ?? values.reads.some((_, op) => list(values, op, op, times).some(([, amount]) => amount > 0));
  return Object.entries(MEASURES).filter(([, measure]) => has_any(measure))
    .map(([key, { name }]) => [key, name]);
}

/** The heat of boxes by one measure; the hottest that is shown has the deepest colour. */
export class Heat {
  /** Of what is shown. */
  most = 0;
  /** @type {Map<Item, number>} */ #counted = new Map();

  /** @param {Values} values @param {string} key of a measure @param {Times} [times] */
  constructor(values, key, times) {
    this.values = values;
    this.times = times;
    this.measure = MEASURES[key];
  }

  /** The quantity of an item with all in it. @param {Item} item */
  count(item) {
    if (!this.#counted.has(item)) {
      const amounts = new Map();
      for (const { op } of walk(item)) {
        for (const [key, amount] of op < 0 ? [] : this.measure.list(this.values, op, item.last_op, this.times)) {
          amounts.set(key, Math.max(amount, amounts.get(key) ?? 0));
        }
      }
      this.#counted.set(item, [...amounts.values()].reduce((sum, amount) => sum + amount, 0));
    }
    return this.#counted.get(item);
  }

  /** The same, as text. @param {Item} item */
  format(item) {
    return this.measure.format(this.count(item));
  }

  /** The text under the name of a closed box. @param {Item} item */
  describe(item) {
    const taken = this.count(item) ? `${this.format(item)} · ` : ""; // or none that is known
    return `${taken}${format_count(item.n_ops)} op${item.n_ops === 1 ? "" : "s"}`;
  }

  /** Take the scale from what is shown and not open. @param {(Item | null)[]} items */
  scale(items) {
    const closed = items.filter((item) => item && !item.is_open);
    this.most = closed.reduce((most, item) => Math.max(most, this.count(item)), 0);
  }

  /** Percent of the hue in an item's colour. @param {Item} item */
  mix(item) {
    return Math.round((MOST_MIXED * this.count(item)) / (this.most || 1));
  }
}

/** The heat by a measure; null where none is chosen. @param {Values} values @param {string} key @param {Times} times */
export const make_heat = (values, key, times) => (key in MEASURES ? new Heat(values, key, times) : null);
