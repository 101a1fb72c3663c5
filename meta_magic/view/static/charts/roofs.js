// The points of a roofline: operators by their operations for each byte. No DOM, so that node
// can test it.

import { shorten_op } from "../dom.js";
import { waits_for_memory } from "../rooflines.js";

/**
 * @typedef {{op: string, kind: number, signatures: number[], n_calls: number, seconds: number,
 *   waiting: number, work: number, nbytes: number, longest: number}} Dot
 *   all calls of an operator whose products are of one kind, or that has none. `work`:
 *   operations; `waiting`: seconds of calls that wait for the memory; `longest`: a call
 *   that takes longest
 * @typedef {{name: string, flops: number}} Roof what a device computes in a second at most
 * @typedef {{from: number, to: number}} Decades powers of ten
 */

/**
 * The operators whose time is counted, the longest first.
 * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
 */
export function list_dots({ signatures, op_signature }, { works, each, device, has }) {
  const calls = signatures.map(() => []);
  op_signature.forEach((signature, op) => has(op) && calls[signature].push(op));
  /** @type {Record<string, Dot>} */
  const dots = {};
  // The longest first, so that its call becomes `longest`.
  for (const i of [...each.keys()].sort((a, b) => each[b] - each[a])) {
    const [n, op, { kind, products, elementwise, nbytes }] = [calls[i].length, shorten_op(signatures[i].op), works[i]];
    if (!n || !each[i]) continue;
    const dot = dots[`${op} ${kind}`] ??= {
      op, kind, signatures: [], n_calls: 0, seconds: 0, waiting: 0, work: 0, nbytes: 0, longest: calls[i][0],
    };
    dot.signatures.push(i);
    dot.n_calls += n;
    dot.seconds += n * each[i];
    dot.waiting += waits_for_memory(works[i], device) ? n * each[i] : 0;
    dot.work += n * (products || elementwise);
    dot.nbytes += n * nbytes;
  }
  return Object.values(dots).sort((a, b) => b.seconds - a.seconds);
}

/** Whether an operator can be drawn in a roofline. @param {Dot} dot */
export const has_rate = ({ work, nbytes }) => work > 0 && nbytes > 0;

/**
 * The roofs over some operators, the highest first; those of one height are one.
 * @param {Dot[]} dots @param {import("../rooflines.js").Device} device @returns {Roof[]}
 */
export function list_roofs(dots, { peaks, vectors }) {
  /** @type {Map<number, Set<string>>} */
  const names = new Map();
  for (const { kind } of dots) {
    const [name, flops] = kind < 0 ? ["elementwise", vectors] : peaks[kind];
    if (flops) names.set(flops, (names.get(flops) ?? new Set()).add(name));
  }
  return [...names].map(([flops, named]) => ({ name: [...named].join(", "), flops }))
    .sort((a, b) => b.flops - a.flops);
}

/** The whole decades around some numbers. @param {number[]} numbers @returns {Decades} */
export function find_decades(numbers) {
  const logs = numbers.map(Math.log10);
  const from = Math.floor(Math.min(...logs));
  return { from, to: Math.max(from + 1, Math.ceil(Math.max(...logs))) };
}
