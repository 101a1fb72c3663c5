import assert from "node:assert/strict";
import { test } from "node:test";
import { sort_rows } from "../../meta_magic/view/static/tables/rows.js";
import {
  build_module_rows, find_depth, read_module_row,
} from "../../meta_magic/view/static/tables/modules.js";
import { read_held_row } from "../../meta_magic/view/static/tables/parameters.js";
import { Times } from "../../meta_magic/view/static/times.js";
import { make_model, make_trace } from "./table_payloads.mjs";

const build = (trace, changes = {}) => build_module_rows(trace, {
  filter: "", open: new Map(), wanted: -1, depth: 2, sort: (rows) => rows, ...changes,
});
const read = (trace, row, flops = 10) => read_module_row(trace, row, flops, new Times(trace));
const indent = (trace, rows) => rows.map(
  (row) => " ".repeat(row.level - 1) + read(trace, row).name,
);
const draw = (trace, changes) => indent(trace, build(trace, changes));
const sort_by = (trace, key, direction) => (rows) =>
  sort_rows(rows, (row) => read(trace, row)[key], direction);
const opened = (...keys) => new Map(keys.map((key) => [`:${key}`, true]));

test("two levels are open where they are asked for, and alike siblings are one row", () => {
  assert.deepEqual(draw(make_model()), ["model", " embed", " layers", "  0-2", " head"]);
});

test("depth says how many levels are open", () => {
  assert.deepEqual(draw(make_model(), { depth: 0 }), ["model"]);
  assert.deepEqual(draw(make_model(), { depth: 1 }), ["model", " embed", " layers", " head"]);
});

test("a run is a level where a depth is asked for, and the rest of it stays closed", () => {
  assert.deepEqual(draw(make_model(), { depth: 4, has_runs: true }), [
    "model", " embed", " layers", "  0-2", "   0", "    attn", "    mlp", "   1-2", " head",
  ]);
});

test("as many levels are open at first as are in sight whole", () => {
  const make_wide = (n_parts, n_inner) => make_trace({ modules: [
    { name: "model" },
    ...Array.from({ length: n_parts }, (_, i) => ({ name: `part${i}`, parent: 0 })),
    ...Array.from({ length: n_inner }, (_, i) => ({ name: `inner${i}`, parent: 1 })),
  ] });
  assert.equal(find_depth(make_wide(6, 7)).depth, 2);
  assert.equal(find_depth(make_wide(6, 8)).depth, 1);
  assert.equal(find_depth(make_wide(20, 0)).depth, 1);
});

test("the first of a run is open at first, where all that is in it is in sight", () => {
  assert.deepEqual(draw(make_model(), find_depth(make_model())), [
    "model", " embed", " layers", "  0-2", "   0", "    attn", "    mlp", "   1-2", " head",
  ]);
});

test("a run of what holds nothing stays closed, as does one in which too much is", () => {
  const make_run = (n_inner) => make_trace({ modules: [
    { name: "model" }, ...["0", "1", "2"].map((name) => ({ name, parent: 0 })),
    ...[1, 2, 3].flatMap((parent) =>
      Array.from({ length: n_inner }, (_, i) => ({ name: `inner${i}`, parent }))),
  ] });
  const count = (trace) => build(trace, find_depth(trace)).length;
  assert.equal(count(make_run(0)), 2); // model, 0-2
  assert.equal(count(make_run(10)), 14); // model, 0-2, 0, ten, 1-2
  assert.equal(count(make_run(11)), 2);
});

test("an opened run shows its first, and a row of the rest", () => {
  assert.deepEqual(draw(make_model(), { open: opened("run3") }).slice(2), [
    " layers", "  0-2", "   0", "   1-2", " head",
  ]);
});

test("the opened rest of a run shows all", () => {
  assert.deepEqual(draw(make_model(), { open: opened("run3", "run6") }).slice(3), [
    "  0-2", "   0", "   1-2", "    1", "    2", " head",
  ]);
});

test("a row knows its parent, and whether it is open, closed or a leaf", () => {
  assert.deepEqual(build(make_model()).map((row) => [row.parent, row.is_open]), [
    [-1, true], [0, false], [0, true], [2, false], [0, false],
  ]);
});

test("what a module holds is below it, closed at first", () => {
  const trace = make_model();
  const rows = build(trace, { open: opened("module1") });
  assert.equal(rows[2].is_open, null);
  assert.deepEqual(
    [1, 2].map((i) => rows[i].tensors), [[], [0]],
  );
  const { name, class: kind, parameters, bytes, marks } = read_held_row(trace, rows[2]);
  assert.deepEqual([name, kind, parameters, bytes, marks],
    ["weight", "(10, 2) f32", 20, 80, "frozen"]);
});

test("a tied tensor counts nothing", () => {
  const trace = make_model();
  const { parameters, bytes, marks } = read_held_row(trace, { modules: [12], tensors: [7] });
  assert.deepEqual([parameters, bytes, marks], [0, 0, "frozen · tied to embed.weight"]);
});

test("beside other modules, what a module holds is one row", () => {
  const trace = make_model();
  const weight = trace.modules[1].tensors[0];
  Object.assign(trace.modules[0], { tensors: [weight, { ...weight, name: "bias" }] });
  const rows = build(trace);
  assert.deepEqual([rows[1].tensors.length, rows[1].is_open], [2, false]);
  const { name, class: kind } = read_held_row(trace, rows[1]);
  assert.deepEqual([name, kind], ["weight, bias", "2 tensors of its own"]);
  assert.deepEqual(build(trace, { open: new Map([[rows[1].key, true]]) }).slice(2, 4)
    .map((row) => read_held_row(trace, row).name), ["weight", "bias"]);
});

test("a wanted parameter opens its module, a wanted module does not open itself", () => {
  const trace = make_model();
  assert.equal(build(trace, { wanted: 1, wanted_tensor: 0 })[2].tensors[0], 0);
  assert.equal(build(trace, { wanted: 1 })[1].is_open, false);
});

test("a row that is open at first is closed by its key", () => {
  const trace = make_model();
  const { key } = build(trace)[2];
  const open = new Map([[key, false]]);
  assert.deepEqual(draw(trace, { open }), ["model", " embed", " layers", " head"]);
  open.set(key, true);
  assert.equal(build(trace, { open }).length, 5);
});

test("a filter leaves matches and what they are in", () => {
  assert.deepEqual(draw(make_model(), { filter: "  ATTENTION " }), [
    "model", " layers", "  0-2", "   0", "    attn", "   1-2", "    1", "     attn", "    2",
    "     attn",
  ]);
});

test("a filter by path takes a run apart where it keeps only some of it", () => {
  assert.deepEqual(draw(make_model(), { filter: "layers.1" }), [
    "model", " layers", "  1", "   attn", "   mlp",
  ]);
});

test("each word of a filter must be found", () => {
  assert.deepEqual(draw(make_model(), { filter: "layers.1 attn" }).slice(2), ["  1", "   attn"]);
});

test("a filter that nothing matches leaves no rows", () => {
  assert.deepEqual(draw(make_model(), { filter: "conv" }), []);
});

test("what was closed without a filter is open in one", () => {
  const open = new Map([[":module0", false]]);
  assert.equal(draw(make_model(), { open }).length, 1);
  assert.deepEqual(draw(make_model(), { open, filter: "embed" }), ["model", " embed"]);
});

test("siblings are sorted, and only siblings", () => {
  const trace = make_model();
  // embed 20, layers 3 x (4 + 6) = 30, head 0 as it is tied
  const up = sort_by(trace, "parameters", 1);
  assert.deepEqual(draw(trace, { sort: up }), ["model", " head", " embed", " layers", "  0-2"]);
  const down = sort_by(trace, "name", -1);
  assert.deepEqual(draw(trace, { sort: down }), ["model", " layers", "  0-2", " head", " embed"]);
});

test("names are sorted as numbers where they are numbers", () => {
  const modules = [
    { name: "top" }, { parent: 0, name: "10", cls: "A" }, { parent: 0, name: "9", cls: "B" },
  ];
  const trace = make_trace({ modules });
  assert.deepEqual(draw(trace, { sort: sort_by(trace, "name", 1) }), ["top", " 9", " 10"]);
});

test("numbers of a run are its sums", () => {
  const trace = make_model();
  const { name, class: words, parameters, bytes } = read(trace, build(trace)[3]);
  assert.deepEqual([name, words, parameters, bytes], ["0-2", "3 x Layer", 30, 120]);
});

test("a container says what it holds, and is found by its class", () => {
  const modules = [
    { name: "", cls: "Net" }, { parent: 0, name: "layers", cls: "ModuleList", kind: "2 x Layer" },
    { parent: 1, name: "0", cls: "Layer" }, { parent: 1, name: "1", cls: "Layer" },
  ];
  const trace = make_trace({ modules });
  assert.equal(read(trace, build(trace)[1]).class, "2 x Layer");
  assert.deepEqual(draw(trace, { filter: "modulelist" }), ["(root)", " layers"]);
});

test("the FLOPs of a run are added up, alike as it is or not", () => {
  const trace = make_model();
  const { FLOPs, share } = read(trace, build(trace)[3], 20);
  assert.deepEqual([FLOPs, share], [10, 0.5]); // 2 + 6 + 2 of 20
});

test("activations are what is newly made in the forward phase, no views", () => {
  const modules = [{ name: "top" }, { parent: 0, name: "a" }, { parent: 0, name: "b" }];
  const trace = make_trace({ modules, ops: [
    { module: 1, outputs: [[2, 3]], phase: 0 }, // init
    { module: 1, outputs: [[2, 3]] }, // 24 bytes
    { module: 1, inputs: [[2, 3]], outputs: [[3, 2]], views: [0] },
    { module: 2, outputs: [[5], [7]], views: [-1, 0], inputs: [[7]] }, // 20 bytes
    { module: 2, outputs: [[5]], phase: 2 }, // backward
  ] });
  assert.deepEqual(trace.modules.map(({ activations }) => activations), [44, 24, 20]);
  assert.equal(read(trace, { modules: [1] }).activations, 24);
});

test("siblings are sorted by their FLOPs as numbers, none last", () => {
  const modules = [
    { name: "top" }, { parent: 0, name: "none" }, { parent: 0, name: "small" },
    { parent: 0, name: "large" },
  ];
  const ops = [{ module: 2, flops: 9 }, { module: 3, flops: 10 }];
  const trace = make_trace({ modules, ops });
  const names = (key, direction) => draw(trace, { sort: sort_by(trace, key, direction) }).slice(1);
  assert.deepEqual(names("FLOPs", 1), [" small", " large", " none"]);
  assert.deepEqual(names("share", -1), [" large", " small", " none"]);
});

test("every column that is not sent has a value", () => {
  const trace = make_model();
  const names = trace.columns.modules.map(({ name }) => name).filter((name) => name !== "marks");
  assert.deepEqual(Object.keys(read(trace, build(trace)[0])), names);
});

test("a column that was sent adds up as it says", () => {
  const trace = make_model();
  const values = trace.modules.map((_, i) => i);
  trace.columns.modules.push(
    { name: "all", help: "", width: 90, values, add_up: "sum" },
    { name: "one", help: "", width: 90, values, add_up: "first" },
  );
  const { all, one } = read(trace, build(trace)[3]);
  assert.deepEqual([all, one], [3 + 6 + 9, 3]); // layers.0, layers.1 and layers.2
});

test("the tensors of the first call are shown", () => {
  const trace = make_model();
  const { input, output } = read(trace, build(trace)[0]);
  assert.deepEqual([input, output], ["(2, 3) f32, (3,) f32", "() f32"]);
});

test("a module that was not called has no shapes", () => {
  const trace = make_model();
  assert.equal(read(trace, build(trace)[2]).input, "");
});

test("a module inside a run is shown with all that hides it opened", () => {
  const trace = make_model();
  const rows = build(trace, { depth: 0, wanted: 7 });
  assert.deepEqual(indent(trace, rows), [
    "model", " embed", " layers", "  0-2", "   0", "   1-2", "    1", "     attn", "     mlp",
    "    2", " head",
  ]);
  assert.deepEqual(rows[7].modules, [7]);
});

test("the first of a run is shown without the others", () => {
  const rows = build(make_model(), { wanted: 3 });
  assert.deepEqual([rows[4].modules, rows.at(-2).modules], [[3], [6, 9]]);
});

test("what a filter hides has no row", () => {
  const rows = build(make_model(), { filter: "embed", wanted: 7 });
  assert.ok(!rows.some(({ modules }) => modules.includes(7)));
});
