// What a roofline shows: operators by what they compute for each byte. Touches no document,
// so that node can test it.

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
 * The operators that take time, the longest first.
 * @param {import("../data.js").TraceView} trace @param {import("../times.js").Times} times
 */
export function list_dots(trace, times) {
  const first = trace.signatures.map(() => -1);
  const n_calls = trace.signatures.map(() => 0);
  trace.op_signature.forEach((signature, op) => {
    if (!n_calls[signature]) first[signature] = op;
    n_calls[signature] += 1;
  });
  /** @type {Map<string, Dot>} */
  const dots = new Map();
  trace.signatures.forEach(({ op: name }, signature) => {
    const [one, n] = [times.works[signature], n_calls[signature]];
    const seconds = n * times.each[signature];
    if (!seconds) return;
    const op = shorten_op(name);
    const key = `${op} ${one.kind}`;
    if (!dots.has(key)) {
      dots.set(key, {
        op, kind: one.kind, signatures: [], n_calls: 0, seconds: 0, waiting: 0, work: 0, nbytes: 0,
        longest: first[signature],
      });
    }
    const dot = dots.get(key);
    dot.signatures.push(signature);
    dot.n_calls += n;
    dot.seconds += seconds;
    if (waits_for_memory(one, times.device)) dot.waiting += seconds;
    dot.work += n * (one.products || one.elementwise);
    dot.nbytes += n * one.nbytes;
    if (times.each[signature] > times.of_op(dot.longest)) dot.longest = first[signature];
  });
  return [...dots.values()].sort((a, b) => b.seconds - a.seconds);
}

/** Whether an operator has a place in a roofline. @param {Dot} dot */
export const has_place = ({ work, nbytes }) => work > 0 && nbytes > 0;

/**
 * The roofs over some operators, the highest first; those of one height are one.
 * @param {Dot[]} dots @param {import("../rooflines.js").Device} device @returns {Roof[]}
 */
export function list_roofs(dots, { peaks, vectors }) {
  /** @type {Map<number, string[]>} */
  const names = new Map();
  for (const { kind } of dots) {
    const [name, flops] = kind < 0 ? ["elementwise", vectors] : peaks[kind];
    const met = names.get(flops) ?? [];
    if (flops && !met.includes(name)) names.set(flops, [...met, name]);
  }
  return [...names].map(([flops, met]) => ({ name: met.join(", "), flops }))
    .sort((a, b) => b.flops - a.flops);
}

/** The whole decades around some numbers. @param {number[]} numbers @returns {Decades} */
export function find_decades(numbers) {
  const logs = numbers.map(Math.log10);
  const from = Math.floor(Math.min(...logs));
  return { from, to: Math.max(from + 1, Math.ceil(Math.max(...logs))) };
}
