// What code does between modules: small functions that lead on to each other fold into one
// box, named by them. Touches no document.

import { shorten_op } from "../dom.js";
import { adopt, make_item, walk } from "./items.js";

const MATTERS = /mm|mv|dot|conv|attention|rnn|lstm|gru|backward/; // products; and where autograd begins
const FEW_NAMES = 4; // each of which is told

/** @typedef {import("./items.js").Item} Item */
/** @typedef {import("./values.js").Values} Values */

/** Whether what an operator does is seen without it: it is no product, and has no parameters. */
const is_small = ({ trace, reads }, op) => !trace.is_raised(op)
  && !MATTERS.test(`${trace.signature(op).op} ${trace.place(op).function}`)
  && !reads[op].some(({ storage }) => trace.owner_of_storage.has(storage));

/** What is told of some steps. */
function name_steps(steps, trace) {
  const names = [...new Set(steps.map(({ op, title }) => title || shorten_op(trace.signature(op).op)))];
  if (names.length > FEW_NAMES) names.splice(2, names.length - 3, "…");
  return names.join(", ");
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
    : adopt(make_item("steps", null, { title: name_steps(steps, values.trace), items: steps }))));
}
