// Steps of code between calls of modules: chains of small functions, and loops, are folded
// into boxes named after their content. No DOM.

import { shorten_op } from "../dom.js";
import { adopt, make_item, walk } from "./items.js";
import { find_repeated } from "./patterns.js";

const PRODUCTS = /mm|mv|dot|conv|attention|rnn|lstm|gru/; // by the names of operators
const FEW_NAMES = 5; // each of which is shown
const MANY_STEPS = 24; // of a loop: fewer are shown each

/** @typedef {import("./items.js").Item} Item */

const is_step = ({ kind }) => kind === "op" || kind === "function";

const box_up = (kind, title, items) => adopt(make_item(kind, null, { title, items }));

/** Folds the items of boxes. */
export class Folder {
  /** By signature, numbers that are equal for the same operators that make the same shapes. */
  #likenesses = [];

  /** @param {import("./values.js").Values} values @param {boolean} has_functions */
  constructor({ trace, reads }, has_functions) {
    this.trace = trace;
    this.reads = reads;
    this.has_functions = has_functions;
    const known = new Map();
    /** By signature and by call site: whether what ran there is shown, however small. */
    this.is_product = trace.signatures.map(({ op }) => PRODUCTS.test(op));
    this.is_begin = trace.call_sites.map((site) => site.function.endsWith("backward"));
    this.#likenesses = trace.signatures.map(({ op, outputs }) => {
      const key = `${op} ${outputs.map(({ shape }) => shape).join(";")}`;
      return known.get(key) ?? known.set(key, known.size + 1).size;
    });
  }

  /**
   * Return the items of a box, with repeated and small steps folded.
   * @param {Item[]} items @param {boolean} is_module whether it is a module's box @returns {Item[]}
   */
  fold(items, is_module) {
    const folded = items.length < MANY_STEPS ? items : this.#fold_loops(items);
    return this.has_functions && !folded.every(is_step) ? this.#fold_steps(folded, is_module) : folded;
  }

  /** The label of some steps. */
  #name(steps) {
    const { modules } = this.trace;
    const names = [...new Set(steps.map(({ op, title, module }) =>
      title || (modules[module]?.class_name ?? shorten_op(this.trace.signature(op).op))))];
    if (names.length > FEW_NAMES) names.splice(2, names.length - 3, "…");
    return names.join(", ");
  }

  /** A key that is equal for items that repeat. */
  #find_likeness({ kind, op, module, items }) {
    if (kind === "module") return this.trace.modules[module].likeness;
    if (kind === "op") return -1 - this.#likenesses[this.trace.op_signature[op]];
    return kind === "function" ? items.map((item) => this.#find_likeness(item)).join() : NaN;
  }

  /** Fold the turns of a loop into its first turn and the rest. */
  #fold_loops(items) {
    const folded = [...items];
    const siblings = items.map((item) => ({ likeness: this.#find_likeness(item), name: "0", n_params: 0 }));
    for (const { first, period, n } of find_repeated(siblings).reverse()) {
      const is_called = period === 1 && items[first].kind === "module"; // named by its calls
      if (n * period < MANY_STEPS || is_called) continue;
      const steps = items.slice(first, first + n * period);
      const name = this.#name(steps.slice(0, period));
      const name_turns = (times) => `${times} × ${period > 1 ? `(${name})` : name}`;
      const [turn, ...others] = Array.from({ length: n }, (_, i) => (period > 1
        ? box_up("turn", name, steps.slice(i * period, (i + 1) * period)) : steps[i]));
      folded.splice(first, n * period, box_up("run", name_turns(n), [turn, box_up("run", name_turns(n - 1), others)]));
    }
    return folded;
  }

  /** Whether an operator may be folded: it is no product, and reads no parameters. */
  #is_small = (op) => !this.is_product[this.trace.op_signature[op]]
    && !this.is_begin[this.trace.op_site[op]] && !this.trace.is_raised(op)
    && !this.reads[op].some(({ storage }) => this.trace.owner_of_storage.has(storage));

  /** The makers of the values that operators read from elsewhere, each value once. */
  #list_makers(ops) {
    const read = new Set(ops.flatMap((op) => this.reads[op]));
    return [...read].filter(({ maker, geometry: { shape } }) =>
      !ops.includes(maker) && (maker >= 0 || shape.length)).map(({ maker }) => maker);
  }

  /**
   * Fold the steps between modules; one that two wires reach, as the sum of a residual,
   * stays, and so does what is not small.
   */
  #fold_steps(items, is_module) {
    const folds = new Map(); // by operator, of those since the last item that stays
    const found = [];
    for (const item of items) {
      const ops = item.kind === "op" ? [item.op] : item.items.map(({ op }) => op);
      const is_foldable = is_step(item) && ops.every(this.#is_small);
      const makers = is_foldable ? this.#list_makers(ops).map((maker) => folds.get(maker)) : [];
      const [fold, ...others] = new Set(makers.filter(Boolean));
      const n_wires = makers.filter((made) => !made).length + Number(Boolean(fold));
      if (!is_foldable || n_wires > 1) {
        folds.clear();
        found.push([item]);
        continue;
      }
      const joined = fold ?? [];
      if (!fold) found.push(joined);
      const more = [...others.flatMap((other) => other.splice(0)), item];
      joined.push(...more);
      for (const { op } of more.flatMap((one) => walk(one))) folds.set(op, joined);
    }
    if (is_module) this.#join_sides(found, new Set(items.flatMap((item) => walk(item)).map(({ op }) => op)));
    return found.filter(({ length }) => length).map((steps) =>
      (steps.length === 1 ? steps[0] : box_up("steps", this.#name(steps), steps)));
  }

  /**
   * Join the steps that compute masks and positions: of integers from outside of a box alone.
   * What only views them, such as token ids, stays.
   * @param {Item[][]} found @param {Set<number>} inside the operators of the box
   */
  #join_sides(found, inside) {
    const made = new Set();
    let first = null;
    for (const steps of found) {
      const ops = steps.flatMap((one) => walk(one)).map(({ op }) => op).filter((op) => op >= 0);
      const is_side = steps.every(is_step) && ops.every((op) => this.#is_small(op)
        && this.reads[op].every(({ maker, geometry: { dtype } }) => ops.includes(maker) || made.has(maker)
          || ((maker < 0 || !inside.has(maker)) && /int|bool/.test(dtype))));
      if (!is_side || ops.every((op) => this.trace.signature(op).views.every((base) => base >= 0))) continue;
      for (const op of ops) made.add(op);
      if (first) first.push(...steps.splice(0));
      else first = steps;
    }
  }
}
