import assert from "node:assert/strict";
import { test } from "node:test";
import { Lineage, name_values } from "../../meta_magic/view/static/details/lineage.js";
import { split_settings } from "../../meta_magic/view/static/details/module.js";
import { name_operands, read_expression, split_arguments } from "../../meta_magic/view/static/details/operator.js";
import { describe_layout } from "../../meta_magic/view/static/details/parts.js";
import { make_trace } from "./flow_payloads.mjs";
import { to_steps } from "./payloads.mjs";

// 0 makes x, 1 a view v of it, 2 writes v, 3 reads x and makes y, 4 reads the view and y.
const OPS = [
  { op: "aten.ones.default", makes: ["x"], phase: "other" },
  { op: "aten.view.default", reads: ["x"], makes: ["v"], is_view: true },
  { op: "aten.add_.Tensor", reads: ["v"], makes: ["v"], writes: [0] },
  { op: "aten.exp.default", reads: ["x"], makes: ["y"] },
  { op: "aten.mul.Tensor", reads: ["v", "y"], makes: ["z"] },
];
const [X, V, Y] = [0, 1, 2];

function follow(ops, { deaths = [], ...more } = {}) {
  const trace = make_trace(ops, [{ name: "net" }], [], more);
  Object.assign(trace.details.deaths, {
    n_ops: to_steps(deaths.map(([n]) => n)), storage: to_steps(deaths.map(([, s]) => s)),
  });
  return new Lineage(trace);
}

test("a tensor knows who made, reads and writes it, and its views", () => {
  const { maker, base, readers, writers, views } = follow(OPS).tensor(X);
  assert.deepEqual([maker, base, readers, writers, views], [0, -1, [3], [2], [V]]);
});

test("a view knows its base, and reads through it are its own", () => {
  const { maker, base, readers, writers } = follow(OPS).tensor(V);
  assert.deepEqual([maker, base, readers, writers], [1, X, [4], [2]]);
});

test("a tensor that was there before has no maker", () => {
  const lineage = follow([{ op: "aten.exp.default", reads: ["x"], makes: ["y"] }]);
  assert.deepEqual([0, 1].map((id) => lineage.tensor(id).maker), [-1, 0]);
});

test("a storage dies after the last operator before it was freed", () => {
  const lineage = follow(OPS, { deaths: [[4, 1], [5, 0]] });
  assert.deepEqual([X, V, Y].map((id) => lineage.tensor(id).freed), [4, 4, 3]);
  assert.equal(follow(OPS).tensor(X).freed, -1);
});

test("what touches a storage is known for all its tensors at once", () => {
  const { readers, writers, tensors } = follow(OPS).storage(0);
  assert.deepEqual([readers, writers, tensors], [[3, 4], [2], [X, V]]);
});

test("where a tensor is used first is an operator and an index", () => {
  assert.deepEqual(follow(OPS).find_slot(1, ({ id }) => id === Y), { op: 3, slot: 1 });
  assert.equal(follow(OPS).find_slot(1, () => false), null);
});

const INIT = [
  { op: "aten.empty.memory_format", makes: ["w"], phase: "init" },
  { op: "aten.uniform_.default", reads: ["w"], makes: ["w"], writes: [0], phase: "init" },
  { op: "aten.exp.default", reads: ["w"], makes: ["y"] },
  { op: "aten.add_.Tensor", reads: ["w"], makes: ["w"], writes: [0], phase: "optimizer" },
];

test("first values are what wrote a storage last before it was used", () => {
  const lineage = follow(INIT);
  const found = lineage.find_initial(0);
  assert.deepEqual(found.map(({ index }) => index), [1]);
  assert.equal(name_values(lineage.trace, found[0]), "uniform_()");
});

test("what was made and not written is uninitialized", () => {
  const lineage = follow([INIT[0], { ...INIT[2] }]);
  const found = lineage.find_initial(0);
  assert.equal(name_values(lineage.trace, found[0]), "uninitialized");
});

test("what came from outside has no first values here", () => {
  assert.deepEqual(follow([INIT[2]]).find_initial(0), []);
});

test("settings are split at their own commas", () => {
  assert.deepEqual(split_settings("3, 64, kernel_size=(7, 7), bias=False"), [
    ["", "3, 64"], ["kernel_size", "(7, 7)"], ["bias", "False"],
  ]);
  assert.deepEqual(split_settings("p=0.5"), [["p", "0.5"]]);
  assert.deepEqual(split_settings(""), []);
});

test("arguments keep the commas within them", () => {
  assert.deepEqual(split_arguments("dim=[0, 1], keepdim=True"), [
    ["dim", "[0, 1]"], ["keepdim", "True"],
  ]);
});

test("an expression is cut out of the cell, its columns counted in bytes", () => {
  const trace = { source: "a = 'é'\ny = f(x,\n  1) + 2", cell: { file: "c", first: 5 }, texts: [] };
  const position = { file: "c", scope: "", start: 6, end: 7, column: 4, end_column: 4 };
  assert.equal(read_expression(trace, position), "f(x,\n  1)");
  assert.equal(read_expression(trace, { ...position, start: 5, end: 5, end_column: 8 }), "'é'");
  assert.equal(read_expression(trace, { ...position, file: "other" }), "");
});

test("a layout is shown by its strides unless it is packed", () => {
  const geometry = { shape: [2, 3], stride: [3, 1], offset: 0, layout: "strided" };
  assert.equal(describe_layout(geometry), "contiguous");
  assert.equal(describe_layout({ ...geometry, stride: [1, 2], offset: 4 }), "stride (1, 2), offset 4");
  assert.equal(describe_layout({ ...geometry, stride: null, layout: "sparse_coo" }), "sparse_coo");
});

test("the operands of a call are named as its code names them", () => {
  const name = (text, n_inputs, op_function = [0], name = "") => name_operands(
    { op_function }, { index: 0, inputs: Array(n_inputs).fill({}), site: { function: name } }, text);
  assert.deepEqual(name("a[:, None] + b", 2), ["a[:, None]", "b"]);
  assert.deepEqual(name("(x - y) * f(x + 1)", 2), ["(x - y)", "f(x + 1)"]);
  assert.deepEqual(name("x.view(2, -1).permute(1, 0)", 1), ["x.view(2, -1)"]);
  assert.deepEqual(name("x.sum(0)", 1, [0, 1], "torch.Tensor.sum"), ["x"]);
  assert.deepEqual(name("self.conv(x)", 3, [0, 1], "torch.nn.functional.conv2d"), []);
  for (const [text, n, made, by] of [["torch.cat([a, b])", 2, [0], "torch.cat"], ["2 - x", 1], ["layer(x)", 3], ["x @ y", 2, [0, 0]]]) {
    assert.deepEqual(name(text, n, made, by), [], text);
  }
});
