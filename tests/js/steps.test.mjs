import assert from "node:assert/strict";
import { test } from "node:test";

import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { walk } from "../../meta_magic/view/static/flow/items.js";
import { open_levels } from "../../meta_magic/view/static/flow/levels.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { make_trace } from "./flow_payloads.mjs";

/**
 * The boxes of steps in a model: each "name: from, from -> made"; the name of a leaf module
 * begins with a large letter.
 */
function make_boxes(lines, { has_functions = true, ...more } = {}) {
  const steps = lines.map((line) => line.match(/^(\w+): *([^>]*?) *-> *(.*)$/).slice(1));
  const modules = steps.filter(([name]) => /[A-Z]/.test(name)).map(([name]) => ({ name, parent: 0, cls: name }));
  const find = (name) => modules.findIndex((module) => module.name === name) + 1;
  const ops = steps.map(([name, reads, makes]) => ({
    op: `aten.${name.toLowerCase()}.default`, called: `torch.${name}`, module: find(name), call: find(name),
    reads: reads.split(", ").filter(Boolean), makes: makes.split(", "),
  }));
  const calls = modules.map(({ name }) => steps.findIndex(([other]) => other === name))
    .map((first, i) => ({ module: i + 1, parent: 0, first, end: first + 1 }));
  const trace = make_trace(ops, [{ name: "net", cls: "Net" }, ...modules],
    [{ module: 0, first: 0, end: ops.length }, ...calls], more);
  return new Boxes(follow_values(trace), choose_phase(trace), has_functions);
}

const list_names = (boxes) => boxes.root.items[0].items.map((item) => boxes.name(item));
const read = (lines, more) => list_names(make_boxes(lines, more));

test("a chain between modules is one box, named by what is in it", () => {
  assert.deepEqual(read(["A: x -> a", "view: a -> b", "transpose: b -> c", "view: c -> d", "B: d -> e"]),
    ["A: A", "view, transpose", "B: B"]);
});

test("of many names the first and the last are shown", () => {
  const steps = ["exp: x -> a", "sin: a -> b", "cos: b -> c", "neg: c -> d", "abs: d -> e", "tanh: e -> f"];
  assert.deepEqual(read([...steps, "A: f -> g"]), ["exp, sin, …, tanh", "A: A"]);
  assert.deepEqual(read([...steps.slice(1), "A: f -> g"]), ["sin, cos, neg, abs, tanh", "A: A"]);
});

test("a sum in which two wires join stays, and parts what is before and after it", () => {
  assert.deepEqual(
    read(["exp: x -> a", "A: a -> b", "neg: b -> c", "abs: c -> d", "add: d, a -> e", "sin: e -> f", "cos: f -> g"]),
    ["exp", "A: A", "neg, abs", "add", "sin, cos"]);
  assert.deepEqual(read(["A: x -> a", "add: x, a -> b", "relu: b -> c"]), ["A: A", "add", "relu"]);
});

test("what joins within a box is in it", () => {
  assert.deepEqual(
    read(["arange: -> a", "neg: t -> b", "mul: a, b -> c", "cos: c -> d", "sin: c -> e", "cat: d, e -> f", "A: f -> g"]),
    ["arange, neg, …, cat", "A: A"]);
});

test("chains that have nothing to do with each other are boxes of their own", () => {
  const lines = ["A: x -> q", "B: x -> k", "view: q -> a", "view: k -> b", "t: a -> c", "neg: b -> d"];
  assert.deepEqual(read(lines), ["A: A", "B: B", "view, t", "view, neg"]);
});

test("what has parameters, and what multiplies, is shown", () => {
  const lines = ["A: x -> a", "neg: a -> b", "mul: b, w -> c", "abs: c -> d", "bmm: d -> e", "exp: e -> f", "sin: f -> g"];
  assert.deepEqual(read(lines, { parameters: ["w"] }), ["A: A", "neg", "mul", "abs", "bmm", "exp, sin"]);
});

test("the step that failed is shown", () => {
  assert.deepEqual(read(["A: x -> a", "view: a -> b", "neg: b -> c"], { error: "E" }), ["A: A", "view", "neg"]);
});

test("without modules beside them, and as operators, steps stay as they are", () => {
  assert.deepEqual(read(["exp: x -> a", "sin: a -> b"]), ["exp", "sin"]);
  assert.deepEqual(read(["A: x -> a", "exp: a -> b", "sin: b -> c"], { has_functions: false }),
    ["A: A", "exp", "sin"]);
});

test("what is folded opens with the leaf modules, and nets lead through it", () => {
  const boxes = make_boxes(["A: x -> a", "view: a -> b", "neg: b -> c", "B: c -> d"]);
  const [net] = boxes.root.items;
  assert.deepEqual(boxes.connect(net).map(({ from, to }) => [from, to]), [[-1, [0]], [0, [1]], [1, [2]], [2, []]]);
  const steps = walk(net).find(({ kind }) => kind === "steps");
  assert.deepEqual([1, 2].map((level) => {
    open_levels(boxes.root, level);
    return steps.is_open;
  }), [false, true]);
});

test("what makes masks and positions is one box; what reads activations is not in it", () => {
  const steps = ["arange: -> p", "P: p -> e", "eq: ids -> m", "where: m -> n", "A: e, n -> a", "neg: a -> b"];
  const { trace } = make_boxes(steps);
  const [floats] = trace.signatures[0].outputs;
  for (const { inputs, outputs, op } of trace.signatures) {
    if (/arange|eq|where/.test(op)) for (const list of [inputs, outputs]) list.fill({ ...floats, dtype: "int64" });
  }
  const boxes = new Boxes(follow_values(trace), choose_phase(trace), true);
  assert.deepEqual(list_names(boxes), ["arange, eq, where", "P: P", "A: A", "neg"]);
  assert.deepEqual(read(steps), ["arange", "P: P", "eq, where", "A: A", "neg"]);
});
