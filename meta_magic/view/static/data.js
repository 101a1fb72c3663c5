// Reads the payload that `view/payload.py` writes, as columns and as records. No DOM, so that
// node can read it, too.

const VERSION = 6;

/** What the program was doing, by its number in the payload. */
export const PHASES = ["init", "forward", "backward", "optimizer", "other"];
const TOTALS = ["n_params", "nbytes", "flops", "activations", "n_ops"];
const NOWHERE = { file: "", scope: "", start: 0, end: 0, column: -1, end_column: -1 };

/**
 * @typedef {{shape: import("./dom.js").Shape, stride: number[] | null, offset: number, dtype: string,
 *   device: string, layout: string, nbytes: number, place?: string}} Geometry
 *   `place`: its planned device, if any
 * @typedef {{id: number, storage: number, geometry: Geometry}} TensorSeen
 * @typedef {{op: string, args: string, names: string[], inputs: Geometry[],
 *   outputs: Geometry[], writes: number[], views: number[], flops: number,
 *   picture: [string, import("./pictures/reach.js").Reach[][], string] | null}} Signature
 *   `names`: the argument that each input is; `views`: for each output the input whose storage it shares, or -1; `flops`: or -1
 * @typedef {{name: string, help: string, width: number, format?: string, align?: string,
 *   is_pinned?: boolean, is_hidden?: boolean, is_extra?: boolean, values?: any[], wire?: string, add_up?: string}} Column
 *   of a table. `values`: unless the report has them, by what `wire` names, "call" or
 *   "signature", or by module; `is_hidden`: no row has a value,
 *   `is_extra`: shown if chosen; `add_up`: what a run of modules shows, the "sum" or the "first"
 * @typedef {{file: string, first: number}} Cell
 * @typedef {{file: string, heading: string, first: number, text: string,
 *   tokens: number[][]}} SourceText
 *   `tokens`: for each line, kinds and how long each goes on, in turn
 * @typedef {{file: string, scope: string, start: number, end: number, column: number,
 *   end_column: number}} Position `start` to `end`: lines in the file; columns or -1
 * @typedef {Position & {function: string, line: number, phase: number}} CallSite
 *   `line`: of the cell, or 0
 * @typedef {{name: string, kind: string, shape: number[], dtype: string, numel: number,
 *   nbytes: number, is_persistent: boolean, is_lazy: boolean, requires_grad: boolean,
 *   is_real: boolean, tied_to: string, is_again?: boolean, place?: string, sharding?: string}} OwnTensor
 *   `is_again`: an earlier model has it, too; `sharding`: of a DTensor, how it lies on its mesh, and the shape of this process's part
 * @typedef {{index: number, parent: number, name: string, fqn: string, class_name: string,
 *   kind?: string, children: number[], tensors: OwnTensor[], n_calls: number,
 *   first_call: number, shared_with: number, first_tensor: number, place?: string,
 *   n_params: number, nbytes: number, flops: number, activations: number, n_ops: number,
 *   likeness: number}} Module
 *   `activations`: bytes of what its operators newly made in the forward phase; totals are
 *   of the whole subtree, tied tensors counted once; `likeness` is equal for
 *   modules that are built alike, whatever their names; `kind`: what a container
 *   holds; `first_tensor`: number of its first among the tensors of all modules; `place`: the planned devices of its tensors, if any
 * @typedef {{index: number, signature: Signature, site: CallSite, inputs: TensorSeen[],
 *   outputs: TensorSeen[], module: number, call: number, forward: number}} Operator
 *   `module`, `call`, `forward`: or -1
 * @typedef {{path: string, geometry: Geometry}} Passed
 * @typedef {{index: number, module: number, parent: number, line: number,
 *   position: Position | null, first_op: number, end_op: number, inputs: Passed[],
 *   outputs: Passed[]}} Call
 */

/**
 * @typedef {{path: string, docs: string, file: string, line: number}} Definition
 *   of a class; `docs`: address of its page in torch's documentation, or ""
 * @typedef {{settings_of: number[], settings: string[][], definition_of: number[],
 *   definitions: Definition[], storages: number[], windows: Record<number, number>,
 *   deaths: {n_ops: number[], storage: number[]}}} Details as `view/details_payload.py` writes them
 */

/**
 * Return what was sent as JSON, compressed by gzip.
 * @param {ArrayBuffer | ArrayBufferView} packed
 */
export async function unpack(packed) {
  const blob = new Blob([/** @type {BlobPart} */ (packed)]);
  return new Response(blob.stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** Return the trace of a payload as it was sent. @param {ArrayBuffer | ArrayBufferView} packed */
export const decode = async (packed) => new TraceView(await unpack(packed));

/** Numbers that were written as how far they lie below the first unused one. */
function undo_deltas(deltas) {
  let n_used = 0;
  return Int32Array.from(deltas, (delta) => {
    const number = n_used - delta;
    n_used = Math.max(n_used, number + 1);
    return number;
  });
}

/** Numbers that were written as the step from each to the next. */
export function undo_steps(/** @type {number[]} */ steps) {
  let at = 0;
  return Int32Array.from(steps, (step) => (at += step));
}

/** Records that were written as columns. @param {Record<string, any[]>} columns @returns {any[]} */
export function undo_columns(columns) {
  const names = Object.keys(columns);
  return (columns[names[0]] ?? []).map((_, i) =>
    Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}

/** Numbers that were written as how often each is repeated. */
function undo_runs(lengths, n) {
  const numbers = new Int32Array(n);
  let start = 0;
  lengths.forEach((length, i) => { numbers.fill(i, start, start += length); });
  return numbers;
}

/** A trace, read-only. */
export class TraceView {
  /** The call that failed, and its arguments; or "". @type {string} */ failure;
  /** Why it failed, if it did. @type {import("./why/why.js").Explanation | null} */ explanation;
  /** @type {string} */ headline;
  /** @type {string | null} */ error;
  /** Line of the cell at which it failed, or 0. @type {number} */ error_line;
  /** @type {string} */ source;
  /** As of a `SourceText`. @type {number[][]} */ tokens;
  /** The cell's file, and the line of it at which `source` begins. @type {Cell} */ cell;
  /** Earlier cells, and functions of the user's files. @type {SourceText[]} */ texts;
  /** @type {{text: string, line: number, why: string}[]} */ notes;
  /** @type {Record<string, number>} */ nbytes_by_dtype;
  /** @type {Module[]} */ modules;
  /** The texts that columns have for some operators. @type {Record<string, string>[]} */ notes_of_op;
  /** The texts for all others. @type {Record<string, string>} */ no_notes;
  /** Of the tables, in their order. @type {{ops: Column[], modules: Column[]}} */ columns;
  /** What only the details panel shows. @type {Details} */ details;
  /** @type {import("./memory/lives.js").PackedLives} */ memory;
  /** @type {import("./rooflines.js").Work} */ work;
  /** Of a trace that was recorded for one. @type {import("./world/sent.js").PackedWorld | undefined} */ world;
  /** Roots of the module trees. @type {number[]} */ roots = [];

  /** @param {any} payload */
  constructor({ version, geometries, signatures, places, ops, storages, owners, ...plain }) {
    if (version !== VERSION) {
      throw new Error(`this report reads payloads of version ${VERSION}, not ${version}`);
    }
    const { calls, positions, remarks, work, ...own } = plain;
    const stretches = undo_columns(positions);
    Object.assign(this, read_notes(remarks));
    Object.assign(this, own);
    this.work = { ...work, devices: undo_columns(work.devices) };
    [...geometries, ...plain.modules.flatMap(({ tensors }) => tensors)].forEach(({ shape, names }) => {
      if (names) Object.assign(shape, { names });
    });
    /** The kind of change of each module that changed. @type {Map<number, string>} */
    this.marks = new Map();
    /** What another design had besides, and the modules above, before and after it. @type {{text: string, places: number[]}[]} */
    this.removed = [];
    /** Whether sizes have names. */
    this.has_names = geometries.some(({ names }) => names);
    const find = (i) => geometries[i];
    /** @type {Signature[]} */
    this.signatures = undo_columns(signatures).map(({ inputs, outputs, ...rest }) => (
      { ...rest, inputs: inputs.map(find), outputs: outputs.map(find) }));
    /** @type {CallSite[]} */
    this.call_sites = undo_columns(places).map(({ position, ...rest }) => (
      { ...NOWHERE, ...stretches[position], ...rest }));
    this.n_ops = ops.signature.length;
    this.op_signature = Int32Array.from(ops.signature);
    this.op_site = Int32Array.from(ops.place);
    this.op_module = Int32Array.from(ops.module);
    this.op_call = Int32Array.from(ops.call);
    /** Number of the call of a Python function that made each operator, or of it alone. */
    this.op_function = undo_runs(ops.functions, this.n_ops);
    this.op_forward = Int32Array.from(ops.forward, (back, i) => (back ? i - back : -1));
    /** Tensor numbers of all operators, read and then returned. */
    this.op_tensors = undo_deltas(ops.tensors);
    /** Where the tensors of each operator begin in `op_tensors`; one more at the end. */
    this.op_start = new Int32Array(this.n_ops + 1);
    for (let i = 0; i < this.n_ops; i += 1) {
      const { inputs, outputs } = this.signature(i);
      this.op_start[i + 1] = this.op_start[i] + inputs.length + outputs.length;
    }
    this.storage_of_tensor = undo_deltas(storages);
    /** @type {Map<number, number>} module that holds a parameter, by its storage */
    this.owner_of_storage = new Map(owners);
    /** Names of arguments, by the tensor that a model was given. @type {Map<number, string>} */
    this.arguments = new Map(plain.arguments);
    this.calls = read_calls(calls, stretches, find);
    this.#add_up();
  }

  /** Add what each module holds to those above it; children come after their parents. */
  #add_up() {
    let first_tensor = 0;
    this.modules.forEach((module, index) => {
      Object.assign(module, {
        index, first_tensor, children: [], n_params: 0, nbytes: 0, flops: 0, activations: 0,
        n_ops: 0,
      });
      first_tensor += module.tensors.length;
    });
    this.op_module.forEach((index, op) => {
      const module = this.modules[index];
      if (!module) return;
      module.n_ops += 1;
      const { flops, outputs, views } = this.signature(op);
      module.flops += Math.max(0, flops);
      if (PHASES[this.site(op).phase] !== "forward") return;
      outputs.forEach(({ nbytes }, i) => { if (views[i] < 0) module.activations += nbytes; });
    });
    const likenesses = new Map();
    for (const module of this.modules.toReversed()) {
      const { tensors, children, parent } = module;
      for (const { tied_to, kind, nbytes, numel } of tensors) {
        if (tied_to || kind === "attribute") continue;
        module.nbytes += nbytes;
        if (kind === "parameter") module.n_params += numel;
      }
      const structure = JSON.stringify([
        module.class_name, module.n_calls, module.shared_with,
        tensors.map((tensor) => ({ ...tensor, tied_to: Boolean(tensor.tied_to) })),
        children.map((i) => [this.modules[i].name, this.modules[i].likeness]),
      ]);
      if (!likenesses.has(structure)) likenesses.set(structure, likenesses.size);
      module.likeness = likenesses.get(structure);
      const above = this.modules[parent];
      for (const total of above ? TOTALS : []) above[total] += module[total];
      (above?.children ?? this.roots).unshift(module.index);
    }
  }

  /** The settings of a module: in full, and in short its sizes and the others. @param {number} module */
  settings(module) {
    return this.details.settings[this.details.settings_of[module]] ?? ["", "", ""];
  }

  /** The signature of an operator. @param {number} op */
  signature(op) {
    return this.signatures[this.op_signature[op]];
  }

  /** The call site of an operator. @param {number} op */
  site(op) {
    return this.call_sites[this.op_site[op]];
  }

  /** Whether it was an operator that raised. @param {number} op */
  is_raised = (op) => Boolean(this.notes_of_op[op]?.raised);

  /** The item that the report opens on: the one that failed. @returns {import("./selection.js").Selected | null} */
  get stop() {
    const index = this.n_ops - 1;
    if (this.is_raised(index)) return { kind: "op", index };
    return this.error_line ? { kind: "line", index: this.error_line } : null;
  }

  /** @param {number} index @returns {Operator} */
  op(index) {
    const signature = this.signature(index);
    const start = this.op_start[index];
    const see = (from) => (geometry, i) => {
      const id = this.op_tensors[from + i];
      return { id, storage: this.storage_of_tensor[id], geometry };
    };
    return {
      index, signature, site: this.site(index), inputs: signature.inputs.map(see(start)),
      outputs: signature.outputs.map(see(start + signature.inputs.length)),
      module: this.op_module[index], call: this.op_call[index], forward: this.op_forward[index],
    };
  }

  /**
   * Return neighbours that are numbered and built alike as one run each.
   * @param {number[]} siblings
   */
  runs(siblings) {
    /** @type {number[][]} */
    const runs = [];
    for (const index of siblings) {
      const [module, before] = [this.modules[index], this.modules[runs.at(-1)?.[0] ?? -1]];
      const is_alike = before?.likeness === module.likeness
        && [before, module].every(({ name }) => /^\d+$/.test(name));
      if (is_alike) runs.at(-1).push(index);
      else runs.push([index]);
    }
    return runs;
  }
}

/** A module, and all that it is in; none for -1. @param {TraceView} trace @param {number} module */
export function list_path({ modules }, module) {
  const path = [];
  for (let at = module; at >= 0; at = modules[at].parent) path.push(at);
  return path;
}

/** The module that holds a tensor, by its number among those of all. @param {TraceView} trace */
export const find_holder = ({ modules }, /** @type {number} */ tensor) =>
  modules.findLast(({ first_tensor, tensors }) => tensors.length && first_tensor <= tensor)?.index ?? -1;

/** The texts that columns have for single operators, and for all others. */
function read_notes(/** @type {Record<string, [number, number, string][]>} */ remarks) {
  const no_notes = Object.fromEntries(Object.keys(remarks).map((column) => [column, ""]));
  const notes_of_op = [];
  for (const [column, spans] of Object.entries(remarks)) {
    for (const [first, end, text] of spans) {
      for (let i = first; i < end; i += 1) (notes_of_op[i] ??= { ...no_notes })[column] = text;
    }
  }
  return { no_notes, notes_of_op };
}

/** @returns {Call[]} */
function read_calls({ module, first, structures, ...columns }, positions, find) {
  const sides = structures.map((structure) => structure.map((side) =>
    side.map(({ path, geometry }) => ({ path, geometry: find(geometry) }))));
  let first_op = 0;
  return module.map((number, index) => {
    first_op += first[index];
    const [inputs, outputs] = sides[columns.structure[index]];
    return {
      index, module: number, parent: columns.parent[index], line: columns.line[index],
      position: positions[columns.position[index]] ?? null, first_op,
      end_op: first_op + columns.length[index], inputs, outputs,
    };
  });
}
