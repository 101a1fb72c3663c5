import assert from "node:assert/strict";
import { test } from "node:test";

import { shorten_function, shorten_op } from "../../meta_magic/view/static/dom.js";
import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { walk } from "../../meta_magic/view/static/flow/items.js";
import { arrange, forget_layout } from "../../meta_magic/view/static/flow/layout.js";
import { find_bounds, open_levels } from "../../meta_magic/view/static/flow/levels.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { make_trace } from "./flow_payloads.mjs";

const LINEAR = { called: "torch.nn.functional.linear", module: 0, call: 0 };
const build = (trace, has_functions = true, phase = choose_phase(trace)) =>
  new Boxes(follow_values(trace), phase, has_functions);
const list_names = (boxes, box = boxes.root) => box.items.map((item) => boxes.name(item));

/** `linear(linear(x, w), w) + x` in a module; then `relu_`, and a saved alias of it. */
const trace = make_trace([
  { op: "aten.zeros.default", makes: ["x"], called: "torch.zeros" },
  { op: "aten.t.default", reads: ["w"], makes: ["t"], is_view: true, ...LINEAR },
  { op: "aten.mm.default", reads: ["x", "t"], makes: ["m"], goes_on: true, flops: 9, ...LINEAR },
  { op: "aten.view.default", reads: ["m"], makes: ["y"], is_view: true, goes_on: true, ...LINEAR },
  { op: "aten.t.default", reads: ["w"], makes: ["u"], is_view: true, ...LINEAR },
  { op: "aten.mm.default", reads: ["y", "u"], makes: ["z"], goes_on: true, flops: 9, ...LINEAR },
  { op: "aten.add.Tensor", reads: ["z", "x"], makes: ["s"], called: "torch.Tensor.add", module: 0, call: 0 },
  { op: "aten.relu_.default", reads: ["s"], makes: ["s"], writes: [0], called: "torch.relu_" },
  { op: "aten.detach.default", reads: ["s"], makes: ["d"], is_view: true, goes_on: true, called: "torch.relu_" },
], [{ name: "model", cls: "Net" }], [{ module: 0, first: 1, end: 7 }], { parameters: ["w"] });
const find_model = (boxes) => boxes.root.items.find(({ kind }) => kind === "module");

test("a module shows the calls that its code makes, one after the other", () => {
  const boxes = build(trace);
  assert.deepEqual(list_names(boxes), ["zeros", "model: Net", "relu_"]);
  assert.deepEqual(list_names(boxes, find_model(boxes)), ["linear", "linear", "add"]);
});

test("a function opens into its operators; one that ran a single one is that", () => {
  const boxes = build(trace);
  const [first, second, add] = find_model(boxes).items;
  assert.deepEqual(list_names(boxes, first), ["t", "mm", "view"]);
  assert.deepEqual(list_names(boxes, second), ["t", "mm"]);
  assert.deepEqual([first.kind, first.is_open, add.kind], ["function", false, "op"]);
});

test("with operators as the steps, no function has a box", () => {
  const boxes = build(trace, false);
  assert.deepEqual(list_names(boxes, find_model(boxes)), ["t", "mm", "view", "t", "mm", "add"]);
});

test("levels open modules, then what holds functions, then these", () => {
  const boxes = build(trace);
  const list_open = (level) => {
    open_levels(boxes.root, level);
    return walk(boxes.root).filter(({ is_open }) => is_open).map((item) => boxes.name(item));
  };
  assert.deepEqual(list_open(0), []);
  assert.deepEqual(list_open(1), ["model: Net"]);
  assert.deepEqual(list_open(2), ["model: Net", "linear", "linear", "relu_"]);
  assert.deepEqual(find_bounds(boxes.root), [0, 2]);
  assert.deepEqual(find_bounds(build(trace, false).root), [0, 1]);
  assert.deepEqual(find_bounds(build(make_trace([{ op: "aten.ones.default", makes: ["x"] }])).root), [1, 1]);
});

test("nets lead from call to call", () => {
  const boxes = build(trace);
  const nets = boxes.connect(find_model(boxes));
  assert.deepEqual(nets.map(({ from, to, is_out }) => [from, to, is_out]),
    [[-1, [0, 2], false], [0, [1], false], [1, [2], false], [2, [], true]]);
});

test("what a function makes and views itself is new; what it writes of others is written", () => {
  const boxes = build(trace);
  const [linear, , add] = find_model(boxes).items;
  const relu = boxes.root.items.at(-1);
  assert.deepEqual([linear, add, relu].map((item) => boxes.find_deed(item)), ["new", "new", "write"]);
  const [, wire] = arrange(boxes, find_model(boxes)).wires;
  assert.deepEqual([wire.from.text, wire.kind], ["linear", "new"]);
});

test("parameters stand beside a closed function, and within an open one", () => {
  const boxes = build(trace);
  boxes.has_parameters = true;
  const model = find_model(boxes);
  const count = (box) => boxes.connect(box).filter(({ kind }) => kind === "parameter").length;
  assert.deepEqual([count(model), count(model.items[0])], [1, 1]);
  for (const item of model.items) {
    item.is_open = true;
    forget_layout(item.parent);
  }
  assert.equal(count(model), 0);
});

test("the operator that takes most stands for a function, else the last", () => {
  const boxes = build(trace);
  const [linear] = find_model(boxes).items;
  assert.equal(boxes.find_main(linear), 2);
  assert.equal(boxes.find_main(boxes.root.items.at(-1)), 8);
  assert.equal(boxes.is_closed_over(linear, 3), true);
  assert.equal(boxes.is_closed_over(linear, 4), false);
});

test("what autograd calls is shown as operators", () => {
  const backward = make_trace(["a", "b"].map((made) => (
    { op: "aten.mul.Tensor", makes: [made], phase: "backward", called: "torch.Tensor.backward" })));
  assert.deepEqual(list_names(build(backward)), ["mul", "mul"]);
});

test("what no function called is an operator", () => {
  const boxes = build(make_trace([{ op: "aten.permute.default", makes: ["a"], called: "" }]));
  assert.deepEqual(list_names(boxes), ["permute"]);
});

test("a function in which an operator raised is marked as that", () => {
  const boxes = build(make_trace([
    { op: "aten.t.default", reads: ["w"], makes: ["t"], is_view: true },
    { op: "aten.mm.default", reads: ["t"], goes_on: true },
  ], [], [], { error: "RuntimeError: no" }));
  const [node] = arrange(boxes, boxes.root).nodes.filter(({ item }) => item);
  assert.deepEqual([node.text, node.kind], ["✗ f", "function"]);
});

test("functions are called as in the code", () => {
  const names = [
    "torch.nn.functional.linear", "torch.Tensor.add_", "torch.Tensor.__getitem__", "aten.mul.Tensor",
    "aten.mul", "torch.functional.einsum",
  ];
  assert.deepEqual(names.map(shorten_function), ["linear", "add_", "getitem", "mul", "mul", "einsum"]);
  assert.equal(shorten_op("torch.nn.functional.linear"), "linear");
});
