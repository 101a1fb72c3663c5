// The live storages after each operator, by category and device. No DOM, so that node can
// test it. `view/payload.py` writes its input.

import { undo_steps } from "../data.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{categories: string[], places: string[], accelerator: string, storage: number[], start: number[],
 *   length: number[], nbytes: number[], sizes: number[], category: number[],
 *   place: number[]}} PackedLives as `view/payload.py` writes them
 * @typedef {{storage: number, nbytes: number, start: number, stop: number, category: number,
 *   place: number, op: number}} Life
 *   bytes that a storage has after the operators from `start` to `stop`, which is not
 *   included; `op`: that first used it
 * @typedef {{by_category: Float64Array[], totals: Float64Array, peak: number}} Series
 *   bytes after each operator; `peak`: the first operator after which they are most, or -1
 */

/** @param {TraceView} trace @returns {Life[]} */
export function read_lives({ memory, n_ops }) {
  const [storages, starts] = [undo_steps(memory.storage), undo_steps(memory.start)];
  /** @type {Life[]} */
  const lives = [];
  memory.length.forEach((length, i) => {
    const [storage, start] = [storages[i], starts[i]];
    const before = lives[i - 1];
    lives.push({
      storage, start, stop: length ? start + length : n_ops, nbytes: memory.sizes[memory.nbytes[i]],
      category: memory.category[i], place: memory.place[i],
      op: before?.storage === storage ? before.op : start,
    });
  });
  return lives;
}

/**
 * The bytes over time on a device, or on all.
 * @param {TraceView} trace @param {Life[]} lives @param {number} device or -1 @returns {Series}
 */
export function add_up_lives({ memory, n_ops }, lives, device) {
  const by_category = memory.categories.map(() => new Float64Array(n_ops + 1));
  for (const { nbytes, start, stop, category, place } of lives) {
    if (device >= 0 && place !== device) continue;
    by_category[category][start] += nbytes;
    by_category[category][stop] -= nbytes;
  }
  const totals = new Float64Array(n_ops);
  by_category.forEach((bytes) => {
    for (let op = 0, now = 0; op < n_ops; op += 1) totals[op] += bytes[op] = now += bytes[op];
  });
  return { by_category, totals, peak: find_most(totals, 0, n_ops) };
}

/** The first index of the largest of some numbers, or -1. @param {Float64Array} numbers */
export function find_most(numbers, from, to) {
  let most = -1;
  for (let i = from; i < to; i += 1) if (most < 0 || numbers[i] > numbers[most]) most = i;
  return most;
}

/**
 * The operators that a chart shows: all, or of each column of pixels those after which
 * most and least is alive, so that no peak is lost.
 * @param {Float64Array} totals @param {number} width pixels
 */
export function choose_ops(totals, width) {
  const n = totals.length;
  const n_columns = Math.max(1, Math.floor(width));
  if (n <= 2 * n_columns) return [...totals.keys()];
  const inverse = totals.map((total) => -total);
  const kept = [];
  for (let column = 0; column < n_columns; column += 1) {
    const [from, to] = [column, column + 1].map((i) => Math.floor(i * n / n_columns));
    const [a, b] = [find_most(totals, from, to), find_most(inverse, from, to)];
    kept.push(Math.min(a, b), ...a === b ? [] : [Math.max(a, b)]);
  }
  return kept;
}

/** Round bytes for the lines of a chart, two or three of them. @param {number} most */
export function choose_marks(most) {
  const step = 2 ** Math.floor(Math.log2(Math.max(2, most) / 2));
  const marks = [];
  for (let mark = step; mark <= most; mark += step) marks.push(mark);
  return marks;
}

/**
 * What is alive after an operator, by module and by line; -1 and 0 are outside of those.
 * @param {TraceView} trace @param {Life[]} lives @param {number} device or -1 @param {number} op
 */
export function list_live(trace, lives, device, op) {
  const by_module = new Map();
  const by_line = new Map();
  const add = (map, key, nbytes) => map.set(key, (map.get(key) ?? 0) + nbytes);
  for (const life of lives) {
    const { nbytes, start, stop, storage } = life;
    if (start > op || stop <= op || !nbytes || (device >= 0 && life.place !== device)) continue;
    add(by_module, trace.owner_of_storage.get(storage) ?? trace.op_module[life.op] ?? -1, nbytes);
    add(by_line, trace.site(life.op)?.line ?? 0, nbytes);
  }
  return { by_module, by_line };
}
