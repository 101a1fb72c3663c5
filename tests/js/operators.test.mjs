import assert from "node:assert/strict";
import { test } from "node:test";
import { FORMATS } from "../../meta_magic/view/static/dom.js";
import { format_csv, make_filter, sort_rows } from "../../meta_magic/view/static/tables/rows.js";
import {
  describe_op, find_stretch, is_op_selected, read_op,
} from "../../meta_magic/view/static/tables/operators.js";
import { make_model, make_trace } from "./table_payloads.mjs";

const trace = make_trace({
  modules: [
    { name: "net", cls: "Net" }, { parent: 0, name: "layers", cls: "List" },
    { parent: 1, name: "1" }, { parent: 1, name: "10" },
  ],
  ops: [
    { op: "aten.mm.default", inputs: [[2, 3], [3, 4]], outputs: [[2, 4]], flops: 48, moves: [72, 32], module: 2,
      fn: "torch.mm", line: 7, file: "/home/a/cell.py", at: 12 },
    { op: "aten.t.default", inputs: [[2, 3]], outputs: [[3, 2]], views: [0], module: 3,
      fn: "torch.Tensor.t", line: 17 },
    { op: "aten.addmm.default", inputs: [[4], [2, 3], [3, 4]], outputs: [[2, 4]], flops: 50,
      module: 3, args: "beta=0", phase: 2, line: 7, forward: 0 },
    { op: "aten.add_.Tensor", inputs: [[5], [5]], outputs: [[5]], writes: [0], views: [0],
      phase: 3 },
  ],
  columns: { ops: [
    { name: "rank", help: "", width: 90, values: [72, 0, 88, 40] },
    { name: "axes", help: "", width: 90, values: [[1, null, 0], null, [], [0]] },
  ] },
});
const read = (index) => read_op(trace, index);
const find = (words) => [0, 1, 2, 3].filter((i) => make_filter(words)(describe_op(read(i))));
const sort = (key, direction, rows = [0, 1, 2, 3]) =>
  sort_rows(rows, (i) => read(i)[key], direction);

test("a row has all that is known of an operator", () => {
  assert.deepEqual(read(0), {
    index: 0, op: "aten.mm.default", inputs: "(2, 3) f32, (3, 4) f32", outputs: "(2, 4) f32",
    arguments: "", module: "layers.1", root: 0, module_call: "", phase: "forward", line: 7,
    function: "torch.mm", forward: "", flops: 48, nbytes_read: 72, nbytes_written: 32, intensity: 48 / 104,
    time: "", alive: 0,
    views: "", writes: "",
    position: "/home/a/cell.py:12", evaluation: "", kernel: "", assumed: "", raised: "",
    rank: 72, axes: "1 0",
  });
});

test("a column that was sent has the value of the operator's signature", () => {
  assert.deepEqual([0, 1, 2, 3].map((i) => read(i).rank), [72, 0, 88, 40]);
});

test("what was sent as numbers in a row is a text, and what is absent an empty one", () => {
  assert.deepEqual([0, 1, 2, 3].map((i) => read(i).axes), ["1 0", "", "", "0"]);
});

test("every column has a value", () => {
  const names = trace.columns.ops.map(({ name }) => name);
  for (const i of [0, 3]) assert.deepEqual(Object.keys(read(i)).sort(), names.sort());
});

test("a number has three digits", () => {
  assert.deepEqual([7.9379, 12345.6, 0.00123456, 3, -0.5].map(FORMATS.number),
    ["7.94", "12,300", "0.00123", "3", "-0.5"]);
});

test("a share is in percent, as one that was written already", () => {
  assert.deepEqual([0.5, "50.0%"].map(FORMATS.share), ["50.0%", "50.0%"]);
});

test("what is not known is empty", () => {
  const { module, root, line, function: name, flops, position } = read(3);
  for (const value of [module, root, line, name, flops, position]) assert.equal(value, "");
});

test("what is a view, and what is written, is shown by the number of the input", () => {
  assert.deepEqual([0, 1, 3].map((i) => [read(i).views, read(i).writes]), [
    ["", ""], ["0", ""], ["0", "0"],
  ]);
});

test("no filter leaves all", () => {
  assert.deepEqual(find("  "), [0, 1, 2, 3]);
});

test("a word is found in op, module, function, shapes, phase and line, in any case", () => {
  assert.deepEqual(find("ADDMM"), [2]);
  assert.deepEqual(find("layers.10"), [1, 2]);
  assert.deepEqual(find("torch.mm"), [0]);
  assert.deepEqual(find("(5,)"), [3]);
  assert.deepEqual(find("optim"), [3]);
  assert.deepEqual(find("17"), [1]);
});

test("each of several words must be found", () => {
  assert.deepEqual(find("mm backward"), [2]);
  assert.deepEqual(find("(2, 4)"), [0, 2]);
});

test("op: looks at the beginning of the operator's short name only", () => {
  assert.deepEqual(find("op:mm"), [0]);
  assert.deepEqual(find("op:add"), [2, 3]);
  assert.deepEqual(find("op:torch"), []);
});

test("line: looks at the line only", () => {
  assert.deepEqual(find("line:7"), [0, 2]);
});

test("phase: and module: look there", () => {
  assert.deepEqual(find("phase:backward"), [2]);
  assert.deepEqual(find("module:net"), []);
});

test("module: looks at the path of the module from its beginning", () => {
  assert.deepEqual(find("module:layers"), [0, 1, 2]);
  assert.deepEqual(find("module:layers.10"), [1, 2]);
});

test("signs that a pattern would take for its own are plain", () => {
  assert.deepEqual(find(".*"), []);
  assert.deepEqual(find("("), [0, 1, 2, 3]);
  assert.deepEqual(find("\\"), []);
});

test("numbers are sorted both ways, absent ones last", () => {
  assert.deepEqual(sort("flops", 1), [0, 2, 1, 3]);
  assert.deepEqual(sort("flops", -1), [2, 0, 1, 3]);
});

test("what is equal stays in order, both ways", () => {
  assert.deepEqual(sort("line", 1), [0, 2, 1, 3]); // 7 7 17 -
  assert.deepEqual(sort("line", -1), [1, 0, 2, 3]);
});

test("names are sorted with their numbers as numbers", () => {
  assert.deepEqual(sort("module", 1), [0, 1, 2, 3]); // layers.1, layers.10, layers.10, none
  assert.deepEqual(sort("op", -1), [1, 0, 2, 3]); // t, mm, addmm, add_
});

test("only the rows given are sorted", () => {
  assert.deepEqual(sort("index", 1, [3, 2, 0]), [0, 2, 3]);
});

test("CSV is quoted", () => {
  assert.equal(
    format_csv([["a", "b,c"], ['say "hi"', "two\nlines"], ["", 0]]),
    '"a","b,c"\r\n"say ""hi""","two\nlines"\r\n"","0"',
  );
});

test("a line selects its operators, an operator itself, nothing none", () => {
  const select = (kind, index) =>
    [0, 1, 2, 3].filter((i) => is_op_selected(trace, kind && { kind, index }, i));
  assert.deepEqual(select(null), []);
  assert.deepEqual(select("line", 7), [0, 2]);
  assert.deepEqual(select("op", 1), [1]);
});

test("a module selects the operators in it and below", () => {
  const model = make_model();
  const select = (index) =>
    [0, 1, 2].filter((i) => is_op_selected(model, { kind: "module", index }, i));
  assert.deepEqual(select(0), [0, 1, 2]);
  assert.deepEqual(select(6), [1]); // layers.1
  assert.deepEqual(select(12), []); // head
});

test("a phase leads to where it begins, then to where it does again, and round", () => {
  const phases = [0, 1, 1, 2, 1, 0];
  const walk = [0, 1, 4].map((active) => find_stretch(phases, 1, active));
  assert.deepEqual(walk, [1, 4, 1]);
  assert.equal(find_stretch(phases, 3, 0), -1);
});
