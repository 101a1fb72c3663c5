// Payloads built by hand, so small that what is expected of them can be worked out.

import { TraceView } from "../../meta_magic/view/static/data.js";

/** Give each distinct item a number, in order of first sight. */
function table() {
  const items = [];
  const number = (item) => {
    const text = JSON.stringify(item);
    const at = items.findIndex((other) => JSON.stringify(other) === text);
    return at < 0 ? items.push(item) - 1 : at;
  };
  return { items, number };
}

/**
 * A trace of modules and operators.
 *
 * modules: {parent, name, cls, tensors, calls, shared}; a tensor is
 * {name, kind, shape, flags, tied_to}, of float32.
 * ops: {op, args, inputs, outputs (shapes), writes, views, flops, module, fn, line, phase,
 * file, at, forward}.
 */
export function make_trace({ modules = [], ops = [] }) {
  const strings = table();
  const shapes = table();
  const geometries = table();
  strings.number("");
  const text = (string = "") => strings.number(string);
  const geometry = (shape) => geometries.number([
    shapes.number(shape), shapes.number(shape.map((_, i) => product(shape.slice(i + 1)))), 0,
    text("float32"), text("meta"), text("strided"), 4,
  ]);
  const product = (sizes) => sizes.reduce((a, b) => a * b, 1);
  const kinds = ["parameter", "buffer", "attribute"];
  const called = modules.flatMap((module, i) => (module.calls ? [i] : []));
  const payload = {
    version: 1, cell: ["", 2], texts: [], headline: "", error: null, source: "",
    bytes_by_dtype: [], notes: [],
    modules: {
      parent: modules.map(({ parent = -1 }) => parent),
      name: modules.map(({ name }) => text(name)),
      cls: modules.map(({ cls = "Linear" }) => text(cls)),
      calls: modules.map(({ calls = 0 }) => calls),
      first: modules.map((_, i) => called.indexOf(i)),
      shared: modules.map(({ shared = -1 }) => shared),
      tensors: modules.map(({ tensors = [] }) => tensors.map(
        ({ name, kind = "parameter", shape = [], flags = 1, tied_to }) => [
          text(name), kinds.indexOf(kind), shapes.number(shape), text("float32"), 4, flags,
          text(tied_to),
        ],
      )),
    },
    signatures: ops.map(
      ({
        op = "aten.mm.default", args, inputs = [], outputs = [], writes = [], views, flops = -1,
      }) => [
        text(op), text(args), inputs.map(geometry), outputs.map(geometry), writes,
        views ?? outputs.map(() => -1), flops,
      ],
    ),
    places: ops.map(({ fn, line = 0, phase = 1, file }, i) =>
      [text(fn), line, phase, file ? i : -1]),
    positions: ops.map(({ file, at = 0 }) => [text(file), 0, at, at, -1, -1]),
    ops: {
      signature: ops.map((_, i) => i), place: ops.map((_, i) => i),
      module: ops.map(({ module = -1 }) => module), call: ops.map(() => -1),
      forward: ops.map(({ forward }, i) => (forward === undefined ? 0 : i - forward)),
      tensors: ops.flatMap(({ inputs = [], outputs = [] }) => [...inputs, ...outputs].map(() => 0)),
    },
    storages: ops.flatMap(({ inputs = [], outputs = [] }) => [...inputs, ...outputs].map(() => 0)),
    owners: [],
    calls: {
      module: called, parent: called.map(() => -1), line: called.map(() => 1),
      position: called.map(() => -1),
      first: called.map(() => 0), length: called.map(() => 0), structure: called.map(() => 0),
      structures: [[
        [[text("0"), geometry([2, 3])], [text("mask"), geometry([3])]], [[text(""), geometry([])]],
      ]],
    },
  };
  return new TraceView({
    ...payload, geometries: geometries.items, shapes: shapes.items, strings: strings.items,
  });
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
