// The shapes that modules return, in the order in which they are called. Touches no
// document, so that node can test it.

import { list_path } from "../data.js";

const FEW_STRETCHES = 8; // so many say what a model is made of
const MOST_STRETCHES = 24; // so many names have room below a chart

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {import("../data.js").Call} Call
 * @typedef {{start: number, end: number, value: any}} Plateau steps, `end` not included
 */

/**
 * The calls of modules that call no others, each with what it returned. Of an outermost
 * module the first call is enough: the steps of a loop look alike.
 * @param {TraceView} trace @returns {Call[]}
 */
export function list_steps({ calls }) {
  const callers = new Set(calls.map(({ parent }) => parent));
  const seen = new Set();
  const is_kept = [];
  return calls.filter(({ index, parent, module, outputs }) => {
    is_kept[index] = parent < 0 ? !seen.has(module) : is_kept[parent];
    if (parent < 0 && module >= 0) seen.add(module);
    return is_kept[index] && outputs.length && !callers.has(index);
  });
}

/** Neighbours that are equal, as one each. @param {any[]} values @returns {Plateau[]} */
export function find_plateaus(values) {
  /** @type {Plateau[]} */
  const plateaus = [];
  values.forEach((value, i) => {
    const before = plateaus.at(-1);
    if (before && before.value === value) before.end = i + 1;
    else plateaus.push({ start: i, end: i + 1, value });
  });
  return plateaus;
}

/**
 * For each dimension the sizes that it has, step by step; none where there is no such.
 * @param {Call[]} steps @returns {Plateau[][]}
 */
export function list_dimensions(steps) {
  const shapes = steps.map(({ outputs: [{ geometry }] }) => geometry.shape);
  const n = shapes.reduce((most, { length }) => Math.max(most, length), 0);
  return Array.from({ length: n }, (_, dim) =>
    find_plateaus(shapes.map((shape) => shape[dim])).filter(({ value }) => value !== undefined));
}

/**
 * What the steps are in: as deep as is needed to say what a model is made of.
 * @param {TraceView} trace @param {Call[]} steps
 * @returns {{start: number, end: number, name: string}[]}
 */
export function find_stretches(trace, steps) {
  const paths = steps.map(({ module }) => list_path(trace, module).reverse());
  const deepest = paths.reduce((most, { length }) => Math.max(most, length), 0);
  let found = [];
  for (let level = 0; level < deepest && found.length < FEW_STRETCHES; level += 1) {
    const next = find_plateaus(paths.map((path) => path[Math.min(level, path.length - 1)] ?? -1));
    if (level && next.length > MOST_STRETCHES) break;
    found = next;
  }
  return found.map(({ start, end }) => {
    // All of the stretch may be in one that lies deeper.
    const shared = paths[start].findLast((module, i) =>
      paths.slice(start, end).every((path) => path[i] === module));
    const { fqn, name } = trace.modules[shared] ?? {};
    return { start, end, name: fqn || name || "" };
  });
}

/** @typedef {{text: string, x: number, y: number, room: number}} Label */

/**
 * Whether a label has room beside those that were placed.
 * @param {Label[]} kept @param {Label} label @param {(text: string) => number} measure pixels of a text
 */
export function has_room(kept, label, measure) {
  const w = measure(label.text);
  return w <= label.room && kept.every(({ text, x, y }) => Math.abs(y - label.y) > 11
    || x > label.x + w + 4 || label.x > x + measure(text) + 4);
}

/**
 * The labels that have room, beside none that was placed before.
 * @param {Label[]} labels @param {(text: string) => number} measure pixels of a text
 */
export function choose_labels(labels, measure) {
  /** @type {Label[]} */
  const kept = [];
  for (const label of labels) if (has_room(kept, label, measure)) kept.push(label);
  return kept;
}
