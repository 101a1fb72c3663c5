// The payload that Python wrote, as columns and as records. Touches no document, so that
// node can read it, too. `view/payload.py` writes what is read here.

const VERSION = 1;

/** What the program was doing, by its number in the payload. */
export const PHASES = ["init", "forward", "backward", "optimizer", "other"];
const KINDS = ["parameter", "buffer", "attribute"];

/**
 * @typedef {{shape: number[], stride: number[] | null, offset: number, dtype: string,
 *   device: string, layout: string, nbytes: number}} Geometry
 * @typedef {{id: number, storage: number, geometry: Geometry}} TensorSeen
 * @typedef {{op: string, args: string, inputs: Geometry[], outputs: Geometry[],
 *   writes: number[], views: number[], flops: number}} Signature
 *   `views`: for each output the input whose storage it shares, or -1; `flops`: or -1
 * @typedef {{function: string, line: number, phase: number, file: string, scope: string,
 *   start: number, end: number, column: number, end_column: number}} Place
 *   `line`: of the cell, or 0; `start` to `end`: lines in the file; columns or -1
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
 * @typedef {{index: number, module: number, parent: number, line: number, first_op: number,
 *   end_op: number, inputs: Passed[], outputs: Passed[]}} Call
 */

/**
 * Return the trace of a payload as it was sent.
 * @param {ArrayBuffer | ArrayBufferView} packed JSON, compressed by gzip
 */
export async function decode(packed) {
  const view = ArrayBuffer.isView(packed)
    ? new Uint8Array(packed.buffer, packed.byteOffset, packed.byteLength)
    : new Uint8Array(packed);
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new TraceView(await new Response(stream).json());
}

/** Numbers that were written as how far they lie below the first one not met. */
function undo_deltas(/** @type {number[]} */ deltas) {
  let n_met = 0;
  return Int32Array.from(deltas, (delta) => {
    const number = n_met - delta;
    n_met = Math.max(n_met, number + 1);
    return number;
  });
}

const product = (/** @type {number[]} */ sizes) => sizes.reduce((a, b) => a * b, 1);

/** A trace, read-only. */
export class TraceView {
  /** @param {any} payload */
  constructor(payload) {
    if (payload.version !== VERSION) {
      throw new Error(`this report reads payloads of version ${VERSION}, not ${payload.version}`);
    }
    const text = (/** @type {number} */ i) => payload.strings[i];
    /** @type {string} */ this.headline = payload.headline;
    /** @type {string | null} */ this.error = payload.error;
    /** @type {string} */ this.source = payload.source;
    /** The file of the cell, and the line of it at which `source` begins. */
    this.cell = { file: String(payload.cell[0]), first: Number(payload.cell[1]) };
    /** Functions defined in the notebook. @type {{file: string, scope: string, first: number, text: string}[]} */
    this.texts = payload.texts.map(
      (/** @type {[string, string, number, string]} */ [file, scope, first, code]) => ({
        file, scope, first, text: code,
      }),
    );
    /** @type {[string, number][]} */ this.bytes_by_dtype = payload.bytes_by_dtype;
    /** @type {{kind: string, text: string, line: number}[]} */
    this.notes = payload.notes.map(([kind, note, line]) => ({ kind, text: note, line }));
    /** @type {Geometry[]} */
    this.geometries = payload.geometries.map(
      ([shape, stride, offset, dtype, device, layout, itemsize]) => ({
        shape: payload.shapes[shape],
        stride: stride < 0 ? null : payload.shapes[stride],
        offset,
        dtype: text(dtype),
        device: text(device),
        layout: text(layout),
        nbytes: product(payload.shapes[shape]) * itemsize,
      }),
    );
    const geometry = (/** @type {number} */ i) => this.geometries[i];
    /** @type {Signature[]} */
    this.signatures = payload.signatures.map(
      ([op, args, inputs, outputs, writes, views, flops]) => ({
        op: text(op), args: text(args), inputs: inputs.map(geometry),
        outputs: outputs.map(geometry), writes, views, flops,
      }),
    );
    /** @type {Place[]} */
    this.places = payload.places.map(
      ([fn, line, phase, file = 0, scope = 0, start = 0, end = 0, column = -1, last = -1]) => ({
        function: text(fn), line, phase, file: text(file), scope: text(scope), start, end,
        column, end_column: last,
      }),
    );
    this.#read_ops(payload);
    this.#read_calls(payload, text, geometry);
    this.#read_modules(payload, text);
  }

  /** @param {any} payload */
  #read_ops({ ops, storages, owners }) {
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
    this.storage_of_tensor = undo_deltas(storages);
    /** The operator that returned a tensor first, or -1 if it came from outside. */
    this.producer_of_tensor = new Int32Array(this.storage_of_tensor.length).fill(-1);
    /** @type {Map<number, number>} module that holds a parameter, by its storage */
    this.owner_of_storage = new Map(owners);
    let start = 0;
    for (let i = 0; i < this.n_ops; i += 1) {
      const { inputs, outputs } = this.signatures[this.op_signature[i]];
      this.op_start[i] = start;
      start += inputs.length;
      for (const end = start + outputs.length; start < end; start += 1) {
        const tensor = this.op_tensors[start];
        if (this.producer_of_tensor[tensor] < 0) this.producer_of_tensor[tensor] = i;
      }
    }
    this.op_start[this.n_ops] = start;
  }

  /** @param {any} payload @param {(i: number) => string} text @param {(i: number) => Geometry} geometry */
  #read_calls({ calls }, text, geometry) {
    const structures = calls.structures.map((/** @type {number[][][]} */ sides) =>
      sides.map((side) => side.map(([path, g]) => ({ path: text(path), geometry: geometry(g) }))),
    );
    let first_op = 0;
    /** @type {Call[]} */
    this.calls = calls.module.map((/** @type {number} */ module, /** @type {number} */ index) => {
      first_op += calls.first[index];
      const [inputs, outputs] = structures[calls.structure[index]];
      return {
        index, module, parent: calls.parent[index], line: calls.line[index], first_op,
        end_op: first_op + calls.length[index], inputs, outputs,
      };
    });
  }

  /** @param {any} payload @param {(i: number) => string} text */
  #read_modules({ modules, shapes }, text) {
    /** @type {Module[]} */
    this.modules = modules.parent.map(
      (/** @type {number} */ parent, /** @type {number} */ index) => ({
        index, parent, name: text(modules.name[index]), fqn: "", class_name: text(modules.cls[index]),
        children: [], tensors: modules.tensors[index].map(
          (/** @type {number[]} */ row) => read_tensor(row, text, shapes),
        ),
        n_calls: modules.calls[index], first_call: modules.first[index],
        shared_with: modules.shared[index], n_params: 0, nbytes: 0, flops: 0, n_ops: 0,
        likeness: "",
      }),
    );
    /** Roots of the module trees. @type {number[]} */
    this.roots = [];
    for (const module of this.modules) {
      const above = this.modules[module.parent];
      if (above === undefined) {
        this.roots.push(module.index);
        continue;
      }
      above.children.push(module.index);
      module.fqn = above.parent < 0 ? module.name : `${above.fqn}.${module.name}`;
    }
    for (let i = 0; i < this.n_ops; i += 1) {
      const module = this.modules[this.op_module[i]];
      if (module === undefined) continue;
      module.n_ops += 1;
      module.flops += Math.max(0, this.signatures[this.op_signature[i]].flops);
    }
    /** @type {Map<string, string>} */
    const names = new Map();
    for (const module of [...this.modules].reverse()) this.#add_up(module, names);
  }

  /** Add what a module holds itself, and itself to its parent; children come first. */
  #add_up(/** @type {Module} */ module, /** @type {Map<string, string>} */ names) {
    for (const tensor of module.tensors) {
      if (tensor.tied_to || tensor.kind === "attribute") continue;
      module.nbytes += tensor.nbytes;
      if (tensor.kind === "parameter") module.n_params += tensor.numel;
    }
    const structure = JSON.stringify([
      module.class_name, module.n_calls, module.shared_with,
      module.tensors.map((t) => [t.name, t.kind, t.shape, t.dtype, t.requires_grad, !t.tied_to]),
      module.children.map((i) => [this.modules[i].name, this.modules[i].likeness]),
    ]);
    if (!names.has(structure)) names.set(structure, String(names.size));
    module.likeness = names.get(structure) ?? "";
    const above = this.modules[module.parent];
    if (above === undefined) return;
    above.n_params += module.n_params;
    above.nbytes += module.nbytes;
    above.flops += module.flops;
    above.n_ops += module.n_ops;
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
    const middle = start + signature.inputs.length;
    const see = (/** @type {number} */ from) => (
      /** @type {Geometry} */ geometry, /** @type {number} */ i,
    ) => {
      const id = this.op_tensors[from + i];
      return { id, storage: this.storage_of_tensor[id], geometry };
    };
    return {
      index, signature, place: this.place(index),
      inputs: signature.inputs.map(see(start)), outputs: signature.outputs.map(see(middle)),
      module: this.op_module[index], call: this.op_call[index], forward: this.op_forward[index],
    };
  }

  /**
   * Return neighbours that are numbered and built alike as one run each.
   * @param {number[]} siblings @returns {number[][]}
   */
  runs(siblings) {
    /** @type {number[][]} */
    const runs = [];
    for (const index of siblings) {
      const module = this.modules[index];
      const last = runs.at(-1);
      const before = last && this.modules[last[0]];
      const is_alike = before && before.likeness === module.likeness
        && /^\d+$/.test(before.name) && /^\d+$/.test(module.name);
      if (last && is_alike) last.push(index);
      else runs.push([index]);
    }
    return runs;
  }
}

/** @param {number[]} row @param {(i: number) => string} text @param {number[][]} shapes */
function read_tensor([name, kind, shape, dtype, itemsize, flags, tied_to], text, shapes) {
  const is_lazy = Boolean(flags & 2);
  const numel = is_lazy ? 0 : product(shapes[shape]);
  return {
    name: text(name), kind: KINDS[kind], shape: shapes[shape], dtype: text(dtype), numel,
    nbytes: numel * itemsize, is_persistent: Boolean(flags & 1), is_lazy,
    requires_grad: Boolean(flags & 4), is_real: Boolean(flags & 8), tied_to: text(tied_to),
  };
}
