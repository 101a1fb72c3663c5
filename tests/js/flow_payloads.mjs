// Small payloads, as `view/payload.py` writes them, told by what their operators do.

import { PHASES, TraceView } from "../../meta_magic/view/static/data.js";

/**
 * Return the trace of some operators. Tensors are names; a name is a storage of its own,
 * unless its operator is a view of its first input. All tensors are (2, 3) of float32.
 * @param {{op: string, reads?: string[], makes?: string[], writes?: number[], is_view?: boolean,
 *   phase?: string, module?: number, call?: number, line?: number}[]} ops
 * @param {{name: string, parent?: number, cls?: string, calls?: number}[]} modules
 * @param {{module: number, parent?: number, first: number, end: number}[]} calls
 * @param {{error?: string, parameters?: string[]}} more
 */
export function make_trace(ops, modules = [], calls = [], { error, parameters = [] } = {}) {
  const strings = [""];
  const text = (value) => {
    if (!strings.includes(value)) strings.push(value);
    return strings.indexOf(value);
  };
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
  return new TraceView({
    version: 1, cell: ["", 2], texts: [], headline: "", error: error ?? null, error_line: 0, source: "", notes: [], bytes_by_dtype: [],
    geometries: [[0, 1, 0, text("float32"), text("meta"), text("strided"), 4]],
    shapes: [[2, 3], [3, 1]],
    signatures: ops.map(({ op, reads = [], makes = [], writes = [], is_view }) => [
      text(op), 0, reads.map(() => 0), makes.map(() => 0), writes,
      makes.map(() => (is_view ? 0 : -1)), -1]),
    places: ops.map(({ line = 1, phase = "forward" }) => [
      text("torch.f"), line, PHASES.indexOf(phase), -1]),
    positions: [],
    ops: {
      signature: ops.map((_, i) => i), place: ops.map((_, i) => i),
      module: ops.map(({ module = -1 }) => module), call: ops.map(({ call = -1 }) => call),
      forward: ops.map(() => 0), tensors: to_deltas(tensors),
    },
    storages: to_deltas(storages),
    owners: parameters.map((name) => [storages[numbers.get(name)], 0]),
    calls: {
      structures: [[[], []]], structure: calls.map(() => 0), line: calls.map(() => 1),
      position: calls.map(() => -1),
      module: calls.map((call) => call.module), parent: calls.map(({ parent = -1 }) => parent),
      first: calls.map(({ first }, i) => first - (calls[i - 1]?.first ?? 0)),
      length: calls.map(({ first, end }) => end - first),
    },
    modules: {
      parent: modules.map(({ parent = -1 }) => parent), name: modules.map(({ name }) => text(name)),
      cls: modules.map(({ cls = "Linear" }) => text(cls)), tensors: modules.map(() => []),
      calls: modules.map((_, i) => calls.filter(({ module }) => module === i).length),
      first: modules.map(() => -1), shared: modules.map(() => -1),
    },
    strings,
  });
}

function to_deltas(numbers) {
  let n_met = 0;
  return numbers.map((number) => {
    const delta = n_met - number;
    n_met = Math.max(n_met, number + 1);
    return delta;
  });
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
