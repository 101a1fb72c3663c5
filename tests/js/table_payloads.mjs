// Traces for the tests of the tables: modules with what they hold, operators on some shapes.

import { TraceView } from "../../meta_magic/view/static/data.js";
import { make_geometry, make_modules, make_payload, make_table } from "./payloads.mjs";

/**
 * A trace of modules and operators.
 *
 * modules: {parent, name, cls, tensors, calls, shared}; a tensor is
 * {name, kind, shape, tied_to, is_lazy, ...}, of float32.
 * ops: {op, args, inputs, outputs (shapes), writes, views, flops, moves (bytes read, and written),
 * module, fn, line, phase, file, at, forward}.
 * columns: by table what is shown beside what the report has.
 */
export function make_trace({ modules = [], ops = [], columns }) {
  const geometries = make_table();
  const geometry = (shape) => geometries.number_of(make_geometry(shape));
  const called = modules.flatMap((module, i) => (module.calls ? [i] : []));
  const none = (things) => things.flatMap(({ inputs = [], outputs = [] }) =>
    [...inputs, ...outputs].map(() => 0));
  const passed = (path, shape) => ({ path, geometry: geometry(shape) });
  return new TraceView(make_payload({
    columns,
    modules: make_modules(modules.map(({ cls = "Linear", calls = 0, shared = -1, ...own }, i) => ({
      ...own, class_name: cls, n_calls: calls, first_call: called.indexOf(i), shared_with: shared,
    }))),
    signatures: ops.map(({
      op = "aten.mm.default", args = "", inputs = [], outputs = [], writes = [], views, flops = -1,
    }) => ({
      op, args, inputs: inputs.map(geometry), outputs: outputs.map(geometry), writes,
      views: views ?? outputs.map(() => -1), flops,
    })),
    work: { read: ops.map(({ moves = [0] }) => moves[0]), written: ops.map(({ moves = [0, 0] }) => moves[1]) },
    places: ops.map(({ fn = "", line = 0, phase = 1, file }, i) =>
      ({ function: fn, line, phase, position: file ? i : -1 })),
    positions: ops.map(({ file = "", at = 0 }) =>
      ({ file, scope: "", start: at, end: at, column: -1, end_column: -1 })),
    ops: {
      signature: ops.map((_, i) => i), place: ops.map((_, i) => i),
      module: ops.map(({ module = -1 }) => module), call: ops.map(() => -1),
      forward: ops.map(({ forward }, i) => (forward === undefined ? 0 : i - forward)),
      tensors: none(ops),
    },
    storages: none(ops), calls: {
      module: called, parent: called.map(() => -1), line: called.map(() => 1),
      position: called.map(() => -1),
      first: called.map(() => 0), length: called.map(() => 0), structure: called.map(() => 0),
      structures: [[[passed("0", [2, 3]), passed("mask", [3])], [passed("", [])]]],
    },
    geometries: geometries.rows,
  }));
}

const weight = (...shape) => ({ name: "weight", shape });

/**
 * A model: `embed`, three layers that are alike, of an `attn` and an `mlp` each, and a
 * `head` that is tied to `embed`; layer 1 does 6 of the 10 FLOPs, layer 0 and 2 do 2 each.
 *
 * 0 model; 1 embed; 2 layers; 3, 4, 5 layers.0 and below; 6.. layers.1; 9.. layers.2; 12 head
 */
export function make_model() {
  const layer = (name, at) => [
    { parent: 2, name, cls: "Layer", calls: 1 },
    { parent: at, name: "attn", cls: "Attention", tensors: [weight(2, 2)], calls: 1 },
    { parent: at, name: "mlp", cls: "Linear", tensors: [weight(3, 2)], calls: 1 },
  ];
  const tied = { ...weight(10, 2), tied_to: "embed.weight" };
  return make_trace({
    modules: [
      { name: "model", cls: "Model", calls: 1 },
      { parent: 0, name: "embed", cls: "Embedding", tensors: [weight(10, 2)], calls: 1 },
      { parent: 0, name: "layers", cls: "ModuleList" },
      ...layer("0", 3), ...layer("1", 6), ...layer("2", 9),
      { parent: 0, name: "head", tensors: [tied], calls: 3 },
    ],
    ops: [{ module: 4, flops: 2 }, { module: 7, flops: 6 }, { module: 10, flops: 2 }],
  });
}
