// The payload that Python wrote, as columns and as records. Touches no document, so that
// node can read it, too. `view/payload.py` writes what is read here.

const VERSION = 1;

/** What the program was doing, by its number in the payload. */
export const PHASES = ["init", "forward", "backward", "optimizer", "other"];
const KINDS = ["parameter", "buffer", "attribute"];
const TOTALS = ["n_params", "nbytes", "flops", "n_ops"];
const NOWHERE = { file: "", scope: "", start: 0, end: 0, column: -1, end_column: -1 };

/**
 * @typedef {{shape: number[], stride: number[] | null, offset: number, dtype: string,
 *   device: string, layout: string, nbytes: number}} Geometry
 * @typedef {{id: number, storage: number, geometry: Geometry}} TensorSeen
 * @typedef {{op: string, args: string, inputs: Geometry[], outputs: Geometry[],
 *   writes: number[], views: number[], flops: number}} Signature
 *   `views`: for each output the input whose storage it shares, or -1; `flops`: or -1
 * @typedef {{file: string, scope: string, start: number, end: number, column: number,
 *   end_column: number}} Position `start` to `end`: lines in the file; columns or -1
 * @typedef {Position & {function: string, line: number, phase: number}} Place
 *   `line`: of the cell, or 0
 * @typedef {{name: string, kind: string, shape: number[], dtype: string, numel: number,
 *   nbytes: number, is_persistent: boolean, is_lazy: boolean, requires_grad: boolean,
 *   is_real: boolean, tied_to: string}} OwnTensor
 * @typedef {{index: number, parent: number, name: string, fqn: string, class_name: string,
 *   children: number[], tensors: OwnTensor[], n_calls: number, first_call: number,
 *   shared_with: number, n_params: number, nbytes: number, flops: number, n_ops: number,
 *   likeness: string}} Module
 *   totals are of the whole subtree, tied tensors counted once; `likeness` is equal for
 *   modules that are built alike, whatever their names
 * @typedef {{index: number, signature: Signature, place: Place, inputs: TensorSeen[],
 *   outputs: TensorSeen[], module: number, call: number, forward: number}} Operator
 *   `module`, `call`, `forward`: or -1
 * @typedef {{path: string, geometry: Geometry}} Passed
 * @typedef {{index: number, module: number, parent: number, line: number,
 *   position: Position | null, first_op: number, end_op: number, inputs: Passed[],
 *   outputs: Passed[]}} Call
 */

/**
 * Return the trace of a payload as it was sent.
 * @param {ArrayBuffer | ArrayBufferView} packed JSON, compressed by gzip
 */
export async function decode(packed) {
  const blob = new Blob([/** @type {BlobPart} */ (packed)]);
  const stream = blob.stream().pipeThrough(new DecompressionStream("gzip"));
  return new TraceView(await new Response(stream).json());
}

/** Numbers that were written as how far they lie below the first one not met. */
function undo_deltas(deltas) {
  let n_met = 0;
  return Int32Array.from(deltas, (delta) => {
    const number = n_met - delta;
    n_met = Math.max(n_met, number + 1);
    return number;
  });
}

/** A trace, read-only. */
export class TraceView {
  /** @param {any} payload */
  constructor(payload) {
    const { version, strings, shapes, ops } = payload;
    if (version !== VERSION) {
      throw new Error(`this report reads payloads of version ${VERSION}, not ${version}`);
    }
    /** @type {string} */ this.headline = payload.headline;
    /** @type {string | null} */ this.error = payload.error;
    /** Line of the cell at which it failed, or 0. @type {number} */
    this.error_line = payload.error_line;
    /** @type {string} */ this.source = payload.source;
    /** HTML, escaped. @type {string} */ this.chart = payload.chart;
    /** The file of the cell, and the line of it at which `source` begins. */
    this.cell = { file: String(payload.cell[0]), first: Number(payload.cell[1]) };
    /** Functions defined in the notebook. */
    this.texts = payload.texts.map(([file, scope, first, text]) => ({ file, scope, first, text }));
    /** @type {[string, number][]} */ this.bytes_by_dtype = payload.bytes_by_dtype;
    /** @type {{kind: string, text: string, line: number}[]} */
    this.notes = payload.notes.map(([kind, text, line]) => ({ kind, text, line }));
    /** @type {Geometry[]} */
    this.geometries = payload.geometries.map(
      ([shape, stride, offset, dtype, device, layout, itemsize]) => ({
        shape: shapes[shape], stride: shapes[stride] ?? null, offset, dtype: strings[dtype],
        device: strings[device], layout: strings[layout],
        nbytes: multiply(shapes[shape]) * itemsize,
      }),
    );
    const find = (i) => this.geometries[i];
    /** @type {Signature[]} */
    this.signatures = payload.signatures.map(
      ([op, args, inputs, outputs, writes, views, flops]) => ({
        op: strings[op], args: strings[args], inputs: inputs.map(find),
        outputs: outputs.map(find), writes, views, flops,
      }),
    );
    /** @type {Position[]} */
    const positions = payload.positions.map(([file, scope, start, end, column, end_column]) => ({
      file: strings[file], scope: strings[scope], start, end, column, end_column,
    }));
    /** @type {Place[]} */
    this.places = payload.places.map(([name, line, phase, position]) => ({
      ...positions[position] ?? NOWHERE, function: strings[name], line, phase,
    }));
    this.n_ops = ops.signature.length;
    this.op_signature = Int32Array.from(ops.signature);
    this.op_place = Int32Array.from(ops.place);
    this.op_module = Int32Array.from(ops.module);
    this.op_call = Int32Array.from(ops.call);
    this.op_forward = Int32Array.from(ops.forward, (back, i) => (back ? i - back : -1));
    /** Tensor numbers of all operators, read and then returned. */
    this.op_tensors = undo_deltas(ops.tensors);
    /** Where the tensors of each operator begin in `op_tensors`; one more at the end. */
    this.op_start = new Int32Array(this.n_ops + 1);
    for (let i = 0; i < this.n_ops; i += 1) {
      const { inputs, outputs } = this.signature(i);
      this.op_start[i + 1] = this.op_start[i] + inputs.length + outputs.length;
    }
    this.storage_of_tensor = undo_deltas(payload.storages);
    /** @type {Map<number, number>} module that holds a parameter, by its storage */
    this.owner_of_storage = new Map(payload.owners);
    this.calls = read_calls(payload.calls, positions, (side) =>
      side.map(([path, geometry]) => ({ path: strings[path], geometry: find(geometry) })));
    this.modules = read_modules(payload);
    /** Roots of the module trees. @type {number[]} */
    this.roots = [];
    for (let i = 0; i < this.n_ops; i += 1) {
      const module = this.modules[this.op_module[i]];
      if (!module) continue;
      module.n_ops += 1;
      module.flops += Math.max(0, this.signature(i).flops);
    }
    this.#add_up();
  }

  /** Add what each module holds to those above it; children come after their parents. */
  #add_up() {
    const likenesses = new Map();
    for (const module of this.modules.toReversed()) {
      const { tensors, children, parent } = module;
      for (const tensor of tensors) {
        if (tensor.tied_to || tensor.kind === "attribute") continue;
        module.nbytes += tensor.nbytes;
        if (tensor.kind === "parameter") module.n_params += tensor.numel;
      }
      const structure = JSON.stringify([
        module.class_name, module.n_calls, module.shared_with,
        tensors.map((t) => [t.name, t.kind, t.shape, t.dtype, t.requires_grad, !t.tied_to]),
        children.map((i) => [this.modules[i].name, this.modules[i].likeness]),
      ]);
      if (!likenesses.has(structure)) likenesses.set(structure, String(likenesses.size));
      module.likeness = likenesses.get(structure);
      const above = this.modules[parent];
      for (const total of above ? TOTALS : []) above[total] += module[total];
      (above?.children ?? this.roots).unshift(module.index);
    }
  }

  /** What an operator did. @param {number} op */
  signature(op) {
    return this.signatures[this.op_signature[op]];
  }

  /** Where an operator ran. @param {number} op */
  place(op) {
    return this.places[this.op_place[op]];
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
      index, signature, place: this.place(index), inputs: signature.inputs.map(see(start)),
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

/** @returns {Call[]} */
function read_calls(calls, positions, read_passed) {
  const structures = calls.structures.map((sides) => sides.map(read_passed));
  let first_op = 0;
  return calls.module.map((module, index) => {
    first_op += calls.first[index];
    const [inputs, outputs] = structures[calls.structure[index]];
    return {
      index, module, parent: calls.parent[index], line: calls.line[index],
      position: positions[calls.position[index]] ?? null, first_op,
      end_op: first_op + calls.length[index], inputs, outputs,
    };
  });
}

/** @returns {Module[]} without what is added up */
function read_modules({ modules, strings, shapes }) {
  const fqns = [];
  return modules.parent.map((parent, index) => {
    const name = strings[modules.name[index]];
    if (parent < 0) fqns[index] = "";
    else fqns[index] = modules.parent[parent] < 0 ? name : `${fqns[parent]}.${name}`;
    return {
      index, parent, name, fqn: fqns[index], class_name: strings[modules.cls[index]],
      children: [], tensors: modules.tensors[index].map((row) => read_tensor(row, strings, shapes)),
      n_calls: modules.calls[index], first_call: modules.first[index],
      shared_with: modules.shared[index], n_params: 0, nbytes: 0, flops: 0, n_ops: 0,
      likeness: "",
    };
  });
}

/** @returns {OwnTensor} */
function read_tensor([name, kind, shape, dtype, itemsize, flags, tied_to], strings, shapes) {
  const is_lazy = Boolean(flags & 2);
  const numel = is_lazy ? 0 : multiply(shapes[shape]);
  return {
    name: strings[name], kind: KINDS[kind], shape: shapes[shape], dtype: strings[dtype], numel,
    nbytes: numel * itemsize, is_persistent: Boolean(flags & 1), is_lazy,
    requires_grad: Boolean(flags & 4), is_real: Boolean(flags & 8), tied_to: strings[tied_to],
  };
}

const multiply = (sizes) => sizes.reduce((a, b) => a * b, 1);
