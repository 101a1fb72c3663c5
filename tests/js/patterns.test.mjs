import assert from "node:assert/strict";
import { test } from "node:test";

import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { walk } from "../../meta_magic/view/static/flow/items.js";
import { find_repeated } from "../../meta_magic/view/static/flow/patterns.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { make_trace } from "./flow_payloads.mjs";

/** Numbered modules, named by letters; those of large letters have parameters. */
const make_siblings = (letters) => [...letters].map((letter, i) => ({
  name: String(i), likeness: letter.charCodeAt(0), n_params: Number(letter < "a"),
}));
const find = (letters) => find_repeated(/** @type {any} */ (make_siblings(letters)))
  .map(({ first, period, n }) => letters.slice(first, first + period * n));

test("modules that are built alike repeat", () => {
  assert.deepEqual(find("AABBBC"), ["AA", "BBB"]);
});

test("patterns of up to eight modules repeat", () => {
  assert.deepEqual(find("ArArArAr"), ["ArArArAr"]);
  assert.deepEqual(find("XABrABrABrY"), ["ABrABrABr"]);
  assert.deepEqual(find("ABCDEFGH".repeat(3)), ["ABCDEFGH".repeat(3)]);
  assert.deepEqual(find("ABCDEFGHI".repeat(3)), []);
});

test("of patterns that repeat equally long the shortest is taken", () => {
  assert.equal(find_repeated(/** @type {any} */ (make_siblings("ArArArAr")))[0].period, 2);
});

test("a pattern of several modules that occurs twice is shown as it is", () => {
  assert.deepEqual(find("ABrABr"), []);
});

test("a pattern begins with what has parameters", () => {
  assert.deepEqual(find("XrArArAr"), ["ArArAr"]);
});

test("modules that are not numbered do not repeat", () => {
  const siblings = make_siblings("AAAA").map((module, i) => ({ ...module, name: `layer${i}` }));
  assert.deepEqual(find_repeated(/** @type {any} */ (siblings)), []);
});

/** A chain of modules of the given classes, each of one operator. */
function make_boxes(classes, { names = classes.map((_, i) => i), op = "aten.mm.default" } = {}) {
  const trace = make_trace(
    classes.map((_, i) => ({ op, reads: [`x${i}`], makes: [`x${i + 1}`], module: i + 1, call: i + 1 })),
    [{ name: "net", cls: "Net" }, ...classes.map((cls, i) => ({ name: String(names[i]), parent: 0, cls }))],
    [{ module: 0, first: 0, end: classes.length },
      ...classes.map((_, i) => ({ module: i + 1, parent: 0, first: i, end: i + 1 }))],
  );
  return new Boxes(follow_values(trace), choose_phase(trace));
}

const list_names = (boxes, level) => {
  const depth = (item) => (item.parent ? 1 + depth(item.parent) : 0);
  return walk(boxes.root).filter((item) => depth(item) === level).map((item) => boxes.name(item));
};

test("a pattern folds: its first turn, and the rest", () => {
  const boxes = make_boxes(Array(1000).fill(["Linear", "ReLU"]).flat());
  assert.deepEqual(list_names(boxes, 2), ["0–1999: 1000 × (Linear, ReLU)"]);
  assert.deepEqual(list_names(boxes, 3), ["0–1: Linear, ReLU", "2–1999: 999 × (Linear, ReLU)"]);
  assert.deepEqual(list_names(boxes, 4).slice(0, 3), ["0: Linear", "1: ReLU",
    "2–201: 100 × (Linear, ReLU)"]);
});

test("a part of many is named by its modules", () => {
  const boxes = make_boxes(Array(2000).fill("Linear"));
  assert.deepEqual(list_names(boxes, 4).slice(1, 3), ["1–100: 100 × Linear", "101–200: 100 × Linear"]);
  assert.equal(list_names(boxes, 4).at(-1), "1901–1999: 99 × Linear");
});

test("a part of modules of several classes is named by the first and the last", () => {
  const boxes = make_boxes(Array.from({ length: 200 }, (_, i) => `Class${i}`));
  assert.deepEqual(list_names(boxes, 2), ["0–99", "100–199"]);
});

test("a part of operators alone is named by their numbers", () => {
  const trace = make_trace(Array.from({ length: 200 }, (_, i) =>
    ({ op: `aten.o${i}.default`, reads: [`x${i}`], makes: [`x${i + 1}`] })));
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  assert.deepEqual(list_names(boxes, 1), ["1–100 of 200", "101–200 of 200"]);
});

/** What each turn of a loop does: operators, one after the other. */
const make_loop = (ops, n) => make_trace(Array(n).fill(ops).flat().map((op, i) =>
  ({ op: `aten.${op}.default`, reads: [`x${i}`], makes: [`x${i + 1}`] })));

test("a loop folds: its first turn, and the rest", () => {
  const trace = make_loop(["sin", "mul", "add"], 40);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  assert.deepEqual(list_names(boxes, 1), ["40 × (sin, mul, add)"]);
  assert.deepEqual(list_names(boxes, 2), ["sin, mul, add", "39 × (sin, mul, add)"]);
  assert.equal(boxes.root.n_ops, 120);
  for (const box of walk(boxes.root)) for (const { from, to } of boxes.connect(box)) {
    for (const item of to) assert.ok(from < item);
  }
});

test("one step that repeats folds, and neither a short loop, nor one that makes other sizes", () => {
  const list_loops = (trace) => list_names(new Boxes(follow_values(trace), choose_phase(trace)), 1);
  assert.deepEqual(list_loops(make_loop(["neg"], 24)), ["24 × neg"]);
  assert.equal(list_loops(make_loop(["neg"], 23)).length, 23);
  const growing = make_loop(["cat", "neg"], 20);
  growing.signatures.forEach((signature, i) => {
    signature.outputs = [{ ...signature.outputs[0], shape: [i] }];
  });
  assert.equal(list_loops(growing).length, 40);
});

test("a part of one module's calls is named by them", () => {
  const trace = make_trace(
    Array.from({ length: 200 }, (_, i) =>
      ({ op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`], module: 0, call: i })),
    [{ name: "cell" }],
    Array.from({ length: 200 }, (_, i) => ({ module: 0, first: i, end: i + 1 })),
  );
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  assert.deepEqual(list_names(boxes, 1),
    ["cell: Linear · calls 1–100", "cell: Linear · calls 101–200"]);
});

/** Three modules of one input, all read by one operator; what they make has these sizes. */
function name_joined(sizes, ops = sizes.map(() => "aten.mm.default")) {
  const trace = make_trace(
    [...sizes.map((_, i) => ({ op: ops[i], reads: ["x"], makes: [`y${i}`], module: i, call: i })),
      { op: "aten.cat.default", reads: sizes.map((_, i) => `y${i}`), makes: ["z"], phase: "other" }],
    sizes.map((_, i) => ({ name: String(i) })),
    sizes.map((_, i) => ({ module: i, first: i, end: i + 1 })),
  );
  sizes.forEach((size, i) => {
    const signature = trace.signatures[i];
    signature.outputs = [{ ...signature.outputs[0], shape: size }];
  });
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  return boxes.connect(boxes.root).map(({ name }) => name);
}

test("what the members of a run made is shown with its range", () => {
  assert.ok(name_joined([[54, 512], [77, 512], [60, 512]]).includes("3 × (54–77, 512) f32"));
  assert.ok(name_joined([[54, 512], [54, 512]]).includes("2 × (54, 512) f32"));
});

test("for what is not alike, no range is shown, but the largest", () => {
  assert.ok(name_joined([[54, 512], [77]]).includes("(54, 512) f32 +1"));
  assert.ok(name_joined([[2, 3], [4, 5]], ["aten.mm.default", "aten.neg.default"])
    .includes("(4, 5) f32 +1"));
});
