// Items in boxes, and the nets between the items of one box. Touches no document, so that
// node can test it.

import { format_count, format_shape, show_sizes, shorten_dtype, shorten_function, shorten_op } from "../dom.js";
import { WIDE } from "./columns.js";
import { find_family } from "./families.js";
import { finish, has_inside, is_leaf, make_item, walk } from "./items.js";
import { SIGNS } from "./layout.js";
import { FEW_SOURCES, merge_nets } from "./nets.js";
import { find_repeated } from "./patterns.js";
import { Folder } from "./steps.js";
import { BACKWARD_PHASE, FORWARD_PHASE, OTHER_PHASE } from "./values.js";

const MORE_CELLS = 28; // letters of settings below a name

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("./values.js").Value} Value
 * @typedef {import("./values.js").Values} Values
 * @typedef {import("./nets.js").Net} Net
 * @typedef {{text: string, box?: Item, from?: Item, to?: Item}} Removed the box that modules were in, and the items before and after them
 */

/** The boxes of one phase. Every net in a box leads from an item to later ones. */
export class Boxes {
  /** Parameters and constants are shown, too. */
  has_parameters = false;
  /** Layers go from left to right. */
  is_across = false;
  /** Width by height at which columns of boxes aim. */ wide = WIDE;
  /** The colours of boxes by a quantity, else by family. @type {import("./heat.js").Heat | null} */ heat = null;
  has_families = true;
  /** Of operators, by their number; those of other phases have none. @type {Item[]} */
  items = [];
  root = make_item("all");
  /** Steps into a run and into a turn of its pattern, by module. */
  #runs = new Map();

  /**
   * @param {Values} values @param {number} phase
   * @param {boolean} has_functions whether the operators of a function's call are in a box
   */
  constructor(values, phase, has_functions = false) {
    const { trace } = values;
    this.has_functions = has_functions;
    this.values = values;
    this.trace = trace;
    this.phase = phase;
    for (const siblings of [trace.roots, ...trace.modules.map((module) => module.children)]) {
      this.#note_repeated(siblings);
    }
    const { op_call, op_module } = trace;
    for (let op = 0, steps = null; op < trace.n_ops; op += 1) {
      const is_same = op_call[op] === op_call[op - 1] && op_module[op] === op_module[op - 1];
      if (!is_same) steps = this.#list_steps(op);
      const own = trace.site(op).phase;
      if (own !== phase && (phase !== FORWARD_PHASE || own !== OTHER_PHASE)) continue;
      const is_idle = !values.reads[op].length && !values.makes[op].length;
      if (is_idle && !trace.is_raised(op)) continue; // asks for a version, say
      let box = this.root;
      for (const step of [...steps, ...this.#find_function(op)]) box = this.#enter(box, step, op);
      this.items[op] = make_item("op", box, { op, last_op: op, n_ops: 1 });
    }
    finish(this.root, new Folder(values, has_functions));
    /** @type {Removed[]} */
    this.removed = phase === FORWARD_PHASE ? trace.removed.map((one) => this.#find_removed(one)) : [];
    for (const { op, parent } of this.items.filter(Boolean)) {
      for (const value of values.makes[op]) value.scope = null;
      for (const value of values.reads[op]) {
        value.scope ??= this.items[value.maker]?.parent ?? null;
        while (value.scope && !has_inside(value.scope, parent)) value.scope = value.scope.parent;
      }
    }
  }

  /** Where modules were that the trace lacks: beside runs, not in them. */
  #find_removed({ text, places }) {
    const [from, to] = places.slice(1).map((module) => {
      let item = this.find_box(module);
      while (item && ["run", "turn", "part"].includes(item.parent.kind)) item = item.parent;
      return item;
    });
    const box = from?.parent ?? to?.parent ?? this.find_box(places[0]);
    return { text: `− ${text}`, box, from, to: to?.parent === box && !(to.position <= from?.position) ? to : undefined };
  }

  /** @param {number[]} siblings */
  #note_repeated(siblings) {
    const { modules } = this.trace;
    for (const { first, period, n } of find_repeated(siblings.map((index) => modules[index]))) {
      for (let i = 0; i < n * period; i += 1) {
        const [run, turn] = [siblings[first], siblings[first + i - (i % period)]];
        const steps = [{ kind: "run", key: -1 - run, module: run }];
        if (period > 1) steps.push({ kind: "turn", key: -1 - modules.length - turn, module: turn });
        this.#runs.set(siblings[first + i], steps);
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
      // A module that the forward made and dropped is in no tree.
      if (module >= 0) steps.unshift(...this.#runs.get(module) ?? [], { kind: "module", key, module, call });
    }
    return steps;
  }

  /** The call of a function that made an operator; autograd calls none. @param {number} op */
  #find_function(op) {
    const { calls, modules, op_function } = this.trace;
    const { function: name, phase } = this.trace.site(op);
    if (!this.has_functions || !name || phase === BACKWARD_PHASE) return [];
    const key = calls.length + modules.length + op_function[op];
    return [{ kind: "function", key, title: shorten_function(name) }];
  }

  #enter(box, { kind, key, ...own }, op) {
    const known = box.latest?.get(key);
    const find_earliest = () => this.values.reads[op].reduce(
      (earliest, { maker }) => Math.max(earliest, this.#find_position(box, maker)), -1);
    // A box cannot read values that are made after it: the module gets another box then.
    if (known === box.items.at(-1) && known || known?.position >= find_earliest()) return known;
    const made = make_item(kind, box, own);
    (box.latest ??= new Map()).set(key, made);
    return made;
  }

  /** The position in a box of the item that has an operator, or -1. */
  #find_position(box, op) {
    let item = this.items[op];
    while (item && item.parent !== box) item = item.parent;
    return item ? item.position : -1;
  }

  /** The kind of a value: made in this phase, a parameter, or saved by an earlier phase. */
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
          const is_hidden = !is_leaf(item) || (kind === "parameter" && !this.has_parameters && !this.#shows(item, value));
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

  /** Whether a parameter is always shown, as the operator that reads it (a move, a sum) belongs to no layer. */
  #shows(item, { storage }) {
    const name = this.name(item);
    return this.trace.owner_of_storage.has(storage)
      && (name in SIGNS || find_family(this, item) === "reshape" && !/^(t|transpose|permute)$/.test(name));
  }

  /** Whether a value is read outside of a box, or is its result: made by its last operator. */
  #is_out(value, box) {
    if (value.scope) return value.scope !== box && has_inside(value.scope, box);
    return value.maker === box.last_op && this.#is_returned(value);
  }

  /** Whether the module that made a value returns one of its shape: a norm keeps its statistics. */
  #is_returned({ maker, geometry: { shape, dtype } }) {
    const call = this.trace.calls[this.trace.op_call[maker]];
    return !call?.outputs.length || call.outputs.some(({ geometry }) =>
      `${geometry.shape} ${geometry.dtype}` === `${shape} ${dtype}`);
  }

  /** The name of an item within its box. @param {Item} item */
  name(item) {
    const { kind, title } = item;
    const { reads, makes } = this.values;
    const given = item.parent === this.root && is_leaf(item) && !reads[item.last_op].length
      && this.trace.arguments.get(makes[item.last_op][0]?.tensor);
    if (given) return given;
    const inside = title && kind !== "part" ? [] : this.#list_modules(item);
    if (title && !inside.length) return title;
    if (kind === "op") return shorten_op(this.trace.signature(item.op).op);
    const [first, last] = [inside[0], inside.at(-1)];
    let above = item.parent;
    while (above && above.kind !== "module") above = above.parent;
    const prefix = above ? `${this.trace.modules[above.module].fqn}.` : ".";
    const path = first.fqn || first.name;
    const name = path.startsWith(prefix) ? path.slice(prefix.length) : path;
    if (first !== last) return `${name}–${last.name}${this.#name_classes(item, inside)}`;
    return `${name && `${name}: `}${first.class_name}${this.#name_calls(item, first)}`;
  }

  /** Which of a module's calls an item is, or holds. */
  #name_calls(item, { index, n_calls }) {
    const calls = n_calls > 1 ? this.trace.calls.filter(({ module }) => module === index) : [];
    const turns = list_boxed(item).map(({ call }) => calls.findIndex((one) => one.index === call) + 1);
    if (!turns[0]) return "";
    return turns.length > 1 ? ` · calls ${turns[0]}–${turns.at(-1)}` : ` · call ${turns[0]}`;
  }

  /** The classes of several modules: of one turn, if it repeats; else nothing, if they differ. */
  #name_classes({ kind, items }, inside) {
    const find_turn = (one) => (one?.kind === "turn" ? one : one?.items[0] && find_turn(one.items[0]));
    const turn = kind === "turn" ? null : find_turn(items[0]);
    const classes = (turn ? this.#list_modules(turn) : inside).map(({ class_name }) => class_name);
    if (kind === "turn") return `: ${classes.join(", ")}`;
    if (turn) return `: ${Math.ceil(inside.length / classes.length)} × (${classes.join(", ")})`;
    return new Set(classes).size > 1 ? "" : `: ${inside.length} × ${classes[0]}`;
  }

  /**
   * The effect by which an item made a value; "new" if it also made the storage.
   * @param {Item | null} item @param {Value} value
   */
  find_effect(item, { kind, storage }) {
    const made = this.items[this.values.origins[storage]];
    return item && made && has_inside(item, made) ? "new" : kind;
  }

  /** The effect of an item on the tensors around it: a write, a new tensor or a view. @param {Item} item */
  find_deed(item) {
    const made = walk(item).flatMap(({ op }) => this.values.makes[op] ?? []);
    const effects = new Set(made.map((value) => this.find_effect(item, value)));
    return /** @type {const} */ (["write", "new", "view"]).find((effect) => effects.has(effect));
  }

  /** Whether an operator is in a closed item. @param {Item} item @param {number} op */
  is_closed_over(item, op) {
    return !item.is_open && has_inside(item, this.items[op] ?? null);
  }

  /** The operator that is selected with an item: that which takes most, or the last. */
  find_main(item) {
    const ops = walk(item).map(({ op }) => op).filter((op) => op >= 0);
    const count = (op) => this.trace.signature(op).flops;
    return ops.reduce((main, op) => (count(op) > 0 && count(op) >= count(main) ? op : main), item.last_op);
  }

  /** The modules whose boxes are next in a box. */
  #list_modules(box) {
    const found = new Set(list_boxed(box).map(({ module }) => module));
    return [...found].map((index) => this.trace.modules[index]);
  }

  /**
   * The facts about a box; of one module also its sizes, and what else it was given.
   * @param {Item} box
   */
  read_facts(box) {
    const inside = this.#list_modules(box);
    const n_params = inside.reduce((sum, module) => sum + module.n_params, 0);
    const tied = inside.flatMap(({ tensors }) => tensors.map(({ tied_to }) => tied_to)).find(Boolean) ?? "";
    const [, sizes, more] = inside.length === 1 ? this.trace.settings(inside[0].index) : ["", "", ""];
    return {
      sizes, more, params: n_params ? `${format_count(n_params)} params` : tied && `tied to ${tied.split(".").at(-2)}`,
      ops: `${format_count(box.n_ops)} op${box.n_ops === 1 ? "" : "s"}`,
    };
  }

  /** The text under the name of a closed box. @param {Item} box */
  describe(box) {
    const { more, params, ops } = this.read_facts(box);
    return [cut_parts(more), params || ops].filter(Boolean).join(" · ");
  }

  /** The label of a net, at its wire or pill. */
  #name_net({ kind, values }) {
    const { storage, geometry } = values.reduce((most, one) => (count_elements(one) > count_elements(most) ? one : most));
    if (kind !== "flow" && values.length > FEW_SOURCES) return `${values.length} × ${kind}`;
    const owner = this.trace.modules[this.trace.owner_of_storage.get(storage)];
    const owned = owner?.tensors.filter(({ shape, dtype }) =>
      `${shape} ${dtype}` === `${geometry.shape} ${geometry.dtype}`) ?? [];
    const name = owned.length === 1 ? owned[0].name : "";
    const names = { flow: "", parameter: /^(weight|bias)$/.test(name) ? `${owner.name}.${name}` : name };
    const own = `${format_shape(geometry.shape)} ${shorten_dtype(geometry.dtype)}`;
    const more = values.length > 1 ? `${own} +${values.length - 1}` : own;
    return `${names[kind] ?? kind} ${this.#name_range(values) ?? more}`.trim();
  }

  /** The shape of values of alike modules, with ranges for sizes that differ. @param {Value[]} values */
  #name_range(values) {
    const shapes = values.map(({ geometry }) => geometry.shape);
    const likenesses = values.map(({ maker, geometry: { dtype, shape } }) =>
      `${this.trace.signature(maker)?.op} ${dtype} ${shape.length}`);
    const n = new Set(values.map(({ maker }) => maker)).size;
    if (n < Math.max(2, values.length) || new Set(likenesses).size > 1) return null;
    const sizes = shapes[0].map((_, i) => {
      const texts = new Set(shapes.map((one) => show_sizes(one)[i]));
      if (texts.size === 1) return [...texts][0];
      const [least, most] = [Math.min, Math.max].map((pick) => pick(...shapes.map((one) => one[i])));
      return least === most ? least : `${least}–${most}`;
    });
    return `${n} × ${format_shape(/** @type {any} */ (sizes))} ${shorten_dtype(values[0].geometry.dtype)}`;
  }

  /** The first box of a module, or of one that is in it. @param {number} module */
  find_box(module) {
    const is_inside = (index) => index >= 0
      && (index === module || is_inside(this.trace.modules[index].parent));
    return module < 0 ? undefined : walk(this.root).find((item) => item.kind === "module" && is_inside(item.module));
  }
}

/** @param {Value} value */
const count_elements = ({ geometry: { shape } }) => shape.reduce((n, size) => n * size, 1);

/** As many of the parts between commas as are short together. @param {string} text */
const cut_parts = (text) => text.split(", ").reduce((kept, part) => {
  const longer = kept ? `${kept}, ${part}` : part;
  return longer.length > MORE_CELLS ? kept : longer;
}, "");

/** The boxes of modules that are next in an item, or the item itself. @param {Item} item */
const list_boxed = (item) => (item.kind === "module" ? [item] : item.items.flatMap(list_boxed));
