import assert from "node:assert/strict";
import { test } from "node:test";
import { next_sort } from "../../meta_magic/view/static/grid.js";
import {
  build_module_rows, keep_modules, module_marks, open_module, read_module_row, toggle_module_row,
} from "../../meta_magic/view/static/modules.js";
import { make_model, make_trace } from "./table_payloads.mjs";

const fold = (trace, changes = {}) => ({
  depth: 2, toggled: new Set(), full: new Set(), kept: keep_modules(trace, ""), by: null,
  ...changes,
});
const indent = (trace, rows) => rows.map(
  (row) => " ".repeat(row.level - 1) + read_module_row(trace, row, 10)[0][0],
);
const draw = (trace, changes) => indent(trace, build_module_rows(trace, fold(trace, changes)));

test("two levels are open at first, and alike siblings are one row", () => {
  assert.deepEqual(draw(make_model()), ["model", " embed", " layers", "  0-2", " head"]);
});

test("depth says how many levels are open", () => {
  assert.deepEqual(draw(make_model(), { depth: 0 }), ["model"]);
  assert.deepEqual(draw(make_model(), { depth: 1 }), ["model", " embed", " layers", " head"]);
});

test("an opened run shows its first, and a row to show all", () => {
  assert.deepEqual(draw(make_model(), { toggled: new Set(["run3"]) }).slice(2, 6), [
    " layers", "  0-2", "   0", "   show all 3",
  ]);
});

test("the row to show all shows all", () => {
  const trace = make_model();
  const folds = fold(trace, { toggled: new Set(["run3"]) });
  const rows = build_module_rows(trace, folds);
  toggle_module_row(folds, rows, rows[5]);
  assert.deepEqual(indent(trace, build_module_rows(trace, folds)).slice(3), [
    "  0-2", "   0", "   1", "   2", " head",
  ]);
});

test("a row knows its parent, and whether it is open, closed or a leaf", () => {
  const trace = make_model();
  const rows = build_module_rows(trace, fold(trace));
  assert.deepEqual(rows.map((row) => [row.parent, row.is_open]), [
    [-1, true], [0, null], [0, true], [2, false], [0, null],
  ]);
});

test("a toggled row closes, and opens again", () => {
  const trace = make_model();
  const folds = fold(trace);
  const rows = build_module_rows(trace, folds);
  toggle_module_row(folds, rows, rows[2]);
  const closed = indent(trace, build_module_rows(trace, folds));
  assert.deepEqual(closed, ["model", " embed", " layers", " head"]);
  toggle_module_row(folds, rows, rows[2]);
  assert.equal(build_module_rows(trace, folds).length, 5);
});

test("a filter leaves matches and what they are in", () => {
  const trace = make_model();
  const kept = keep_modules(trace, "  ATTENTION ");
  assert.deepEqual([...kept], [3, 0, 3, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0]);
  assert.deepEqual(draw(trace, { kept, depth: Infinity }), [
    "model", " layers", "  0-2", "   0", "    attn", "   show all 3",
  ]);
});

test("a filter by path takes a run apart where it keeps only some of it", () => {
  const trace = make_model();
  assert.deepEqual(draw(trace, { kept: keep_modules(trace, "layers.1"), depth: Infinity }), [
    "model", " layers", "  1", "   attn", "   mlp",
  ]);
});

test("a filter that nothing matches leaves no rows", () => {
  const trace = make_model();
  assert.deepEqual(draw(trace, { kept: keep_modules(trace, "conv") }), []);
});

test("siblings are sorted, and only siblings", () => {
  const trace = make_model();
  // embed 20, layers 3 x (4 + 6) = 30, head 0 as it is tied
  const up = { key: "parameters", direction: 1 };
  assert.deepEqual(draw(trace, { by: up }), ["model", " head", " embed", " layers", "  0-2"]);
  const down = { key: "name", direction: -1 };
  assert.deepEqual(draw(trace, { by: down }), ["model", " layers", "  0-2", " head", " embed"]);
});

test("those of a run that are shown are sorted, and stay in order where they are equal", () => {
  const trace = make_model();
  const shown = { toggled: new Set(["run3"]), full: new Set([3]) };
  const rows = draw(trace, { ...shown, by: { key: "FLOPs", direction: -1 } });
  assert.deepEqual(rows, ["model", " layers", "  0-2", "   1", "   0", "   2", " embed", " head"]);
});

test("names are sorted as numbers where they are numbers", () => {
  const modules = [
    { name: "top" }, { parent: 0, name: "10", cls: "A" }, { parent: 0, name: "9", cls: "B" },
  ];
  const by = { key: "name", direction: 1 };
  assert.deepEqual(draw(make_trace({ modules }), { by }), ["top", " 9", " 10"]);
});

test("numbers of a run are its sums, with each in the title", () => {
  const trace = make_model();
  const cells = read_module_row(trace, build_module_rows(trace, fold(trace))[3], 10);
  assert.deepEqual(cells.slice(0, 4), [
    ["0-2", "layers.0 to layers.2"], ["3 x Layer"], ["30", "30, 10 each"],
    ["120 bytes", "120, 40 bytes each"],
  ]);
});

test("the FLOPs of a run are added up, alike as it is or not", () => {
  const trace = make_model();
  const run = build_module_rows(trace, fold(trace))[3];
  const cells = read_module_row(trace, run, 20);
  assert.deepEqual(cells[6], ["50.0 %", "10 FLOPs = 10, 3 FLOPs each", 0.5]);
});

test("the first shape of the first call is shown, and all are in the title", () => {
  const trace = make_model();
  const cells = read_module_row(trace, build_module_rows(trace, fold(trace))[0], 10);
  assert.deepEqual(cells[4], ["(2, 3) +1", "0: (2, 3) f32\nmask: (3,) f32"]);
  assert.deepEqual(cells[5], ["()", ": () f32"]);
});

test("a module that was not called has no shapes", () => {
  const trace = make_model();
  const cells = read_module_row(trace, build_module_rows(trace, fold(trace))[2], 10);
  assert.deepEqual(cells[4], ["", ""]);
});

test("marks tell of ties, calls, buffers, attributes, lazy and real tensors", () => {
  const persistent = 1, lazy = 2, real = 8;
  const trace = make_trace({ modules: [
    { name: "", cls: "Net" },
    { parent: 0, name: "a", calls: 1200, tensors: [{ name: "weight", tied_to: "b.weight" }] },
    { parent: 0, name: "b", shared: 0 },
    { parent: 0, name: "c", tensors: [
      { name: "mean", kind: "buffer", shape: [4], flags: persistent },
      { name: "mask", kind: "buffer", shape: [2, 2], flags: 0 },
      { name: "angles", kind: "attribute", shape: [], flags: real },
      { name: "weight", flags: persistent | lazy },
    ] },
  ] });
  assert.equal(module_marks(trace, 1), "called 1,200 times · weight tied to b.weight");
  assert.equal(module_marks(trace, 2), "same module as the root");
  assert.equal(module_marks(trace, 3), "buffer mean (4,) · buffer mask (2, 2), not persistent"
    + " · tensor attribute angles () · angles real · weight lazy");
});

test("a module inside a run is opened with all that hides it", () => {
  const trace = make_model();
  const folds = fold(trace, { depth: 0 });
  const row = open_module(trace, folds, 7);
  assert.deepEqual(indent(trace, build_module_rows(trace, folds)), [
    "model", " embed", " layers", "  0-2", "   0", "   1", "    attn", "    mlp", "   2", " head",
  ]);
  assert.equal(row, 6);
});

test("the first of a run is opened without the others", () => {
  const trace = make_model();
  const folds = fold(trace);
  assert.equal(open_module(trace, folds, 3), 4);
  assert.equal(folds.full.size, 0);
});

test("what a filter hides, and no module, have no row", () => {
  const trace = make_model();
  assert.equal(open_module(trace, fold(trace, { kept: keep_modules(trace, "embed") }), 7), -1);
  assert.equal(open_module(trace, fold(trace), -1), -1);
});

test("a column is sorted one way, then the other, then not", () => {
  const first = next_sort(null, "bytes", -1);
  const second = next_sort(first, "bytes", -1);
  assert.deepEqual([first, second, next_sort(second, "bytes", -1)], [
    { key: "bytes", direction: -1 }, { key: "bytes", direction: 1 }, null,
  ]);
  assert.deepEqual(next_sort(first, "name", 1), { key: "name", direction: 1 });
});
