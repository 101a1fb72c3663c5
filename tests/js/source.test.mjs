import assert from "node:assert/strict";
import { test } from "node:test";
import { TraceView } from "../../meta_magic/view/static/data.js";
import {
  source_describe, source_index, source_is_same_loop, source_last_line, source_listings,
  source_nest, source_passes, source_shapes, source_spans, source_tokens,
} from "../../meta_magic/view/static/source.js";
import { CELL, build_payload } from "./source_payloads.mjs";

const OTHER = "/tmp/ipykernel_12/345.py";
const view = (trace) => new TraceView(build_payload(trace));
const steps = (...keys) => keys.map((key, index) => ({ index, key, signature: 0 }));
const row = (...firsts) => ({ passes: firsts.map((first) => ({ ops: [first], calls: [] })) });

/** The text of each line of the cell that a position covers. */
function cut(listing, number) {
  const line = listing.lines[number - listing.first];
  return source_spans(listing, number).map(({ from, to }) => line.slice(from, to));
}

/** Distinct shapes of each pass of a line. */
const passes = (trace, listing, number) =>
  listing.rows.get(number).passes.map((pass) => source_shapes(trace, pass));

test("columns are bytes: letters beyond ASCII and emoji take more than one", () => {
  assert.equal(source_index("abc", 2), 2);
  assert.equal(source_index("é = x", 5), 4); // é: 2 bytes, 1 unit
  assert.equal(source_index("名 = x", 6), 4); // 3 bytes, 1 unit
  assert.equal(source_index("🙂 = x", 7), 5); // 4 bytes, 2 units
  assert.equal(source_index("\tx", 1), 1);
  assert.equal(source_index("abc", 99), 3);
  assert.equal(source_index("", 0), 0);
});

test("Python is coloured: comments, strings over lines, numbers, keywords", () => {
  const text = 'for x in f"""a\n# b""": # c "d"\n  y1 = 1.5e3 + \'\\\'\' + классе';
  const found = source_tokens(text).map(({ from, to, key }) => [key, text.slice(from, to)]);
  assert.deepEqual(found, [
    ["keyword", "for"], ["keyword", "in"], ["string", 'f"""a\n# b"""'], ["comment", '# c "d"'],
    ["number", "1.5e3"], ["string", "'\\''"],
  ]);
  assert.deepEqual(source_tokens('x = "never closed').map(({ key }) => key), ["string"]);
  assert.deepEqual(source_tokens('"""never closed').map(({ to }) => to), [15]);
});

test("spans lie in each other, and what sticks out is cut off", () => {
  const span = (from, to, key) => ({ from, to, key });
  const outline = (nodes) =>
    nodes.map(({ from, to, key, inner }) => [key, from, to, outline(inner)]);
  const nested = source_nest(
    [span(4, 6, "c"), span(0, 9, "a"), span(1, 7, "b"), span(12, 14, "d")]);
  assert.deepEqual(outline(nested), [
    ["a", 0, 9, [["b", 1, 7, [["c", 4, 6, []]]]]], ["d", 12, 14, []],
  ]);
  assert.deepEqual(outline(source_nest([span(0, 5, "a"), span(3, 8, "b")])), [
    ["a", 0, 5, [["b", 3, 5, []]]],
  ]);
});

test("a line runs anew where a position is met again", () => {
  assert.deepEqual(source_passes([]), []);
  assert.deepEqual(source_passes(steps("a", "b", "a", "b")), [[0, 1], [2, 3]]);
  assert.deepEqual(source_passes(steps("a", "a", "b", "a", "b")), [[0, 1, 2], [3, 4]]);
});

test("operators of one call in a row are one pass, unless they repeat", () => {
  const at = (...signatures) =>
    signatures.map((signature, index) => ({ index, key: "a", signature }));
  assert.deepEqual(source_passes(at(1, 2, 3)), [[0, 1, 2]]);
  assert.deepEqual(source_passes(at(1, 2, 1, 2)), [[0, 1], [2, 3]]);
  assert.deepEqual(source_passes(at(7, 7, 7)), [[0], [1], [2]]);
  assert.deepEqual(source_passes(at(1, 2, 1)), [[0, 1, 2]]);
});

test("the same call some operators later is another pass", () => {
  const later = [{ index: 0, key: "a", signature: 1 }, { index: 5, key: "a", signature: 2 }];
  assert.deepEqual(source_passes(later), [[0], [5]]);
});

test("what the autograd engine does for a line is no loop", () => {
  const engine = [{ index: 0, key: "a", signature: 1 }, { index: 5, key: "a", signature: -6 }];
  assert.deepEqual(source_passes(engine), [[0, 5]]);
});

test("lines whose passes took turns belong to one loop", () => {
  assert.ok(source_is_same_loop(row(0, 10, 20), row(3, 13, 23)));
  assert.ok(!source_is_same_loop(row(0, 10, 20), row(30, 40, 50)));
  assert.ok(!source_is_same_loop(row(0, 10), row(3)));
});

test("each line is beside the shapes that it made, the newest last", () => {
  const at = (start, column, end_column) => ({ line: start, file: CELL, column, end_column });
  const trace = view({
    source: "x = ones(2)\ny = x.relu().exp()\n",
    ops: [
      { shape: [2], at: at(2, 4, 11) },
      { shape: [3], at: at(3, 4, 12) },
      { shape: [2, 3], at: at(3, 4, 18) },
      { shape: [3], at: at(3, 4, 18) },
    ],
  });
  const { listings: [cell] } = source_listings(trace);
  assert.deepEqual([cell.file, cell.first], [CELL, 2]);
  assert.deepEqual(passes(trace, cell, 2), [["(2,) f32"]]);
  assert.deepEqual(passes(trace, cell, 3), [["(2, 3) f32", "(3,) f32"]]);
  assert.deepEqual(cut(cell, 2), ["ones(2)"]);
  assert.deepEqual(cut(cell, 3), ["x.relu()", "x.relu().exp()"]);
});

test("a multi-line expression covers a part of each of its lines", () => {
  const trace = view({
    source: "é = 1\nx = relu(\n\t  y\n)",
    ops: [{ at: { line: 3, file: CELL, start: 3, column: 4, end: 5, end_column: 1 } }],
  });
  const { listings: [cell] } = source_listings(trace);
  assert.deepEqual([2, 3, 4, 5].map((number) => cut(cell, number)), [[], ["relu("], ["y"], [")"]]);
});

test("the body begins where the payload says", () => {
  const trace = view({
    source: "\nab = f(1)\nc", cell: [CELL, 4],
    ops: [{ at: { line: 5, file: CELL, column: 5, end_column: 9 } }],
  });
  const [cell] = source_listings(trace).listings;
  assert.deepEqual([cell.first, cut(cell, 5)], [4, ["f(1)"]]);
});

test("methods of other cells are listed by line, installed packages are not", () => {
  const trace = view({
    source: "y = model(x)",
    ops: [
      {
        shape: [4],
        at: { function: "torch.relu", line: 2, file: OTHER, scope: "M.forward", start: 9 },
      },
      { shape: [5], at: { line: 2, file: "/x/site-packages/a/b.py", scope: "f", start: 7 } },
    ],
    modules: [{ name: "model" }],
    calls: [{ line: 2, first: 0, length: 2, shapes: [[5, 1]] }],
  });
  const { listings } = source_listings(trace);
  assert.deepEqual(listings.map(({ scope }) => scope), ["", "M.forward"]);
  assert.deepEqual([...listings[1].rows.keys()], [9]);
  assert.equal(listings[1].lines, null);
  assert.deepEqual([...listings[1].positions.values()].map(({ names }) => [...names]), [["relu"]]);
  // The line that called the model shows what the model returned.
  assert.deepEqual(passes(trace, listings[0], 2), [["(5, 1) f32"]]);
  assert.equal(listings[0].rows.get(2).n_inside, 2);
  const text = "def forward(self):\n  return 1";
  trace.texts.push({ file: OTHER, scope: "M.forward", first: 8, text });
  assert.equal(source_listings(trace).listings[1].lines.length, 2);
});

test("a place of another cell that looks like the cell's is told apart by its function", () => {
  const trace = view({
    source: "y = model(x)",
    ops: [{ at: { line: 2, file: OTHER, scope: "M.forward", column: 4, end_column: 12 } }],
  });
  const { listings } = source_listings(trace);
  assert.deepEqual(listings.map(({ scope }) => scope), ["", "M.forward"]);
});

test("a module called in a loop gives each pass its output", () => {
  const trace = view({
    source: "for i in 1, 2:\n    m(ones(i))",
    ops: [0, 1].flatMap((i) => [
      { shape: [i + 1], at: { line: 3, file: CELL, column: 6, end_column: 13 } },
      { shape: [i + 1, 9], at: { line: 3, file: OTHER, scope: "M.forward", start: 9 } },
    ]),
    modules: [{ name: "m" }],
    calls: [1, 3].map((first, i) => ({ line: 3, first, length: 1, shapes: [[i + 1, 9]] })),
  });
  const { listings: [cell] } = source_listings(trace);
  assert.deepEqual(passes(trace, cell, 3), [
    ["(1,) f32", "(1, 9) f32"], ["(2,) f32", "(2, 9) f32"],
  ]);
  assert.equal(cell.rows.get(3).shown, 1);
});

test("a line without operators runs anew when it calls its module again", () => {
  const trace = view({
    source: "m(x)",
    ops: [0, 1].map(() => ({ at: { line: 2, file: OTHER, scope: "f", start: 9 } })),
    modules: [{ name: "m" }],
    calls: [0, 1].map((first) => ({ line: 2, first, length: 1, shapes: [[first + 1]] })),
  });
  const { listings: [cell] } = source_listings(trace);
  assert.deepEqual(passes(trace, cell, 2), [["(1,) f32"], ["(2,) f32"]]);
});

test("a backward operator makes nothing at the line of its forward one", () => {
  const at = { line: 2, file: CELL, column: 0, end_column: 1 };
  const trace = view({
    source: "y",
    ops: [{ shape: [2], at }, { shape: [7], at: { ...at, phase: 2 }, backward_of: 0 }],
  });
  assert.deepEqual(passes(trace, source_listings(trace).listings[0], 2), [["(2,) f32"]]);
});

test("a script has sections only, an empty trace has nothing", () => {
  const at = { file: "/home/me/site-packages/train.py", start: 5 };
  const { listings } = source_listings(view({ ops: [{ at }, { at: { ...at, scope: "f" } }] }));
  assert.deepEqual(listings.map(({ scope }) => scope), ["", "<module>", "f"]);
  assert.deepEqual([listings[0].lines, listings[0].rows.size], [[], 0]);
  assert.equal(source_listings(view({ ops: [] })).listings.length, 1);
});

test("a failed cell has a last line that ran", () => {
  const ops = [{ at: { line: 2, file: CELL } }, { at: { line: 3, file: CELL } }];
  assert.equal(source_last_line(view({ ops })), 0);
  assert.equal(source_last_line(view({ ops, error: "E: x" })), 3);
  const modules = [{ name: "m" }];
  const calls = [{ line: 4, first: 2 }];
  assert.equal(source_last_line(view({ ops, error: "E", modules, calls })), 4);
  assert.equal(source_last_line(view({ ops: [], error: "E" })), 0);
});

test("operators are told in words", () => {
  const at = { function: "torch.nn.functional.linear", line: 2, file: CELL };
  const trace = view({
    ops: [
      { op: "aten.t.default", shape: [3, 4], at, module: 1 },
      { op: "aten.addmm.default", shape: [2, 3], at, module: 1 },
    ],
    modules: [{ name: "root" }, { name: "<b>", parent: 0, cls: "torch.nn.Linear" }],
  });
  assert.deepEqual(source_describe(trace, [0, 1]), [
    "torch.nn.functional.linear", "t → addmm", "(2, 3) · float32 · 24 bytes", "in <b>: Linear",
  ]);
});
