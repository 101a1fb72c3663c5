// What code does beside calling modules: small functions that lead on to each other, and
// loops, fold into boxes named by what is in them. Touches no document.

import { shorten_op } from "../dom.js";
import { adopt, make_item, walk } from "./items.js";
import { find_repeated } from "./patterns.js";

const MATTERS = /mm|mv|dot|conv|attention|rnn|lstm|gru|backward/; // products; and where autograd begins
const FEW_NAMES = 5; // each of which is told
const MANY_STEPS = 24; // of a loop: fewer are shown each

/** @typedef {import("./items.js").Item} Item */
/** @typedef {import("./values.js").Values} Values */

/** Whether what an operator does is seen without it: it is no product, and has no parameters. */
const is_small = ({ trace, reads }, op) => !trace.is_raised(op)
  && !MATTERS.test(`${trace.signature(op).op} ${trace.place(op).function}`)
  && !reads[op].some(({ storage }) => trace.owner_of_storage.has(storage));

/** What is told of some steps. */
function name_steps(steps, trace) {
  const name = ({ op, title, module }) =>
    title || (trace.modules[module]?.class_name ?? shorten_op(trace.signature(op).op));
  const names = [...new Set(steps.map(name))];
  if (names.length > FEW_NAMES) names.splice(2, names.length - 3, "…");
  return names.join(", ");
}

const box_up = (kind, title, items) => adopt(make_item(kind, null, { title, items }));

/** What items that repeat have in common: their names, and the shapes of what they make. */
function find_likeness(item, trace) {
  if (item.kind === "module") return trace.modules[item.module].likeness;
  if (item.kind !== "op") return item.kind === "function" ? item.items.map((one) => find_likeness(one, trace)).join() : NaN;
  const { op, outputs } = trace.signature(item.op);
  return `${item.title} ${op} ${outputs.map(({ shape }) => shape).join(";")}`;
}

/**
 * Fold what a loop did again and again: its first turn, and the rest.
 * @param {Item[]} items of a box @param {import("../data.js").TraceView} trace @returns {Item[]}
 */
export function fold_loops(items, trace) {
  if (items.length < MANY_STEPS) return items;
  const folded = [...items];
  const siblings = items.map((item) => ({ likeness: find_likeness(item, trace), name: "0", n_params: 0 }));
  for (const { first, period, n } of find_repeated(siblings).reverse()) {
    const is_called = period === 1 && items[first].kind === "module"; // told by its calls
    if (n * period < MANY_STEPS || is_called) continue;
    const steps = items.slice(first, first + n * period);
    const name = name_steps(steps.slice(0, period), trace);
    const tell = (times) => `${times} × ${period > 1 ? `(${name})` : name}`;
    const [turn, ...others] = Array.from({ length: n }, (_, i) => (period > 1
      ? box_up("turn", name, steps.slice(i * period, (i + 1) * period)) : steps[i]));
    folded.splice(first, n * period, box_up("run", tell(n), [turn, box_up("run", tell(n - 1), others)]));
  }
  return folded;
}

/**
 * Fold the steps between modules; one at which two wires meet, as the sum of a residual,
 * stays, and so does what takes much.
 * @param {Item[]} items of a box @param {Values} values @returns {Item[]}
 */
export function fold_steps(items, values) {
  const is_step = ({ kind }) => kind === "op" || kind === "function";
  if (items.every(is_step)) return items;
  const folds = new Map(); // by operator, of those since the last item that stays
  const found = [];
  for (const item of items) {
    const ops = walk(item).map(({ op }) => op).filter((op) => op >= 0);
    const read = new Set(ops.flatMap((op) => values.reads[op])
      .filter(({ maker, geometry: { shape } }) => !ops.includes(maker) && (maker >= 0 || shape.length)));
    const makers = [...read].map(({ maker }) => folds.get(maker));
    const [fold, ...others] = new Set(makers.filter(Boolean));
    const n_met = makers.filter((made) => !made).length + Number(Boolean(fold));
    if (!is_step(item) || n_met > 1 || !ops.every((op) => is_small(values, op))) {
      folds.clear();
      found.push([item]);
      continue;
    }
    const joined = fold ?? [];
    joined.push(...others.flatMap((other) => other.splice(0)), item);
    if (!fold) found.push(joined);
    for (const { op } of joined.flatMap((one) => walk(one))) folds.set(op, joined);
  }
  return found.filter(({ length }) => length).map((steps) => (steps.length === 1 ? steps[0]
    : box_up("steps", name_steps(steps, values.trace), steps)));
}
