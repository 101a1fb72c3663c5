// The collectives of the recorded process. No DOM, so that node can test it.
// `view/payload.py` writes its input.

import { PHASES, undo_columns, undo_steps } from "../data.js";
import { format_bytes } from "../dom.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{size: number, rank: number, per_node: number, ops: number[], calls: number[],
 *   sent: Record<string, any[]>, meshes: Mesh[]}} PackedWorld as `view/payload.py` writes it
 * @typedef {{dims: [string, number[]][], rows: [string, number, number, number][]}} Mesh
 *   `dims`: name of each dimension, and the ranks that this process has there; `rows`: how tensors lie
 *   on it, how many, bytes on this rank and in all
 * @typedef {{op: number, kind: string, ranks: string, n_ranks: number, n_nodes: number,
 *   peer: number, nbytes: number, dtype: string, reduce: string}} Sent
 *   a collective; `op`: its operator; `n_nodes`: how many machines it spans; `peer`: or -1
 * @typedef {{name: string, all: Sent[], nbytes: number}} SentGroup collectives that have something in common
 */

/** @param {PackedWorld} world @returns {Sent[]} */
export function read_sent({ ops, calls, sent }) {
  const facts = undo_columns(sent);
  return [...undo_steps(ops)].map((op, i) => ({ op, ...facts[calls[i]] }));
}

/** Collectives by a name, the most bytes first. @param {Sent[]} sent @param {(one: Sent) => string} name_of @returns {SentGroup[]} */
export function group_sent(sent, name_of) {
  /** @type {Map<string, Sent[]>} */
  const groups = new Map();
  for (const one of sent) {
    const name = name_of(one);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(one);
  }
  return [...groups].map(([name, all]) => (
    { name, all, nbytes: all.reduce((sum, { nbytes }) => sum + nbytes, 0) }
  )).sort((a, b) => b.nbytes - a.nbytes);
}

/** The line of the cell, or of a script, in which an operator was called. @param {TraceView} trace @param {number} op */
export function name_line(trace, op) {
  const { line, file, start } = trace.site(op);
  if (line && trace.source) return `line ${line}`;
  return file ? `${file.split(/[\\/]/).at(-1)}:${start}` : "no line";
}

/** The processes that take part, as text. @param {Sent} one */
export const describe_ranks = ({ ranks, peer, kind }) =>
  (peer < 0 ? `ranks ${ranks}` : `${kind === "recv" ? "from" : "to"} rank ${peer}`);

/** A collective in words. @param {TraceView} trace @param {Sent} one */
export function describe_sent(trace, one) {
  const { fqn, name } = trace.modules[trace.op_module[one.op]] ?? {};
  const module = fqn || name;
  return [
    `#${one.op} ${one.kind}`, `${format_bytes(one.nbytes)} ${one.dtype}`, one.reduce, describe_ranks(one),
    one.n_nodes > 1 && `${one.n_nodes} nodes`, module && `in ${module}`,
    PHASES[trace.site(one.op).phase], name_line(trace, one.op),
  ].filter(Boolean).join(" · ");
}

/** The one that is nearest to an operator; -1 if there is none. @param {Sent[]} sent @param {number} op */
export const find_nearest = (sent, op) => sent.reduce((found, one, i) =>
  (found < 0 || Math.abs(one.op - op) < Math.abs(sent[found].op - op) ? i : found), -1);

/**
 * The ranks of a mesh with their places in it, the last dimension first: each lies as far from this rank
 * as the steps along the dimensions add up to.
 * @param {Mesh["dims"]} dims @param {number} own @returns {{number: number, at: number[]}[]}
 */
export const list_ranks = (dims, own) => dims.reduce((found, [, ranks]) => found.flatMap(({ number, at }) =>
  ranks.map((rank, i) => ({ number: number + rank - own, at: [...at, i] }))), [{ number: own, at: [] }]);
