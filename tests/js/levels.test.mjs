import assert from "node:assert/strict";
import { test } from "node:test";

import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { walk } from "../../meta_magic/view/static/flow/items.js";
import { arrange } from "../../meta_magic/view/static/flow/layout.js";
import {
  count_levels, open_block, open_levels, open_main, open_what_fits,
} from "../../meta_magic/view/static/flow/levels.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { make_layers, make_trace } from "./flow_payloads.mjs";

const build = (trace) => new Boxes(follow_values(trace), choose_phase(trace));
const list_open = (boxes) => walk(boxes.root).filter(({ is_open }) => is_open)
  .map((item) => boxes.name(item));

/** A model of so many leaf modules, one after the other. */
function make_chain(n_modules) {
  const numbers = [...Array(n_modules).keys()];
  return make_trace(
    numbers.map((i) => ({
      op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`], module: i + 1, call: i + 1,
    })),
    [{ name: "model", cls: "Net" }, ...numbers.map((i) => ({ name: `part${i}`, parent: 0 }))],
    [{ module: 0, first: 0, end: n_modules },
      ...numbers.map((i) => ({ module: i + 1, parent: 0, first: i, end: i + 1 }))],
  );
}

test("modules without others are closed until one level more is opened", () => {
  const boxes = build(make_chain(2));
  assert.equal(count_levels(boxes.root), 1);
  open_levels(boxes.root, 1);
  assert.deepEqual(list_open(boxes), ["model: Net"]);
  open_levels(boxes.root, 2);
  assert.deepEqual(list_open(boxes), ["model: Net", "part0: Linear", "part1: Linear"]);
  open_levels(boxes.root, 0);
  assert.deepEqual(list_open(boxes), []);
});

test("of a run its first is opened, not the rest", () => {
  const boxes = build(make_layers(5));
  open_levels(boxes.root, 9);
  const rest = walk(boxes.root).filter(({ kind, parent }) => kind === "run" && parent.kind === "run");
  assert.equal(rest.length, 1);
  assert.equal(rest[0].is_open, false);
  assert.ok(list_open(boxes).some((name) => name.startsWith("layers.0–4: 5 × Layer")));
});

/** A model of two leaf modules, called in each step of a loop. */
function make_loop(n_steps) {
  const steps = [...Array(n_steps).keys()];
  const name = (i) => `x${i}`;
  return make_trace(
    steps.flatMap((i) => [1, 2].map((module) => ({
      op: "aten.mm.default", reads: [name(2 * i + module - 1)], makes: [name(2 * i + module)],
      module, call: 3 * i + module,
    }))),
    [{ name: "model", cls: "Net" }, { name: "a", parent: 0 }, { name: "b", parent: 0 }],
    steps.flatMap((i) => [
      { module: 0, first: 2 * i, end: 2 * i + 2 },
      { module: 1, parent: 3 * i, first: 2 * i, end: 2 * i + 1 },
      { module: 2, parent: 3 * i, first: 2 * i + 1, end: 2 * i + 2 },
    ]),
  );
}

test("of a module's calls the first is opened, also where many are seen", () => {
  const boxes = build(make_loop(6));
  assert.equal(open_what_fits(boxes, () => false), 1);
  assert.deepEqual(list_open(boxes), ["model: Net · call 1"]);
  open_levels(boxes.root, 2);
  assert.deepEqual(list_open(boxes),
    ["model: Net · call 1", "a: Linear · call 1", "b: Linear · call 1"]);
});

test("as many levels are open as fit; if not all do, runs stay closed", () => {
  const boxes = build(make_layers(5));
  const last = count_levels(boxes.root);
  assert.equal(open_what_fits(boxes, () => true), last);
  const { h } = arrange(boxes, boxes.root);
  assert.equal(open_what_fits(boxes, (size) => size.h < h), last - 1);
  assert.deepEqual(list_open(boxes), ["model: Net"]);
});

test("one block is shown for a run, if that fits", () => {
  const boxes = build(make_layers(5));
  open_levels(boxes.root, 1);
  const { h } = arrange(boxes, boxes.root);
  assert.equal(open_main(boxes, (size) => size.h <= h), false);
  assert.equal(arrange(boxes, boxes.root).h, h);
  assert.equal(open_main(boxes, () => true), true);
  const [run] = walk(boxes.root).filter(({ is_sample }) => is_sample);
  assert.equal(boxes.name(run), "layers.0–4: 5 × Layer");
  const find_node = ({ nodes }) => nodes.map(({ item, inner }) =>
    (item === run ? inner : inner && find_node(inner))).find(Boolean);
  assert.deepEqual(find_node(arrange(boxes, boxes.root)).nodes.filter(({ item }) => item)
    .map(({ item }) => item), run.items[0].items);
  open_levels(boxes.root, 9);
  assert.equal(run.is_sample, false);
});

test("nothing but a block is opened where no more fits", () => {
  const boxes = build(make_layers(5));
  open_block(boxes, () => true);
  assert.deepEqual(list_open(boxes), ["model: Net", "layers.0–4: 5 × Layer", "layers.0: Layer"]);
  open_block(boxes, () => false);
  assert.deepEqual(list_open(boxes), ["model: Net"]);
});

test("what is in the block of a run counts for all its blocks", () => {
  const numbers = [0, 1, 2, 3, 4];
  const trace = make_trace(
    numbers.map((i) => ({ op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`], module: 3 * i + 3, call: 3 * i + 3 })),
    [{ name: "model" }, ...numbers.flatMap((i) => [{ name: `${i}`, parent: 0, cls: "Layer" },
      { name: "mix", parent: 3 * i + 1, cls: "Mix" }, { name: "in", parent: 3 * i + 2 }])],
    [{ module: 0, first: 0, end: 5 }, ...numbers.flatMap((i) => [1, 2, 3].map((k) => (
      { module: 3 * i + k, parent: k === 1 ? 0 : 3 * i + k - 1, first: i, end: i + 1 })))],
  );
  trace.modules.forEach((module, i) => { module.n_params = i ? 10 : 60; });
  const boxes = build(trace);
  open_levels(boxes.root, 1, false);
  open_main(boxes, () => true);
  assert.ok(list_open(boxes).includes("mix: Mix"));
});

test("a run of few blocks stays closed", () => {
  const boxes = build(make_layers(2));
  open_levels(boxes.root, 1);
  assert.equal(open_main(boxes, () => true), false);
});

test("a box that holds nearly all parameters is opened, one of two is not", () => {
  const build_two = (sizes, n_more = 10) => {
    const more = Array.from({ length: n_more }, (_, i) => ({ op: "aten.mm.default", reads: [`y${i}`], makes: [`y${i + 1}`] }));
    const trace = make_trace(
      [...[0, 1].map((i) => ({ op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`], module: 2 * i + 2, call: 2 * i + 2 })), ...more],
      [{ name: "model" }, { name: "a", parent: 0 }, { name: "a1", parent: 1 },
        { name: "b", parent: 0 }, { name: "b1", parent: 3 }],
      [{ module: 0, first: 0, end: 2 }, { module: 1, parent: 0, first: 0, end: 1 },
        { module: 2, parent: 1, first: 0, end: 1 }, { module: 3, parent: 0, first: 1, end: 2 },
        { module: 4, parent: 3, first: 1, end: 2 }],
    );
    trace.modules.forEach((module, i) => { module.n_params = sizes[i]; });
    const boxes = build(trace);
    open_levels(boxes.root, 1);
    open_main(boxes, () => true);
    return list_open(boxes);
  };
  assert.deepEqual(build_two([100, 20, 20, 80, 80]), ["model: Linear", "b: Linear"]);
  assert.deepEqual(build_two([100, 40, 40, 60, 60]), ["model: Linear"]);
  // Where little is in sight, a fifth is enough.
  assert.deepEqual(build_two([100, 40, 40, 60, 60], 0), ["model: Linear", "a: Linear", "b: Linear"]);
  assert.deepEqual(build_two([100, 15, 15, 85, 85], 0), ["model: Linear", "b: Linear"]);
});

test("what a model is made of is seen even where it does not fit", () => {
  const boxes = build(make_chain(12));
  assert.equal(open_what_fits(boxes, () => false), 1);
  assert.deepEqual(list_open(boxes), ["model: Net"]);
});

test("of several models it is seen how they are connected", () => {
  const boxes = build(make_trace(
    [0, 2].map((module, i) => ({
      op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`],
      module: module + 1, call: module + 1,
    })),
    [{ name: "encoder", cls: "Net" }, { name: "in", parent: 0 },
      { name: "decoder", cls: "Net" }, { name: "out", parent: 2 }],
    [{ module: 0, first: 0, end: 1 }, { module: 1, parent: 0, first: 0, end: 1 },
      { module: 2, first: 1, end: 2 }, { module: 3, parent: 2, first: 1, end: 2 }],
  ));
  assert.equal(open_what_fits(boxes, () => false), 0);
  assert.equal(open_what_fits(boxes, () => true), 1);
});

test("what a picture shows is that of the levels that are open", () => {
  const boxes = build(make_chain(3));
  const show = (level) => {
    open_levels(boxes.root, level);
    return arrange(boxes, boxes.root).nodes.filter(({ item }) => item).map(({ kind }) => kind);
  };
  assert.deepEqual([show(0), show(1), show(0)], [["closed"], ["open"], ["closed"]]);
});

test("what a module keeps for itself is no output of it", () => {
  const trace = make_trace(
    [{ op: "aten.native_layer_norm.default", reads: ["x"], makes: ["y", "mean"], module: 0, call: 0 }],
    [{ name: "norm", cls: "LayerNorm" }], [{ module: 0, first: 0, end: 1 }],
  );
  const [whole] = trace.signatures[0].outputs;
  trace.signatures[0].outputs[1] = { ...whole, shape: [2, 1] };
  const list_outs = () => {
    const boxes = build(trace);
    return boxes.connect(boxes.root).filter(({ is_out }) => is_out).map(({ name }) => name);
  };
  assert.deepEqual(list_outs(), ["(2, 3) f32 +1"]);
  trace.calls[0].outputs.push({ path: "", geometry: whole });
  assert.deepEqual(list_outs(), ["(2, 3) f32"]);
});

test("an operator that has to do with no tensor is not shown", () => {
  const boxes = build(make_trace([
    { op: "torchvision._cuda_version.default" },
    { op: "aten.ones.default", makes: ["a"] },
  ]));
  assert.deepEqual(boxes.root.items.map(({ op }) => op), [1]);
});
