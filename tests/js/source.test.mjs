import assert from "node:assert/strict";
import { test } from "node:test";
import { TraceView } from "../../meta_magic/view/static/data.js";
import {
  source_describe, source_index, source_nest, source_paint, source_passes, source_rows,
  source_shapes,
} from "../../meta_magic/view/static/source/lines.js";
import { CELL, build_payload } from "./source_payloads.mjs";

const OTHER = "/tmp/ipykernel_12/345.py";
const view = (trace) => new TraceView(build_payload(trace));
const FORWARD = {
  file: OTHER, heading: "M.forward", first: 8, text: "def forward(self):\n  return 1",
};

/** Operators in a row, given by their positions. */
const steps = (...spans) =>
  spans.map((span, i) => ({ kind: "op", is_loop: true, span, signature: i, first: i, end: i + 1 }));

/** Numbers of the first operators in each pass. */
const firsts = (items) => source_passes(items).map((pass) => pass.map(({ first }) => first));

/** A line of the cell. */
const line = (trace, number) => source_rows(trace).rows.find(
  ({ kind, index }) => kind === "line" && index === number);

/** The text of each expression on a line of the cell, outer ones first. */
function cut(trace, number) {
  const row = line(trace, number);
  return row.pieces.map(({ from, to }) => row.line.slice(from, to));
}

/** Distinct shapes of each pass of a line of the cell. */
const passes = (trace, number) => line(trace, number).passes.map(source_shapes);

test("columns are bytes: letters beyond ASCII and emoji take more than one", () => {
  assert.equal(source_index("abc", 2), 2);
  assert.equal(source_index("é = x", 5), 4); // é: 2 bytes, 1 unit
  assert.equal(source_index("名 = x", 6), 4); // 3 bytes, 1 unit
  assert.equal(source_index("🙂 = x", 7), 5); // 4 bytes, 2 units
  assert.equal(source_index("\tx", 1), 1);
  assert.equal(source_index("abc", 99), 3);
  assert.equal(source_index("", 0), 0);
});

test("expressions lie in each other, and what sticks out is cut off", () => {
  const nest = (text, ...spans) => source_nest(
    (from, to) => [text.slice(from, to)], spans.map(([from, to]) => ({ from, to })),
    (_, inner) => inner.filter((node) => node !== ""), 0, text.length);
  assert.deepEqual(nest("abcdefghi", [0, 9], [1, 7], [4, 6]), [
    "", ["a", ["bcd", ["ef"], "g"], "hi"], "",
  ]);
  assert.deepEqual(nest("ab = cd", [0, 2], [5, 7]), ["", ["ab"], " = ", ["cd"], ""]);
  assert.deepEqual(nest("abcdefgh", [0, 5], [3, 8]), ["", ["abc", ["de"]], "fgh"]);
  assert.deepEqual(nest("plain"), ["plain"]);
});

test("a line runs anew where a position comes again", () => {
  assert.deepEqual(firsts([]), []);
  assert.deepEqual(firsts(steps("a", "b", "a", "b")), [[0, 1], [2, 3]]);
  assert.deepEqual(firsts(steps("a", "a", "b", "a", "b")), [[0, 1, 2], [3, 4]]);
});

test("operators of one call in a row are one pass, unless it begins again", () => {
  const at = (...signatures) =>
    steps(...signatures.map(() => "a")).map((step, i) => ({ ...step, signature: signatures[i] }));
  assert.deepEqual(firsts(at(1, 2, 3)), [[0, 1, 2]]);
  assert.deepEqual(firsts(at(1, 2, 1, 2)), [[0, 1], [2, 3]]);
  assert.deepEqual(firsts(at(7, 7, 7)), [[0], [1], [2]]);
  assert.deepEqual(firsts(at(1, 2, 2)), [[0, 1, 2]]);
});

test("the same call some operators later is another pass", () => {
  const [first, later] = steps("a", "a");
  assert.deepEqual(firsts([first, { ...later, first: 5, end: 6 }]), [[0], [5]]);
});

test("what a constructor or the autograd engine repeats is no loop", () => {
  const [first, later] = steps("a", "a");
  assert.deepEqual(firsts([first, { ...later, first: 5, end: 6, is_loop: false }]), [[0, 5]]);
  const at = { line: 2, file: CELL, column: 0, end_column: 1 };
  const run = (phase) => {
    const op = { at: { ...at, phase } };
    return passes(view({ source: "y", ops: [op, op] }), 2);
  };
  assert.deepEqual([0, 1, 2, 3, 4].map((phase) => run(phase).length), [1, 2, 1, 1, 2]);
});

test("each line is beside the shapes that it made, the newest last", () => {
  const at = (start, column, end_column) => ({ line: start, file: CELL, column, end_column });
  const trace = view({
    source: "x = ones(2)\ny = x.relu().exp()\n",
    ops: [
      { shape: [2], at: at(2, 4, 11) },
      { shape: [3], at: at(3, 4, 12) },
      { shape: [2, 3], at: at(3, 4, 18) },
      { shape: [3], op: "aten.exp.default", at: at(3, 4, 18) },
    ],
  });
  assert.deepEqual(source_rows(trace).rows.map(({ index }) => index), [2, 3]);
  assert.deepEqual(passes(trace, 2), [["(2,) f32"]]);
  assert.deepEqual(passes(trace, 3), [["(2, 3) f32", "(3,) f32"]]);
  assert.deepEqual(cut(trace, 2), ["ones(2)"]);
  assert.deepEqual(cut(trace, 3), ["x.relu().exp()", "x.relu()"]);
});

test("an expression of several lines is on all of them, without what stands before it", () => {
  const trace = view({
    source: "é = 1\nx = relu(\n\t  y\n\n).sum()",
    ops: [{ at: { line: 3, file: CELL, start: 3, column: 4, end: 6, end_column: 1 } }],
  });
  assert.deepEqual([2, 3, 4, 5, 6].map((number) => cut(trace, number)),
    [[], ["relu("], ["y"], [], [")"]]);
  const spans = source_rows(trace).rows.flatMap(({ pieces }) => pieces.map(({ span }) => span));
  assert.equal(new Set(spans).size, 1);
});

test("of two expressions with the same part of a line, the outer one is first", () => {
  const at = (position) => ({ at: { line: 2, file: CELL, ...position } });
  const inner = { start: 3, column: 2, end: 3, end_column: 5 };
  const outer = { start: 2, column: 0, end: 4, end_column: 1 };
  const trace = view({ source: "relu(\n  f()\n)", ops: [at(inner), at(outer)] });
  assert.deepEqual(line(trace, 3).pieces.map(({ span }) => span.row.index), [2, 3]);
});

test("a line is cut where the kinds of its text change", () => {
  const paint = (from, to) => source_paint("if x: 12", [1, 2, 0, 4, 3, 2], (...both) => both, from, to);
  assert.deepEqual(paint(0, 8), [[1, "if", 0], [0, " x: ", 2], [3, "12", 6]]);
  assert.deepEqual(paint(1, 7), [[1, "f", 1], [0, " x: ", 2], [3, "1", 6]]);
  assert.deepEqual(paint(3, 3), []);
  assert.deepEqual(source_paint("ab", [], (_, text) => text, 0, 2), ["ab"]);
});

test("each line has the kinds that Python found in it", () => {
  const texts = [{ ...FORWARD, tokens: [[1, 3], [0, 2, 1, 6]] }];
  const { rows } = source_rows(view({ source: "x = 1", tokens: [[0, 4, 3, 1]], texts, ops: [] }));
  assert.deepEqual(rows.map(({ tokens }) => tokens), [[0, 4, 3, 1], [1, 3], [0, 2, 1, 6]]);
});

test("the body begins where the payload says", () => {
  const trace = view({
    source: "\nab = f(1)\nc", cell: { file: CELL, first: 4 },
    ops: [{ at: { line: 5, file: CELL, column: 5, end_column: 9 } }],
  });
  assert.equal(source_rows(trace).rows[0].index, 4);
  assert.deepEqual(cut(trace, 5), ["f(1)"]);
});

test("functions of other cells are listed, installed packages are not", () => {
  const trace = view({
    source: "y = model(x)", texts: [FORWARD],
    ops: [
      { shape: [4], at: { line: 2, file: OTHER, scope: "M.forward", start: 9 } },
      { shape: [5], at: { line: 2, file: "/x/site-packages/a/b.py", scope: "f", start: 7 } },
    ],
    modules: [{ name: "model" }],
    calls: [{ line: 2, first: 0, length: 2, shapes: [[5, 1]] }],
  });
  const { rows, items } = source_rows(trace);
  assert.deepEqual(rows.map(({ index }) => index), [2, 8, 9]);
  assert.deepEqual(rows.map(({ heading }) => heading || ""), ["", "M.forward", ""]);
  assert.deepEqual(rows.map(({ kind }) => kind), ["line", "", ""]);
  assert.deepEqual(rows[2].passes.map(source_shapes), [["(4,) f32"]]);
  // The line that called the model shows what the model returned.
  assert.deepEqual(passes(trace, 2), [["(5, 1) f32"]]);
  // What ran inside belongs to that line, too, when it is selected.
  assert.deepEqual(items.map(({ caller }) => caller), [rows[0], rows[0], rows[0]]);
});

test("a function in a function is not listed twice", () => {
  const inner = { file: OTHER, heading: "M.forward.<locals>.f", first: 9, text: "  return 1" };
  const { rows } = source_rows(view({ source: "y", texts: [FORWARD, inner], ops: [] }));
  assert.deepEqual(rows.map(({ index }) => index), [2, 8, 9]);
});

test("a position of another cell that looks like the cell's differs by its file", () => {
  const trace = view({
    source: "y = model(x)", texts: [{ file: OTHER, heading: "M.forward", first: 2, text: "return relu(x)" }],
    ops: [{ at: { line: 2, file: OTHER, scope: "M.forward", column: 7, end_column: 14 } }],
  });
  const { rows } = source_rows(trace);
  assert.deepEqual(rows.map(({ items }) => items.length), [0, 1]);
  assert.deepEqual(cut(trace, 2), []);
});

test("a module called in a loop gives each pass its output", () => {
  const at = { file: CELL, start: 3, column: 4, end_column: 14 };
  const trace = view({
    source: "for i in 1, 2:\n    m(ones(i))",
    ops: [0, 1].flatMap((i) => [
      { shape: [i + 1], at: { line: 3, file: CELL, column: 6, end_column: 13 } },
      { shape: [i + 1, 9], at: { ...at, line: 3 } },
    ]),
    modules: [{ name: "m" }],
    calls: [1, 3].map((first, i) => ({ line: 3, first, length: 1, shapes: [[i + 1, 9]], at })),
  });
  assert.deepEqual(passes(trace, 3), [
    ["(1,) f32", "(1, 9) f32"], ["(2,) f32", "(2, 9) f32"],
  ]);
  assert.deepEqual(cut(trace, 3), ["m(ones(i))", "ones(i)"]);
});

test("a line without operators runs anew when it calls its module again", () => {
  const trace = view({
    source: "m(x)",
    ops: [0, 1].map(() => ({ at: { line: 2, file: OTHER, scope: "f", start: 9 } })),
    modules: [{ name: "m" }],
    calls: [0, 1].map((first) => ({ line: 2, first, length: 1, shapes: [[first + 1]] })),
  });
  assert.deepEqual(passes(trace, 2), [["(1,) f32"], ["(2,) f32"]]);
});

test("a module that torch called is part of the one that led there", () => {
  const at = { file: CELL, start: 2, column: 0, end_column: 4 };
  const trace = view({
    source: "m(x)",
    ops: [{ shape: [3], at: { ...at, line: 2 } }],
    modules: [{ name: "m" }, { name: "0", parent: 0 }, { name: "1", parent: 0 }],
    // A Sequential of a Linear and an Identity, which runs no operator.
    calls: [
      { line: 2, first: 0, length: 1, shapes: [[3]], at },
      { module: 1, parent: 0, line: 2, first: 0, length: 1, shapes: [[3]], at },
      { module: 2, parent: 0, line: 2, first: 1, length: 0, shapes: [[3]], at },
    ],
  });
  assert.deepEqual(passes(trace, 2), [["(3,) f32"]]);
  assert.equal(line(trace, 2).items.length, 1);
});

test("a backward operator makes nothing at the line of its forward one, yet belongs there", () => {
  const at = { line: 2, file: CELL, column: 0, end_column: 1 };
  const trace = view({
    source: "y",
    ops: [{ shape: [2], at }, { shape: [7], at: { ...at, phase: 2 }, backward_of: 0 }],
  });
  assert.deepEqual(passes(trace, 2), [["(2,) f32"]]);
  const { rows, items } = source_rows(trace);
  assert.equal(items[1].row, rows[0]);
});

test("without a source that is said", () => {
  const at = { file: "/home/me/site-packages/train.py", start: 5 };
  for (const ops of [[{ at }, { at: { ...at, scope: "f" } }], []]) {
    const { rows } = source_rows(view({ ops }));
    assert.deepEqual(rows.map((row) => [row.line, row.items.length]), [["# no source", 0]]);
  }
});

test("operators are described as text", () => {
  const at = { function: "torch.nn.functional.linear", line: 2, file: CELL };
  const trace = view({
    source: "y",
    ops: [
      { op: "aten.t.default", shape: [3, 4], at, module: 1 },
      { op: "aten.addmm.default", shape: [2, 3], at, module: 1 },
    ],
    modules: [{ name: "root" }, { name: "<b>", parent: 0, cls: "torch.nn.Linear" }],
  });
  assert.deepEqual(source_describe(trace, line(trace, 2).items), [
    "torch.nn.functional.linear", "<b>: Linear", "t → addmm",
    "(2, 3) · stride (3, 1) · float32 · 24 bytes",
  ]);
});

test("a call is described as text: its module, its operators, what it returned", () => {
  const at = { file: CELL, start: 2, column: 0, end_column: 1 };
  const trace = view({
    source: "m", ops: [{ at: { ...at, line: 2 } }, { at: { ...at, line: 2 } }],
    modules: [{ name: "m", cls: "my.Model" }],
    calls: [{ line: 2, first: 0, length: 2, shapes: [[2, 3], [1], [1], [1]], at }],
  });
  assert.deepEqual(source_describe(trace, line(trace, 2).items), [
    "the root: Model", "operators: 2", "(2, 3) · stride (3, 1) · float32 · 24 bytes",
    "(1,) · stride (1,) · float32 · 4 bytes", "(1,) · stride (1,) · float32 · 4 bytes",
  ]);
});
