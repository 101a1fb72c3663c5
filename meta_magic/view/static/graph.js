// What flows where: the values of tensors, boxes in boxes, and the nets between the items
// of one box. Touches no document, so that node can test it.

import { PHASES } from "./data.js";
import { format_count, format_shape, shorten_dtype } from "./dom.js";

const FORWARD_PHASE = PHASES.indexOf("forward");
const OTHER_PHASE = PHASES.indexOf("other");
const MANY_ITEMS = 150; // items: a box with more is cut into parts
const PART_SIZE = 100; // items
const FEW_SOURCES = 3; // tensors of one kind, each shown alone
const MAX_INPUTS = 8; // from outside, which are led to their readers
const SOURCES = /** @type {const} */ (["flow", "outside", "saved", "parameter"]);
const OUTSIDE = SOURCES.indexOf("outside");

/**
 * @typedef {number | Box} Item an operator, or a box of operators
 * @typedef {{kind: "all" | "module" | "run" | "part", module: number, call: number,
 *   title: string, parent: Box | null, items: Item[], position: number, n_ops: number,
 *   last_op: number, is_open: boolean, latest: Map<number, Box> | null, arranged: any}} Box
 *   `position`: in the items of its parent; `arranged`: kept by layout.js
 * @typedef {{from: number, to: number[], is_out: boolean, values: number[]}} Net
 *   values of one item that the same other items read; `from`: -1 if from outside the box
 * @typedef {{kind: "parameter" | "saved" | "outside", values: number[], to: number[]}} Source
 *   values that are shown next to their readers, as lines to them would tell nothing
 * @typedef {{key: number, kind: "module" | "run", module: number, call: number}} Step
 */

/** The phases to choose from. What is of no phase is shown with forward. */
export function list_phases(/** @type {import("./data.js").TraceView} */ trace) {
  const met = new Set(trace.op_place.map((place) => trace.places[place].phase));
  if (met.has(FORWARD_PHASE)) met.delete(OTHER_PHASE);
  return [...met].sort();
}

/** The phase to show first: where the program failed, or forward. */
export function choose_phase(/** @type {import("./data.js").TraceView} */ trace) {
  const phases = list_phases(trace);
  const last = trace.error ? trace.places[trace.op_place[trace.n_ops - 1]].phase : FORWARD_PHASE;
  return [last, FORWARD_PHASE].find((phase) => phases.includes(phase)) ?? phases[0];
}

/** Each state of each tensor: written in place, a tensor is a new value. */
export class Values {
  n_values = 0;

  /** @param {import("./data.js").TraceView} trace */
  constructor(trace) {
    this.trace = trace;
    const n_slots = trace.op_tensors.length;
    this.of_slot = new Int32Array(n_slots);
    /** The operator that made a value, or -1 if it came from outside. */
    this.maker = new Int32Array(2 * n_slots);
    /** Where the geometry of a value is found. */
    this.slot = new Int32Array(2 * n_slots);
    this.seen_by = new Int32Array(2 * n_slots);
    this.first_of_op = new Int32Array(trace.n_ops + 1);
    /** Where the tensors that an operator reads end; they begin at `trace.op_start`. */
    this.end_of_reads = new Int32Array(trace.n_ops);
    this.latest = new Int32Array(trace.storage_of_tensor.length).fill(-1);
    for (let op = 0; op < trace.n_ops; op += 1) this.#follow(op);
    this.first_of_op[trace.n_ops] = this.n_values;
    this.#list_readers();
  }

  /** @param {number} op */
  #follow(op) {
    const { op_tensors, op_start, signatures, op_signature } = this.trace;
    const { inputs, writes } = signatures[op_signature[op]];
    const { latest, maker, of_slot } = this;
    const middle = op_start[op] + inputs.length;
    this.first_of_op[op] = this.n_values;
    this.end_of_reads[op] = middle;
    for (let slot = op_start[op]; slot < middle; slot += 1) {
      if (latest[op_tensors[slot]] < 0) this.#add(slot, -1, op);
      of_slot[slot] = latest[op_tensors[slot]];
    }
    for (const input of writes) this.#add(op_start[op] + input, op, op);
    for (let slot = middle; slot < op_start[op + 1]; slot += 1) {
      const value = latest[op_tensors[slot]];
      if (value < 0 || maker[value] !== op) this.#add(slot, op, op);
      of_slot[slot] = latest[op_tensors[slot]];
    }
  }

  /** @param {number} slot @param {number} maker @param {number} op */
  #add(slot, maker, op) {
    const value = this.n_values;
    this.n_values += 1;
    this.latest[this.trace.op_tensors[slot]] = value;
    this.slot[value] = slot;
    this.maker[value] = maker;
    this.seen_by[value] = op;
  }

  #list_readers() {
    const { of_slot, end_of_reads, trace } = this;
    this.first_reader = new Int32Array(this.n_values + 1);
    for (let op = 0; op < trace.n_ops; op += 1) {
      for (let i = trace.op_start[op]; i < end_of_reads[op]; i += 1) {
        this.first_reader[of_slot[i]] += 1;
      }
    }
    for (let i = 1; i < this.first_reader.length; i += 1) {
      this.first_reader[i] += this.first_reader[i - 1];
    }
    this.readers = new Int32Array(this.first_reader[this.n_values]);
    for (let op = trace.n_ops - 1; op >= 0; op -= 1) {
      for (let i = trace.op_start[op]; i < end_of_reads[op]; i += 1) {
        this.readers[(this.first_reader[of_slot[i]] -= 1)] = op;
      }
    }
  }

  /** The values that an operator made. @param {number} op */
  list_made(op) {
    const { first_of_op, maker } = this;
    const made = [];
    for (let value = first_of_op[op]; value < first_of_op[op + 1]; value += 1) {
      if (maker[value] === op) made.push(value);
    }
    return made;
  }

  /** @param {number} value */
  tensor(value) {
    const { op_tensors, op_start, signatures, op_signature, storage_of_tensor } = this.trace;
    const op = this.seen_by[value];
    const { inputs, outputs, views, writes } = signatures[op_signature[op]];
    const number = this.slot[value] - op_start[op];
    const output = number - inputs.length;
    const id = op_tensors[this.slot[value]];
    /** @type {"new" | "view" | "write" | "outside"} */
    let kind = views[output] >= 0 ? "view" : "new";
    if (output < 0) kind = this.maker[value] < 0 || !writes.includes(number) ? "outside" : "write";
    const geometry = output < 0 ? inputs[number] : outputs[output];
    return { id, storage: storage_of_tensor[id], geometry, kind };
  }

  /** Shape and dtype, as at an edge. @param {number[]} values */
  label(values) {
    const { geometry } = this.tensor(values[0]);
    const more = values.length > 1 ? ` (+${values.length - 1})` : "";
    return `${format_shape(geometry.shape)} ${shorten_dtype(geometry.dtype)}${more}`;
  }
}

/** The boxes of one phase. Every net in a box leads from an item to later ones. */
export class Boxes {
  /** Parameters and constants are shown, too. */
  has_parameters = false;

  /** @param {Values} values @param {number} phase */
  constructor(values, phase) {
    const { trace } = values;
    this.values = values;
    this.phase = phase;
    this.trace = trace;
    /** @type {Box[]} */ this.box_of_op = [];
    this.is_shown = Uint8Array.from(trace.op_place, (place) => {
      const met = trace.places[place].phase;
      return Number(met === phase || (phase === FORWARD_PHASE && met === OTHER_PHASE));
    });
    this.root = make_box("all", null);
    this.#last_box = this.root;
    this.#position = new Int32Array(trace.n_ops);
    for (const siblings of [trace.roots, ...trace.modules.map((module) => module.children)]) {
      for (const run of siblings.length > 1 ? trace.runs(siblings) : []) {
        for (const module of run.length > 1 ? run : []) this.#run_of_module.set(module, run[0]);
      }
    }
    for (let op = 0; op < trace.n_ops; op += 1) if (this.is_shown[op]) this.#add(op, phase);
    this.#finish(this.root);
    this.#origins = this.#find_origins();
    this.#item_of_op = new Int32Array(trace.n_ops);
  }

  #position;
  #last_call = -1;
  #last_box;
  #origins;
  #item_of_op;
  /** @type {Map<number, number>} */ #run_of_module = new Map();
  /** @type {Map<number, Step[]>} */ #steps = new Map();

  /** @param {number} op @param {number} phase */
  #add(op, phase) {
    const call = phase === FORWARD_PHASE ? this.trace.op_call[op] : -1;
    const is_same = call >= 0 && call === this.#last_call;
    this.#last_call = call;
    let box = is_same ? this.#last_box : this.root;
    for (const step of is_same ? [] : this.#find_steps(call, this.trace.op_module[op])) {
      let next = box.latest?.get(step.key);
      // A box that something it would read comes after is left; the module gets another.
      const is_last = next && next.position === box.items.length - 1;
      if (!next || (!is_last && next.position < this.#find_earliest(box, op))) {
        next = make_box(step.kind, box, step.module, step.call);
        (box.latest ??= new Map()).set(step.key, next);
        next.position = box.items.push(next) - 1;
      }
      box = next;
    }
    this.#last_box = box;
    this.box_of_op[op] = box;
    this.#position[op] = box.items.push(op) - 1;
  }

  /** The way down to a call, or, without one, to a module. @returns {Step[]} */
  #find_steps(/** @type {number} */ call, /** @type {number} */ module) {
    const { calls, modules } = this.trace;
    const key = call >= 0 ? call : calls.length + module;
    if (call < 0 && module < 0) return [];
    const known = this.#steps.get(key);
    if (known) return known;
    const own = call < 0 ? module : calls[call].module;
    const steps = [...(call < 0
      ? this.#find_steps(-1, modules[own].parent)
      : this.#find_steps(calls[call].parent, -1))];
    const run = this.#run_of_module.get(own) ?? -1;
    if (run >= 0) steps.push({ key: -1 - run, kind: "run", module: run, call: -1 });
    steps.push({ key, kind: "module", module: own, call });
    this.#steps.set(key, steps);
    return steps;
  }

  /** The last position in a box that an operator reads from. */
  #find_earliest(/** @type {Box} */ above, /** @type {number} */ op) {
    let earliest = -1;
    const { of_slot, end_of_reads, maker: makers } = this.values;
    for (let i = this.trace.op_start[op]; i < end_of_reads[op]; i += 1) {
      const maker = makers[of_slot[i]];
      if (maker < 0 || !this.is_shown[maker]) continue;
      let position = this.#position[maker];
      /** @type {Box | null} */ let box = this.box_of_op[maker];
      for (; box && box !== above; box = box.parent) position = box.position;
      if (box) earliest = Math.max(earliest, position);
    }
    return earliest;
  }

  /** Fold runs, cut what is too long into parts, count. Inner boxes come first. */
  #finish(/** @type {Box} */ box) {
    for (let i = 0; i < box.items.length; i += 1) {
      const item = box.items[i];
      if (!is_box(item)) continue;
      this.#finish(item);
      if (item.kind === "run" && item.items.length === 1) box.items[i] = item.items[0];
    }
    if (box.kind === "run" && box.items.length > 2) {
      const [first, ...others] = box.items;
      box.items = [first, this.#make_part(box, "run", others, "")];
    }
    this.#adopt(box);
  }

  /** @param {Box} box @param {Box["kind"]} kind @param {Item[]} items @param {string} title */
  #make_part(box, kind, items, title) {
    const part = { ...make_box(kind, box), items, title };
    this.#adopt(part);
    return part;
  }

  #adopt(/** @type {Box} */ box) {
    const n_items = box.items.length;
    for (let size = PART_SIZE; box.items.length > MANY_ITEMS; size *= PART_SIZE) {
      const items = box.items;
      box.items = [];
      for (let start = 0, first = 1; start < items.length; start += PART_SIZE, first += size) {
        const title = `${first}–${Math.min(n_items, first + size - 1)} of ${n_items}`;
        const own = items.slice(start, start + PART_SIZE);
        box.items.push(this.#make_part(box, "part", own, title));
      }
    }
    for (let position = 0; position < box.items.length; position += 1) {
      const item = box.items[position];
      if (is_box(item)) [item.parent, item.position] = [box, position];
      else this.box_of_op[item] = box;
      box.n_ops += is_box(item) ? item.n_ops : 1;
      box.last_op = Math.max(box.last_op, is_box(item) ? item.last_op : item);
    }
  }

  /** What a box is called where it stands. @param {Box} box */
  name(box) {
    if (box.kind === "all" || box.kind === "part") return box.title;
    const { modules } = this.trace;
    const modules_in = [...new Set(list_modules(box))];
    const [first, last] = [modules[modules_in[0]], modules[modules_in[modules_in.length - 1]]];
    let above = box.parent;
    while (above && above.kind !== "module") above = above.parent;
    const prefix = above ? `${modules[above.module].fqn}.` : ".";
    const fqn = first.fqn || first.name;
    const name = fqn.startsWith(prefix) ? fqn.slice(prefix.length) : fqn;
    if (box.kind === "run") {
      return `${name}–${last.name}: ${modules_in.length} × ${first.class_name}`;
    }
    const time = first.n_calls > 1 && box.call >= 0 ? ` · call ${this.#count_calls(box) + 1}` : "";
    return `${name ? `${name}: ` : ""}${first.class_name}${time}`;
  }

  #count_calls(/** @type {Box} */ box) {
    const before = this.trace.calls?.slice(0, box.call) ?? [];
    return before.filter((call) => call.module === box.module).length;
  }

  /** What stands under the name of a closed box. */
  describe(/** @type {Box} */ box) {
    let n_params = 0;
    for (const module of new Set(list_modules(box))) {
      n_params += this.trace.modules[module].n_params;
    }
    const params = n_params ? `${format_count(n_params)} params · ` : "";
    return `${params}${format_count(box.n_ops)} op${box.n_ops === 1 ? "" : "s"}`;
  }

  /** The box of a module, or of the first module in it that has one. @returns {Box | null} */
  find_box(/** @type {number} */ module) {
    /** @type {Map<number, Box>} */ const found = new Map();
    for (const box of this.walk(this.root)) {
      if (box.kind === "module" && !found.has(box.module)) found.set(box.module, box);
    }
    /** @type {(index: number) => Box | null} */
    const find = (index) => found.get(index)
      ?? this.trace.modules[index].children.map(find).find(Boolean) ?? null;
    return find(module);
  }

  /** All boxes in a box, and itself. @returns {Generator<Box>} */
  *walk(/** @type {Box} */ box) {
    yield box;
    for (const item of box.items) if (is_box(item)) yield* this.walk(item);
  }

  /** What a pill next to an operator says. @param {Source} source */
  name_source({ kind, values }) {
    if (values.length > FEW_SOURCES) return `${values.length} × ${kind}`;
    const { storage, geometry } = this.values.tensor(values[0]);
    const module = this.trace.modules[this.trace.owner_of_storage.get(storage) ?? -1];
    const owned = kind === "parameter" ? module?.tensors.filter(({ shape, dtype }) =>
      String(shape) === String(geometry.shape) && dtype === geometry.dtype) : [];
    const name = owned?.length === 1 ? owned[0].name : kind === "parameter" ? "" : kind;
    return `${name} ${this.values.label(values)}`.trim();
  }

  /** Where a value comes from that was not made here. @param {number} value */
  #find_origin(value) {
    const { maker, slot } = this.values;
    const { op_tensors, storage_of_tensor, owner_of_storage } = this.trace;
    if (owner_of_storage.has(storage_of_tensor[op_tensors[slot[value]]])) return "parameter";
    if (maker[value] >= 0) return "saved";
    const { shape } = this.values.tensor(value).geometry;
    return shape.length === 0 || shape.includes(0) ? "parameter" : "outside";
  }

  /** The origin of each value: 0, flow; or the number of a kind of source. */
  #find_origins() {
    const origins = new Uint8Array(this.values.n_values);
    const { of_slot, end_of_reads, maker } = this.values;
    const outside = new Set();
    for (let op = 0; op < this.trace.n_ops; op += 1) {
      if (!this.is_shown[op]) continue;
      for (let i = this.trace.op_start[op]; i < end_of_reads[op]; i += 1) {
        const value = of_slot[i];
        if (this.is_shown[maker[value]]) continue;
        origins[value] = SOURCES.indexOf(this.#find_origin(value));
        if (origins[value] === OUTSIDE) outside.add(value);
      }
    }
    if (outside.size <= MAX_INPUTS) for (const value of outside) origins[value] = 0;
    return origins;
  }

  /**
   * Return the nets between the items of a box, and what its operators read besides.
   * @param {Box} box @returns {{nets: Net[], sources: Source[]}}
   */
  connect(box) {
    const { maker, first_of_op, of_slot, end_of_reads } = this.values;
    const { op_start } = this.trace;
    const item_of_op = this.#item_of_op.fill(-1);
    const ops = box.items.map((item) => list_ops(item));
    ops.forEach((inside, item) => { for (const op of inside) item_of_op[op] = item; });
    /** @type {Map<number, Net>} */ const nets = new Map();
    /** @type {Map<number, Source>} */ const sources = new Map();
    const find_net = (/** @type {number} */ value, /** @type {number} */ from) => {
      let net = nets.get(value);
      if (!net) nets.set(value, (net = { from, to: [], is_out: false, values: [value] }));
      return net;
    };
    /** @type {(value: number, kind: Source["kind"]) => Source} */
    const find_source = (value, kind) => {
      let source = sources.get(value);
      if (!source) sources.set(value, (source = { kind, values: [value], to: [] }));
      return source;
    };
    const read = (/** @type {number} */ value, /** @type {number} */ item) => {
      const from = maker[value] < 0 ? -1 : item_of_op[maker[value]];
      if (from === item) return;
      const kind = SOURCES[this.#origins[value]];
      const is_hidden = kind === "parameter" && !this.has_parameters;
      if (kind !== "flow" && (is_hidden || is_box(box.items[item]))) return;
      const { to } = kind === "flow" ? find_net(value, from) : find_source(value, kind);
      if (to[to.length - 1] !== item) to.push(item);
    };
    ops.forEach((inside, item) => {
      for (const op of inside) {
        for (let i = op_start[op]; i < end_of_reads[op]; i += 1) read(of_slot[i], item);
        for (let value = first_of_op[op]; value < first_of_op[op + 1]; value += 1) {
          if (maker[value] === op && this.#is_out(value, item_of_op, op === box.last_op)) {
            find_net(value, item).is_out = true;
          }
        }
      }
    });
    return { nets: merge_nets(nets.values()), sources: merge_sources(sources.values()) };
  }

  /**
   * Whether a value is read outside; so is what comes last, as the result.
   * @param {number} value @param {Int32Array} item_of_op @param {boolean} is_last
   */
  #is_out(value, item_of_op, is_last) {
    const { first_reader, readers } = this.values;
    let n_readers = 0;
    for (let i = first_reader[value]; i < first_reader[value + 1]; i += 1) {
      if (!this.is_shown[readers[i]]) continue;
      if (item_of_op[readers[i]] < 0) return true;
      n_readers += 1;
    }
    return is_last && n_readers === 0;
  }
}

/** @returns {Box} */
function make_box(
  /** @type {Box["kind"]} */ kind, /** @type {Box | null} */ parent, module = -1, call = -1,
) {
  return {
    kind, module, call, title: "", parent, items: [], position: 0, n_ops: 0, last_op: -1,
    is_open: false, latest: null, arranged: null,
  };
}

/** @returns {item is Box} */
export function is_box(/** @type {unknown} */ item) {
  return typeof item === "object" && item !== null;
}

/** The modules whose boxes are next in a box. @param {Box} box @returns {number[]} */
function list_modules({ kind, module, items }) {
  return kind === "module" ? [module]
    : items.flatMap((item) => (is_box(item) ? list_modules(item) : []));
}

/** @param {Item} item @param {number[]} ops */
function list_ops(item, ops = []) {
  if (!is_box(item)) ops.push(item);
  else for (const inner of item.items) list_ops(inner, ops);
  return ops;
}

/** Nets with the same ends as one. @param {Iterable<Net>} nets */
function merge_nets(nets) {
  /** @type {Map<string, Net>} */
  const merged = new Map();
  for (const net of nets) {
    const key = `${net.from}>${net.to}>${net.is_out}`;
    const same = merged.get(key);
    if (same) same.values.push(...net.values);
    else merged.set(key, net);
  }
  return [...merged.values()];
}

/** Sources of one reader as one, where they are many. @param {Iterable<Source>} sources */
function merge_sources(sources) {
  /** @type {Map<string, Source[]>} */
  const groups = new Map();
  for (const source of sources) {
    const key = `${source.kind}>${source.to}`;
    groups.set(key, [...(groups.get(key) ?? []), source]);
  }
  return [...groups.values()].flatMap((group) => (group.length <= FEW_SOURCES ? group
    : [{ ...group[0], values: group.flatMap((source) => source.values) }]));
}
