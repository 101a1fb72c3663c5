// Small payloads, as `view/payload.py` writes them, described by what their operators do.

import { PHASES, TraceView } from "../../meta_magic/view/static/data.js";
import { make_geometry, make_modules, make_payload, to_deltas, to_steps } from "./payloads.mjs";

/**
 * Return the trace of some operators. Tensors are names; a name is a storage of its own,
 * unless its operator is a view of its first input. All tensors are (2, 3) of float32.
 * @param {{op: string, reads?: string[], makes?: string[], writes?: number[], is_view?: boolean,
 *   phase?: string, module?: number, call?: number, line?: number, called?: string,
 *   goes_on?: boolean, flops?: number}[]} ops `called`: the function, by its name in Python;
 *   `goes_on`: the same call of it made the operator before
 * @param {{name: string, parent?: number, cls?: string, calls?: number}[]} modules
 * @param {{module: number, parent?: number, first: number, end: number}[]} calls
 * @param {{error?: string, parameters?: string[]}} more `error`: raised by the last operator
 */
export function make_trace(ops, modules = [], calls = [], { error, parameters = [] } = {}) {
  const numbers = new Map();
  const storages = [];
  const find = (name, base) => {
    if (!numbers.has(name)) {
      numbers.set(name, numbers.size);
      storages.push(base ? storages[numbers.get(base)] : Math.max(-1, ...storages) + 1);
    }
    return numbers.get(name);
  };
  const tensors = ops.flatMap(({ reads = [], makes = [], is_view }) => [
    ...reads.map((name) => find(name)), ...makes.map((name) => find(name, is_view && reads[0]))]);
  return new TraceView(make_payload({
    error: error ?? null, remarks: { raised: error ? [[ops.length - 1, ops.length, error]] : [] },
    geometries: [make_geometry([2, 3])],
    signatures: ops.map(({ op, reads = [], makes = [], writes = [], is_view, flops = -1 }) => ({
      op, args: "", inputs: reads.map(() => 0), outputs: makes.map(() => 0), writes,
      views: makes.map(() => (is_view ? 0 : -1)), flops,
    })),
    places: ops.map(({ line = 1, phase = "forward", called = "torch.f" }) =>
      ({ function: called, line, phase: PHASES.indexOf(phase), position: -1 })),
    ops: {
      signature: ops.map((_, i) => i), place: ops.map((_, i) => i),
      module: ops.map(({ module = -1 }) => module), call: ops.map(({ call = -1 }) => call),
      functions: count_calls(ops), forward: ops.map(() => 0), tensors: to_deltas(tensors),
    },
    storages: to_deltas(storages),
    owners: parameters.map((name) => [storages[numbers.get(name)], 0]),
    calls: {
      structures: [[[], []]], structure: calls.map(() => 0), line: calls.map(() => 1),
      position: calls.map(() => -1), module: calls.map((call) => call.module),
      parent: calls.map(({ parent = -1 }) => parent),
      first: to_steps(calls.map(({ first }) => first)),
      length: calls.map(({ first, end }) => end - first),
    },
    modules: make_modules(modules.map(({ cls = "Linear", ...own }, i) => ({
      ...own, class_name: cls, n_calls: calls.filter(({ module }) => module === i).length,
    }))),
  }));
}

/** How many operators each call of a function made. */
function count_calls(ops) {
  const lengths = [];
  for (const { goes_on } of ops) {
    if (goes_on) lengths[lengths.length - 1] += 1;
    else lengths.push(1);
  }
  return lengths;
}

/** A model of alike layers, each of three operators, and a residual round each. */
export function make_layers(n_layers) {
  const ops = [{ op: "aten.randn.default", makes: ["x0"], phase: "other" }];
  const modules = [{ name: "model", cls: "Net" }, { name: "layers", parent: 0, cls: "ModuleList" }];
  const calls = [{ module: 0, first: 1, end: 1 + 3 * n_layers }];
  for (let i = 0; i < n_layers; i += 1) {
    modules.push({ name: String(i), parent: 1, cls: "Layer" });
    calls.push({ module: i + 2, parent: 0, first: 1 + 3 * i, end: 4 + 3 * i });
    const inside = { module: i + 2, call: i + 1 };
    ops.push({ op: "aten.t.default", reads: ["w"], makes: [`t${i}`], is_view: true, ...inside });
    ops.push({ op: "aten.mm.default", reads: [`x${i}`, `t${i}`], makes: [`y${i}`], ...inside });
    ops.push({ op: "aten.add.Tensor", reads: [`x${i}`, `y${i}`], makes: [`x${i + 1}`], ...inside });
  }
  return make_trace(ops, modules, calls, { parameters: ["w"] });
}
