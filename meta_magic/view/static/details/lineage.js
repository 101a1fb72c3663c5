// Which operators make, read, write and free each tensor. Built on first use: a large trace
// has 100,000 tensors. No DOM.

import { PHASES, find_holder, undo_steps } from "../data.js";
import { shorten_op } from "../dom.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {import("../data.js").Operator} Operator
 * @typedef {{id: number, storage: number, geometry: import("../data.js").Geometry,
 *   maker: number, base: number, readers: number[], writers: number[], views: number[],
 *   freed: number}} TensorStory
 *   numbers of operators, of tensors (`base`, `views`). `maker`: or -1 if it came from
 *   outside; `base`: what it is a view of, or -1; `writers`: of its storage, after it was
 *   made; `freed`: the last operator before its storage was freed, or -1
 * @typedef {{storage: number, readers: number[], writers: number[], tensors: number[],
 *   freed: number}} StorageStory
 * @typedef {{module: number, tensor: import("../data.js").OwnTensor, storage: number,
 *   fqn: string}} Owned a parameter, buffer or attribute of a module
 */

const BEFORE_USE = ["init", "other"].map((phase) => PHASES.indexOf(phase));
const EMPTY_OP = /^aten\.(new_)?empty/;

/** Which operators touch each storage, as one list and where each part of it begins. */
function index_storages(/** @type {TraceView} */ { n_ops, op_start, op_tensors, storage_of_tensor }) {
  const starts = new Int32Array(storage_of_tensor.reduce((most, n) => Math.max(most, n), -1) + 2);
  const visit = (see) => {
    const latest = new Int32Array(starts.length).fill(-1);
    for (let op = 0; op < n_ops; op += 1) {
      for (let at = op_start[op]; at < op_start[op + 1]; at += 1) {
        const storage = storage_of_tensor[op_tensors[at]];
        if (latest[storage] !== op) see(storage, op);
        latest[storage] = op;
      }
    }
  };
  visit((storage) => { starts[storage + 1] += 1; });
  for (let i = 1; i < starts.length; i += 1) starts[i] += starts[i - 1];
  const ops = new Int32Array(starts[starts.length - 1]);
  const ends = starts.slice();
  visit((storage, op) => { ops[ends[storage]++] = op; });
  return { starts, ops };
}

export class Lineage {
  #index = null;
  #deaths = null;
  #storages = null;

  /** @param {TraceView} trace */
  constructor(trace) {
    this.trace = trace;
  }

  /** The operators that touch a storage, in order. @param {number} storage @returns {Operator[]} */
  events(storage) {
    this.#index ??= index_storages(this.trace);
    const { starts, ops } = this.#index;
    return [...ops.subarray(starts[storage], starts[storage + 1])].map((op) => this.trace.op(op));
  }

  /** The last operator before a storage was freed, or -1. @param {number} storage */
  find_death(storage) {
    if (!this.#deaths) {
      const { n_ops, storage: storages } = this.trace.details.deaths;
      const counts = undo_steps(n_ops);
      this.#deaths = new Map([...undo_steps(storages)].map((number, i) => [number, counts[i] - 1]));
    }
    return this.#deaths.get(storage) ?? -1;
  }

  /** What happened to a tensor. @param {number} id @returns {TensorStory} */
  tensor(id) {
    const storage = this.trace.storage_of_tensor[id];
    /** @type {TensorStory} */
    const story = {
      id, storage, geometry: null, maker: -1, base: -1, readers: [], writers: [], views: [],
      freed: this.find_death(storage),
    };
    for (const op of this.events(storage)) add_event(story, op);
    return story;
  }

  /** What happened to all tensors of a storage. @param {number} storage @returns {StorageStory} */
  storage(storage) {
    const [readers, writers, tensors] = [[], [], new Set()];
    for (const { index, inputs, outputs, signature: { writes, views } } of this.events(storage)) {
      const is_here = (tensor) => tensor.storage === storage;
      if (writes.some((i) => is_here(inputs[i]))) writers.push(index);
      else if (inputs.some((t, i) => is_here(t) && !views.includes(i))) readers.push(index);
      for (const { id } of [...inputs, ...outputs].filter(is_here)) tensors.add(id);
    }
    return { storage, readers, writers, tensors: [...tensors], freed: this.find_death(storage) };
  }

  /**
   * Where a tensor of a storage is first used: an operator, and the index among its tensors.
   * @param {number} storage @param {(tensor: import("../data.js").TensorSeen) => boolean} is_it
   */
  find_slot(storage, is_it) {
    for (const { index, inputs, outputs } of this.events(storage)) {
      const slot = [...inputs, ...outputs].findIndex((tensor) =>
        tensor.storage === storage && is_it(tensor));
      if (slot >= 0) return { op: index, slot };
    }
    return null;
  }

  /** A parameter, by its number among all tensors of modules. @param {number} index @returns {Owned} */
  owned(index) {
    this.#storages ??= undo_steps(this.trace.details.storages);
    const module = this.trace.modules[find_holder(this.trace, index)];
    const tensor = module.tensors[index - module.first_tensor];
    const fqn = [module.fqn || module.name, tensor.name].filter(Boolean).join(".");
    return { module: module.index, tensor, storage: this.#storages[index] ?? -1, fqn };
  }

  /** The number of the parameter that has a storage, or -1. @param {number} storage */
  find_owned(storage) {
    const module = this.trace.modules[this.trace.owner_of_storage.get(storage) ?? -1];
    if (!module) return -1;
    const { first_tensor, tensors } = module;
    return tensors.findIndex((_, i) => this.owned(first_tensor + i).storage === storage)
      + first_tensor;
  }

  /**
   * The operators that gave a storage its first values: the last that wrote all of it before
   * it was used, and those that wrote a part of it since; none where they came from outside.
   * @param {number} storage
   */
  find_initial(storage) {
    /** @type {Operator[]} */
    let found = [];
    for (const op of this.events(storage)) {
      const { index, inputs, outputs, signature: { writes, views } } = op;
      if (!BEFORE_USE.includes(this.trace.site(index).phase)) break;
      const is_here = (tensor) => tensor.storage === storage;
      const written = writes.map((i) => inputs[i]).find(is_here);
      const made = outputs.find((tensor, i) => is_here(tensor) && views[i] < 0);
      if (!written && made) found = [op];
      const is_whole = written?.geometry.nbytes >= Math.max(0, ...[found[0]?.outputs[0]]
        .map((first) => first?.geometry.nbytes ?? 0));
      if (written) found = is_whole ? [op] : [...found, op];
    }
    return found;
  }
}

/** Add what an operator did with a tensor to its story. */
function add_event(/** @type {TensorStory} */ story, /** @type {Operator} */ op) {
  const { index, inputs, outputs, signature: { writes, views } } = op;
  const { id, storage } = story;
  const read = inputs.findIndex((tensor) => tensor.id === id);
  const made = outputs.findIndex((tensor) => tensor.id === id);
  const is_new = !story.geometry;
  story.geometry ??= inputs[read]?.geometry ?? outputs[made]?.geometry ?? null;
  if (is_new && made >= 0 && read < 0) {
    story.maker = index;
    story.base = inputs[views[made]]?.id ?? -1;
  }
  // Another name for it, as a parameter is, has no operator of its own.
  if (!story.geometry && outputs.some((tensor) => tensor.storage === storage)) {
    story.maker = story.maker < 0 ? index : story.maker;
  }
  if (!story.geometry || story.maker === index) return;
  const is_written = writes.some((i) => inputs[i].storage === storage);
  if (is_written) story.writers.push(index);
  const seen = outputs.filter((tensor, i) => tensor.id !== id && inputs[views[i]]?.id === id);
  story.views.push(...seen.map((tensor) => tensor.id).filter((n) => !story.views.includes(n)));
  const is_read = inputs.some((tensor, i) =>
    tensor.id === id && !writes.includes(i) && !views.includes(i));
  if (is_read) story.readers.push(index);
}

/** How an operator makes values, as text. @param {TraceView} trace @param {Operator} op */
export function name_values(trace, { index, signature: { op, args } }) {
  if (EMPTY_OP.test(op)) return "uninitialized";
  const [name, caller] = [shorten_op(op), trace.site(index).function.split(".").at(-1)];
  const what = `${name}(${args})`;
  return caller && caller !== name && caller.endsWith("_") ? `${caller}: ${what}` : what;
}
