import assert from "node:assert/strict";
import { test } from "node:test";

import { PHASES } from "../../meta_magic/view/static/data.js";
import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import {
  choose_phase, find_phase, follow_values, list_phases,
} from "../../meta_magic/view/static/flow/values.js";
import { make_layers, make_trace } from "./flow_payloads.mjs";

const FORWARD = 1;
const build = (trace, phase = choose_phase(trace)) => new Boxes(follow_values(trace), phase);
function connect_all(trace) {
  const boxes = build(trace);
  return boxes.connect(boxes.root);
}

const read = (nets) => nets.map(({ from, to, is_out }) => [from, to, is_out]);

test("a value that is written in place is a new value, made by the operator that wrote", () => {
  const values = follow_values(make_trace([
    { op: "aten.ones.default", makes: ["a"] },
    { op: "aten.add_.Tensor", reads: ["a"], makes: ["a"], writes: [0] },
    { op: "aten.sum.default", reads: ["a"], makes: ["b"] },
  ]));
  const made = values.makes.flat();
  assert.deepEqual(made.map(({ maker, kind }) => [maker, kind]), [[0, "new"], [1, "write"], [2, "new"]]);
  assert.deepEqual(values.reads, [[], [made[0]], [made[1]]]);
});

test("what is written through a view is a new value of its base, too", () => {
  const values = follow_values(make_trace([
    { op: "aten.zeros.default", makes: ["cache"] },
    { op: "aten.slice.Tensor", reads: ["cache"], makes: ["part"], is_view: true },
    { op: "aten.fill_.Scalar", reads: ["part"], makes: ["part"], writes: [0] },
    { op: "aten.sum.default", reads: ["cache"], makes: ["sum"] },
  ]));
  const [[read]] = values.reads.slice(3);
  assert.equal(read.maker, 2);
  assert.equal(read.kind, "write");
  assert.ok(values.makes[2].includes(read));
});

test("what is of no phase is found with forward", () => {
  const trace = make_trace([
    { op: "aten.ones.default", makes: ["a"], phase: "other" },
    { op: "aten.mul.Tensor", reads: ["a"], makes: ["b"], phase: "forward" },
    { op: "aten.neg.default", reads: ["b"], makes: ["c"], phase: "backward" },
  ]);
  assert.deepEqual([0, 1, 2].map((op) => PHASES[find_phase(trace, op)]),
    ["forward", "forward", "backward"]);
});

test("a view is no copy, and shares the storage of its base", () => {
  const values = follow_values(make_trace([
    { op: "aten.ones.default", makes: ["a"] },
    { op: "aten.t.default", reads: ["a"], makes: ["b"], is_view: true },
  ]));
  const [base, view] = values.makes.flat();
  assert.equal(view.kind, "view");
  assert.equal(view.storage, base.storage);
});

const nested = make_trace([
  { op: "aten.randn.default", makes: ["x"], phase: "other" },
  { op: "aten.mul.Tensor", reads: ["x"], makes: ["a"], module: 1, call: 1 },
  { op: "aten.exp.default", reads: ["a"], makes: ["b"], module: 1, call: 1 },
  { op: "aten.add.Tensor", reads: ["b", "x"], makes: ["c"], module: 2, call: 2 },
  { op: "aten.sum.default", reads: ["c"], makes: ["d"], phase: "other" },
], [{ name: "model" }, { name: "left", parent: 0 }, { name: "right", parent: 0 }], [
  { module: 0, first: 1, end: 4 }, { module: 1, parent: 0, first: 1, end: 3 },
  { module: 2, parent: 0, first: 3, end: 4 },
]);

test("edges are lifted to the children of the lowest box that holds both ends", () => {
  const boxes = build(nested);
  const [, model] = boxes.root.items;
  assert.deepEqual(read(boxes.connect(boxes.root)),
    [[0, [1], false], [1, [2], false], [2, [], true]]);
  assert.deepEqual(read(boxes.connect(model)),
    [[-1, [0, 1], false], [0, [1], false], [1, [], true]]);
  assert.deepEqual(read(boxes.connect(model.items[0])),
    [[-1, [0], false], [0, [1], false], [1, [], true]]);
});

test("a tensor is one net, however many operators read it", () => {
  const trace = make_trace([
    { op: "aten.ones.default", makes: ["a", "b"] },
    { op: "aten.add.Tensor", reads: ["a", "a"], makes: ["c"] },
    { op: "aten.cat.default", reads: ["a", "c"], makes: ["d"] },
  ]);
  const [net] = connect_all(trace);
  assert.deepEqual(read([net]), [[0, [1, 2], false]]);
  assert.equal(net.values.length, 1);
});

test("tensors with the same ends share a net, and are counted", () => {
  const boxes = build(make_trace([
    { op: "aten.split.default", makes: ["a", "b", "c"] },
    { op: "aten.cat.default", reads: ["a", "b", "c"], makes: ["d"] },
  ]));
  const [net] = boxes.connect(boxes.root);
  assert.equal(net.name, "(2, 3) f32 +2");
});

test("a module that is called twice has a box for each call", () => {
  const boxes = build(make_trace([
    { op: "aten.mul.Tensor", reads: ["x"], makes: ["y"], module: 0, call: 0 },
    { op: "aten.mul.Tensor", reads: ["y"], makes: ["z"], module: 0, call: 1 },
  ], [{ name: "twice" }], [{ module: 0, first: 0, end: 1 }, { module: 0, first: 1, end: 2 }]));
  assert.deepEqual(boxes.root.items.map((box) => boxes.name(box)),
    ["twice: Linear · call 1", "twice: Linear · call 2"]);
});

test("a module that is in no tree has no box", () => {
  const ops = [{ op: "aten.nll_loss.default", reads: ["x"], makes: ["y"], call: 1 }];
  const calls = [{ module: 0, first: 0, end: 1 }, { module: -1, parent: 0, first: 0, end: 1 }];
  const boxes = build(make_trace(ops, [{ name: "model" }], calls));
  const [model] = boxes.root.items;
  assert.deepEqual([model, ...model.items].map(({ kind }) => kind), ["module", "op"]);
});

test("alike siblings are folded; open, they show the first and the others", () => {
  const boxes = build(make_layers(5));
  const [, model] = boxes.root.items;
  const [run] = model.items;
  assert.equal(boxes.name(run), "layers.0–4: 5 × Layer");
  assert.deepEqual(run.items.map((box) => boxes.name(box)),
    ["layers.0: Layer", "layers.1–4: 4 × Layer"]);
  assert.equal(run.n_ops, 15);
});

test("a box that is too long is cut into parts", () => {
  const ops = Array.from({ length: 250 }, (_, i) => ({ op: `aten.o${i}.default`, makes: [`t${i}`] }));
  const { root } = build(make_trace(ops));
  assert.deepEqual(root.items.map(({ title }) => title),
    ["1–100 of 250", "101–200 of 250", "201–250 of 250"]);
  assert.equal(root.n_ops, 250);
});

test("a net leads forward though the modules of a backward pass take turns", () => {
  const boxes = build(make_trace([
    { op: "aten.a.default", reads: [], makes: ["a"], module: 0, phase: "backward" },
    { op: "aten.b.default", reads: ["a"], makes: ["b"], module: 1, phase: "backward" },
    { op: "aten.c.default", reads: ["b"], makes: ["c"], module: 0, phase: "backward" },
    { op: "aten.d.default", reads: ["b"], makes: ["d"], module: 1, phase: "backward" },
  ], [{ name: "one" }, { name: "two" }]));
  assert.deepEqual(boxes.root.items.map((box) => box.module), [0, 1, 0]);
  for (const { from, to } of boxes.connect(boxes.root)) {
    for (const item of to) assert.ok(from < item);
  }
});

test("parameters are shown next to their readers, and only when asked for", () => {
  const boxes = build(make_layers(1));
  const layer = boxes.root.items[1].items[0];
  const list = () => boxes.connect(layer).filter(({ kind }) => kind === "parameter");
  assert.deepEqual(list(), []);
  boxes.has_parameters = true;
  assert.deepEqual(list().map(({ from, to }) => [from, to]), [[-1, [0]]]);
});

test("what an earlier phase saved is shown next to its reader", () => {
  const boxes = build(make_trace([
    { op: "aten.exp.default", makes: ["y"] },
    { op: "aten.mul.Tensor", reads: ["y"], makes: ["g"], phase: "backward" },
  ]), 2);
  const nets = boxes.connect(boxes.root);
  assert.deepEqual(nets.map(({ kind }) => kind), ["saved", "flow"]);
  assert.deepEqual(read(nets), [[-1, [0], false], [0, [], true]]);
});

test("phases are chosen: forward first, what failed before it, and other with forward", () => {
  assert.deepEqual(list_phases(nested), [FORWARD]);
  assert.equal(choose_phase(nested), FORWARD);
  const ops = [{ op: "a", phase: "forward" }, { op: "b", phase: "backward" }];
  assert.deepEqual(list_phases(make_trace(ops)), [1, 2]);
  assert.equal(choose_phase(make_trace(ops, [], [], { error: "E" })), 2);
  assert.equal(choose_phase(make_trace([{ op: "a", phase: "init" }])), 0);
  const plain = [{ op: "a", phase: "other" }, { op: "b", phase: "backward" }];
  assert.equal(PHASES[choose_phase(make_trace(plain))], "other");
});

test("an empty trace has no boxes", () => {
  const trace = make_trace([]);
  assert.deepEqual(list_phases(trace), []);
  assert.deepEqual(build(trace).root.items, []);
});

test("the box of a module is found, or that of the first module in it", () => {
  const boxes = build(make_layers(3));
  assert.equal(boxes.find_box(0), boxes.root.items[1]);
  assert.equal(boxes.find_box(1)?.module, 2);
});
