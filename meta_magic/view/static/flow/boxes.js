// Items in boxes, and the nets between the items of one box. Touches no document, so that
// node can test it.

import { format_count, format_shape, shorten_dtype, shorten_op } from "../dom.js";
import { finish, has_inside, make_item, walk } from "./items.js";
import { FORWARD_PHASE, OTHER_PHASE } from "./values.js";

const FEW_SOURCES = 3; // tensors of one kind, each shown alone

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("./values.js").Value} Value
 * @typedef {import("./values.js").Values} Values
 * @typedef {{kind: "flow" | "saved" | "parameter", from: number, to: number[],
 *   is_out: boolean, values: Value[], name: string}} Net
 *   values from one item that the same items read, by position; `from`: -1 if from outside
 *   the box. All but "flow" are shown next to their readers: lines to them would tell nothing
 */

/** The boxes of one phase. Every net in a box leads from an item to later ones. */
export class Boxes {
  /** Parameters and constants are shown, too. */
  has_parameters = false;
  /** Towers are laid out in columns. */
  is_wide = true;
  /** Of operators, by their number; those of other phases have none. @type {Item[]} */
  items = [];
  root = make_item("all");
  #runs = new Map();

  /** @param {Values} values @param {number} phase */
  constructor(values, phase) {
    const { trace } = values;
    this.values = values;
    this.trace = trace;
    this.phase = phase;
    for (const siblings of [trace.roots, ...trace.modules.map((module) => module.children)]) {
      for (const run of trace.runs(siblings)) {
        for (const module of run.length > 1 ? run : []) this.#runs.set(module, run[0]);
      }
    }
    const { op_call, op_module } = trace;
    for (let op = 0, steps = null; op < trace.n_ops; op += 1) {
      const is_same = op_call[op] === op_call[op - 1] && op_module[op] === op_module[op - 1];
      if (!is_same) steps = this.#list_steps(op);
      const met = trace.place(op).phase;
      if (met !== phase && (phase !== FORWARD_PHASE || met !== OTHER_PHASE)) continue;
      const is_idle = !values.reads[op].length && !values.makes[op].length;
      if (is_idle && !trace.is_raised(op)) continue; // asks for a version, say
      let box = this.root;
      for (const step of steps) box = this.#enter(box, step, op);
      this.items[op] = make_item("op", box, { op, last_op: op, n_ops: 1 });
    }
    finish(this.root);
    for (const { op, parent } of this.items.filter(Boolean)) {
      for (const value of values.makes[op]) value.scope = null;
      for (const value of values.reads[op]) {
        value.scope ??= this.items[value.maker]?.parent ?? null;
        while (value.scope && !has_inside(value.scope, parent)) value.scope = value.scope.parent;
      }
    }
  }

  /** The way down to an operator: by calls in forward, else by modules. @param {number} op */
  #list_steps(op) {
    const { calls, modules, op_call, op_module } = this.trace;
    const is_called = this.phase === FORWARD_PHASE && op_call[op] >= 0;
    const steps = [];
    let at = is_called ? op_call[op] : op_module[op];
    for (; at >= 0; at = (is_called ? calls : modules)[at].parent) {
      const module = is_called ? calls[at].module : at;
      const [call, key] = is_called ? [at, at] : [-1, calls.length + at];
      const run = this.#runs.get(module) ?? -1;
      steps.unshift({ kind: "module", key, module, call });
      if (run >= 0) steps.unshift({ kind: "run", key: -1 - run, module: run, call: -1 });
    }
    return steps;
  }

  #enter(box, { kind, key, module, call }, op) {
    const known = box.latest?.get(key);
    const find_earliest = () => this.values.reads[op].reduce(
      (earliest, { maker }) => Math.max(earliest, this.#find_position(box, maker)), -1);
    // A box that something it would read comes after is left; the module gets another.
    if (known === box.items.at(-1) && known || known?.position >= find_earliest()) return known;
    const made = make_item(kind, box, { module, call });
    (box.latest ??= new Map()).set(key, made);
    return made;
  }

  /** Where in a box an operator is, or -1. */
  #find_position(box, op) {
    let item = this.items[op];
    while (item && item.parent !== box) item = item.parent;
    return item ? item.position : -1;
  }

  /** What a value is here: made in this phase, or by whom else. */
  #find_kind({ storage, maker, geometry: { shape } }) {
    if (this.items[maker]) return "flow";
    if (this.trace.owner_of_storage.has(storage)) return "parameter";
    if (maker >= 0) return "saved";
    return shape.length === 0 || shape.includes(0) ? "parameter" : "flow";
  }

  /** The nets in a box. @param {Item} box @returns {Net[]} */
  connect(box) {
    const nets = new Map();
    const find_net = (value, from, kind) => {
      if (!nets.has(value)) nets.set(value, { kind, from, to: [], is_out: false, values: [value] });
      return nets.get(value);
    };
    for (const item of box.items) {
      const { position } = item;
      for (const { op } of walk(item)) {
        for (const value of this.values.reads[op] ?? []) {
          const from = this.#find_position(box, value.maker);
          const kind = this.#find_kind(value);
          const is_hidden = item.kind !== "op" || (kind === "parameter" && !this.has_parameters);
          if (from === position || (kind !== "flow" && is_hidden)) continue;
          const { to } = find_net(value, from, kind);
          if (to.at(-1) !== position) to.push(position);
        }
        for (const value of this.values.makes[op] ?? []) {
          if (this.#is_out(value, box)) find_net(value, position, "flow").is_out = true;
        }
      }
    }
    const merged = merge_nets([...nets.values()]);
    return merged.map((net) => ({ ...net, name: this.#name_net(net) }));
  }

  /** Whether a value is read outside a box; so is what comes last in it, as the result. */
  #is_out(value, box) {
    if (value.scope) return value.scope !== box && has_inside(value.scope, box);
    return value.maker === box.last_op && this.#is_returned(value);
  }

  /** Whether the module in which a value was made returns such: a norm keeps its statistics. */
  #is_returned({ maker, geometry: { shape, dtype } }) {
    const call = this.trace.calls[this.trace.op_call[maker]];
    return !call?.outputs.length || call.outputs.some(({ geometry }) =>
      `${geometry.shape} ${geometry.dtype}` === `${shape} ${dtype}`);
  }

  /** What an item is called where it stands. @param {Item} item */
  name(item) {
    if (item.kind === "op") return shorten_op(this.trace.signature(item.op).op);
    if (item.kind === "part") return item.title;
    const { calls, modules } = this.trace;
    const inside = this.#list_modules(item);
    const [first, last] = [inside[0], inside.at(-1)];
    let above = item.parent;
    while (above && above.kind !== "module") above = above.parent;
    const prefix = above ? `${modules[above.module].fqn}.` : ".";
    const path = first.fqn || first.name;
    const name = path.startsWith(prefix) ? path.slice(prefix.length) : path;
    if (item.kind === "run") return `${name}–${last.name}: ${inside.length} × ${first.class_name}`;
    const turn = calls.filter(({ module, index }) => module === item.module && index <= item.call);
    const time = first.n_calls > 1 && turn.length ? ` · call ${turn.length}` : "";
    return `${name && `${name}: `}${first.class_name}${time}`;
  }

  /** The modules whose boxes are next in a box. */
  #list_modules(box) {
    const find = ({ kind, module, items }) => (kind === "module" ? [module] : items.flatMap(find));
    return [...new Set(find(box))].map((index) => this.trace.modules[index]);
  }

  /** What stands under the name of a closed box. @param {Item} box */
  describe(box) {
    const n_params = this.#list_modules(box).reduce((sum, module) => sum + module.n_params, 0);
    const params = n_params ? `${format_count(n_params)} params · ` : "";
    return `${params}${format_count(box.n_ops)} op${box.n_ops === 1 ? "" : "s"}`;
  }

  /** What is told of a net, at its wire or pill. */
  #name_net({ kind, values }) {
    const [{ storage, geometry }] = values;
    if (kind !== "flow" && values.length > FEW_SOURCES) return `${values.length} × ${kind}`;
    const owner = this.trace.modules[this.trace.owner_of_storage.get(storage)];
    const owned = owner?.tensors.filter(({ shape, dtype }) =>
      `${shape} ${dtype}` === `${geometry.shape} ${geometry.dtype}`) ?? [];
    const names = { flow: "", parameter: owned.length === 1 ? owned[0].name : "" };
    const more = values.length > 1 ? ` (+${values.length - 1})` : "";
    const text = `${format_shape(geometry.shape)} ${shorten_dtype(geometry.dtype)}${more}`;
    return `${names[kind] ?? kind} ${text}`.trim();
  }

  /** The first box of a module, or of one that is in it. @param {number} module */
  find_box(module) {
    const is_inside = (index) => index >= 0
      && (index === module || is_inside(this.trace.modules[index].parent));
    return walk(this.root).find((item) => item.kind === "module" && is_inside(item.module));
  }
}

/** Join nets with the same ends, but not the few sources of one reader. */
function merge_nets(nets) {
  const groups = new Map();
  for (const net of nets) {
    const key = `${net.kind}:${net.from}>${net.to}>${net.is_out}`;
    groups.set(key, [...(groups.get(key) ?? []), net]);
  }
  return [...groups.values()].flatMap((group) => {
    if (group[0].kind !== "flow" && group.length <= FEW_SOURCES) return group;
    return { ...group[0], values: group.flatMap((net) => net.values) };
  });
}
