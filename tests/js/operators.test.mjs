import assert from "node:assert/strict";
import { test } from "node:test";
import {
  filter_ops, format_csv, index_op_texts, make_op_mark, OP_COLUMNS, read_op, sort_ops,
} from "../../meta_magic/view/static/operators.js";
import { make_model, make_trace } from "./table_payloads.mjs";

const trace = make_trace({
  modules: [
    { name: "net", cls: "Net" }, { parent: 0, name: "layers", cls: "List" },
    { parent: 1, name: "1" }, { parent: 1, name: "10" },
  ],
  ops: [
    { op: "aten.mm.default", inputs: [[2, 3], [3, 4]], outputs: [[2, 4]], flops: 48, module: 2,
      fn: "torch.mm", line: 7, file: "/home/a/cell.py", at: 12 },
    { op: "aten.t.default", inputs: [[2, 3]], outputs: [[3, 2]], views: [0], module: 3,
      fn: "torch.Tensor.t", line: 17 },
    { op: "aten.addmm.default", inputs: [[4], [2, 3], [3, 4]], outputs: [[2, 4]], flops: 50,
      module: 3, args: "beta=0", phase: 2, line: 7, forward: 0 },
    { op: "aten.add_.Tensor", inputs: [[5], [5]], outputs: [[5]], writes: [0], views: [0],
      phase: 3 },
  ],
});
const find = (words) => [...filter_ops(trace, index_op_texts(trace), words)];
const read = (index) => Object.fromEntries(
  OP_COLUMNS.map(({ key, read: value }) => [key, value(read_op(trace, index))]),
);
const sort = (key, direction, rows = [0, 1, 2, 3]) =>
  [...sort_ops(trace, Int32Array.from(rows), { key, direction })];

test("the columns are those of to_pandas", () => {
  assert.deepEqual(OP_COLUMNS.map(({ key }) => key), [
    "index", "op", "inputs", "outputs", "arguments", "module", "root", "module_call", "phase",
    "line", "function", "forward", "flops", "nbytes_read", "nbytes_written", "views", "writes",
    "position",
  ]);
});

test("a row has all that is known of an operator", () => {
  assert.deepEqual(read(0), {
    index: 0, op: "aten.mm.default", inputs: "(2, 3) f32, (3, 4) f32", outputs: "(2, 4) f32",
    arguments: "", module: "layers.1", root: 0, module_call: null, phase: "forward", line: 7,
    function: "torch.mm", forward: null, flops: 48,
    nbytes_read: 72, // (6 + 12) x 4
    nbytes_written: 32, // 8 x 4
    views: null, writes: null, position: "/home/a/cell.py:12",
  });
});

test("what is not known is null", () => {
  const { module, root, line, function: name, flops, position } = read(3);
  for (const value of [module, root, line, name, flops, position]) assert.equal(value, null);
});

test("a view neither reads nor writes", () => {
  const { nbytes_read, nbytes_written, views } = read(1);
  assert.deepEqual([nbytes_read, nbytes_written, views], [0, 0, "0"]);
});

test("an operator in place writes its input once, and is no view", () => {
  const { nbytes_read, nbytes_written, writes, views } = read(3);
  assert.deepEqual([nbytes_read, nbytes_written, writes, views], [40, 20, "0", "0"]);
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

test("op: looks at the operator only", () => {
  assert.deepEqual(find("op:mm"), [0, 2]);
  assert.deepEqual(find("op:torch"), []);
});

test("line: is the whole line", () => {
  assert.deepEqual(find("line:7"), [0, 2]);
  assert.deepEqual(find("line:1"), []);
});

test("phase: and module: look there", () => {
  assert.deepEqual(find("phase:backward"), [2]);
  assert.deepEqual(find("module:net"), []);
});

test("module: does not cut a number", () => {
  assert.deepEqual(find("module:layers.1"), [0]);
  assert.deepEqual(find("module:layers"), [0, 1, 2]);
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

test("no column keeps the order", () => {
  assert.deepEqual([...sort_ops(trace, Int32Array.of(2, 0), null)], [2, 0]);
});

test("only the rows given are sorted", () => {
  assert.deepEqual(sort("index", 1, [3, 2, 0]), [0, 2, 3]);
});

test("CSV is quoted where it must be", () => {
  assert.equal(
    format_csv([["a", "b,c"], ['say "hi"', "two\nlines"], [null, 0]]),
    'a,"b,c"\r\n"say ""hi""","two\nlines"\r\n,0\r\n',
  );
});

test("a line marks its operators, an operator itself, nothing none", () => {
  const marked = (selected) => [0, 1, 2, 3].filter(make_op_mark(trace, selected));
  assert.deepEqual(marked({ kind: "line", index: 7 }), [0, 2]);
  assert.deepEqual(marked({ kind: "op", index: 1 }), [1]);
  assert.deepEqual(marked(null), []);
});

test("a module marks the operators in it and below", () => {
  const model = make_model();
  const marked = (index) => [0, 1, 2].filter(make_op_mark(model, { kind: "module", index }));
  assert.deepEqual(marked(0), [0, 1, 2]);
  assert.deepEqual(marked(6), [1]); // layers.1
  assert.deepEqual(marked(12), []); // head
});
