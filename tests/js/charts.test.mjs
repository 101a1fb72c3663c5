import assert from "node:assert/strict";
import { test } from "node:test";
import {
  add_up_modules, build_tops, fit_label, arrange_areas, share_rect,
} from "../../meta_magic/view/static/charts/areas.js";
import {
  choose_labels, find_plateaus, find_stretches, list_dimensions, list_steps,
} from "../../meta_magic/view/static/charts/depth.js";
import { make_model, make_trace } from "./table_payloads.mjs";

const areas = (...values) => values.map((value) => ({ value, children: [], modules: [] }));
const size = ({ w, h }) => w * h;
const measure = (text) => 10 * text.length;
const read_params = (trace) => (i) => trace.modules[i].n_params;

test("areas are as the values", () => {
  const rects = share_rect(areas(6, 3, 1), { x: 0, y: 0, w: 50, h: 20 });
  assert.deepEqual(rects.map((rect) => Math.round(size(rect))), [600, 300, 100]);
});

test("areas are as square as can be", () => {
  // The example of Bruls, Huizing and van Wijk: the first strip holds 6 and 6.
  const rects = share_rect(areas(6, 6, 4, 3, 2, 2, 1), { x: 0, y: 0, w: 6, h: 4 });
  assert.deepEqual(rects.slice(0, 2), [{ x: 0, y: 0, w: 3, h: 2 }, { x: 0, y: 2, w: 3, h: 2 }]);
  assert.deepEqual(rects.map((rect) => Math.round(size(rect))), [6, 6, 4, 3, 2, 2, 1]);
});

test("rectangles fill the whole and do not overlap", () => {
  const rects = share_rect(areas(9, 7, 5, 4, 4, 2, 1, 1), { x: 3, y: 5, w: 70, h: 30 });
  assert.ok(Math.abs(rects.reduce((sum, rect) => sum + size(rect), 0) - 2100) < 1e-6);
  rects.forEach((a, i) => rects.slice(i + 1).forEach((b) => {
    const w = Math.min(a.x + a.w, b.x + b.w) - Math.max(a.x, b.x);
    const h = Math.min(a.y + a.h, b.y + b.h) - Math.max(a.y, b.y);
    assert.ok(Math.min(w, h) < 1e-6);
  }));
});

test("modules that are built alike are one area, and so is what is in them", () => {
  const trace = make_model();
  const tops = build_tops(trace, read_params(trace));
  // 3 layers of 4 + 6, embed 20; the head is tied to it and has nothing of its own.
  assert.deepEqual(tops.map(({ words, value }) => [words, value]), [
    ["layers: ModuleList", 30], ["embed: Embedding", 20],
  ]);
  const [run] = tops[0].children;
  assert.deepEqual([run.words, run.modules], ["0-2: 3 x Layer", [3, 6, 9]]);
  assert.deepEqual(run.children.map(({ words, value }) => [words, value]), [
    ["mlp: 3 x Linear", 18], ["attn: 3 x Attention", 12],
  ]);
});

test("what a module has beside those in it is an area", () => {
  const trace = make_trace({ modules: [
    { name: "net", tensors: [{ name: "scale", shape: [2] }] },
    { parent: 0, name: "inner", tensors: [{ name: "weight", shape: [6] }] },
  ] });
  const tops = build_tops(trace, read_params(trace));
  assert.deepEqual(tops.map(({ name, value, at }) => [name, value, at]), [["inner", 6, 1], ["itself", 2, 0]]);
});

test("without any value there is no area", () => {
  const trace = make_trace({ modules: [{ name: "net" }] });
  assert.deepEqual(build_tops(trace, read_params(trace)), []);
});

test("two roots stand in one chart", () => {
  const weight = (n) => [{ name: "weight", shape: [n] }];
  const trace = make_trace({ modules: [
    { name: "a", tensors: weight(3) }, { name: "b", tensors: weight(5) },
  ] });
  assert.deepEqual(build_tops(trace, read_params(trace)).map(({ name }) => name), ["b", "a"]);
});

test("in a box lie those of what it has, by their path", () => {
  const trace = make_model();
  const placed = arrange_areas(build_tops(trace, read_params(trace)), { x: 0, y: 0, w: 100, h: 50 });
  const leaves = placed.filter(({ is_leaf }) => is_leaf);
  assert.deepEqual(leaves.map(({ path, top, rect }) => [path, top.name, Math.round(size(rect))]), [
    ["layers.0-2.mlp", "layers", 1800], ["layers.0-2.attn", "layers", 1200], ["embed", "embed", 2000],
  ]);
});

test("a box too small for what is in it is drawn whole", () => {
  const trace = make_model();
  const placed = arrange_areas(build_tops(trace, read_params(trace)), { x: 0, y: 0, w: 20, h: 10 });
  assert.deepEqual(placed.map(({ path }) => path), ["layers", "embed"]);
});

test("own values add up to those above", () => {
  const trace = make_trace({ modules: [{ name: "a" }, { parent: 0 }, { parent: 1 }, { parent: 0 }] });
  assert.deepEqual(add_up_modules(trace, ({ index }) => index), [6, 3, 2, 3]);
});

test("a label is readable or absent", () => {
  assert.deepEqual(fit_label("h.0.mlp", "3 M", 70, 28, measure), ["h.0.mlp", "3 M"]);
  assert.deepEqual(fit_label("h.0.mlp", "3 M", 60, 28, measure), ["mlp", "3 M"]); // not "0.mlp"
  assert.deepEqual(fit_label("h.0.mlp", "3 M", 60, 20, measure), ["mlp"]);
  assert.deepEqual(fit_label("h.0.mlp", "3 M", 20, 28, measure), []);
  assert.deepEqual(fit_label("0", "3 M", 10, 28, measure), ["0"]);
});

test("steps are the calls of the innermost modules, of an outermost the first", () => {
  const call = (index, module, parent) => ({ index, module, parent, outputs: [{}] });
  const calls = [
    call(0, 0, -1), call(1, 1, 0), call(2, 2, 0), call(3, 3, 2),
    call(4, 0, -1), call(5, 1, 4),
  ];
  assert.deepEqual(list_steps({ calls }).map(({ index }) => index), [1, 3]);
});

test("a module that returned nothing is no step", () => {
  assert.deepEqual(list_steps({ calls: [{ index: 0, module: 0, parent: -1, outputs: [] }] }), []);
});

test("equal neighbours are one plateau", () => {
  assert.deepEqual(find_plateaus([64, 64, 3]), [
    { start: 0, end: 2, value: 64 }, { start: 2, end: 3, value: 3 },
  ]);
});

test("each dimension has its sizes, where there is such a dimension", () => {
  const steps = [[2, 64, 8, 8], [2, 64, 4, 4], [2, 10]].map((shape) => ({ outputs: [{ geometry: { shape } }] }));
  assert.deepEqual(list_dimensions(steps), [
    [{ start: 0, end: 3, value: 2 }],
    [{ start: 0, end: 2, value: 64 }, { start: 2, end: 3, value: 10 }],
    [{ start: 0, end: 1, value: 8 }, { start: 1, end: 2, value: 4 }],
    [{ start: 0, end: 1, value: 8 }, { start: 1, end: 2, value: 4 }],
  ]);
});

test("stretches are named by the module that all their steps are in", () => {
  const trace = make_model();
  // embed, then attn and mlp of each layer, then the head.
  const steps = [1, 4, 5, 7, 8, 10, 11, 12].map((module) => ({ module }));
  const names = find_stretches(trace, steps).map(({ start, end, name }) => [start, end, name]);
  assert.deepEqual(names, [
    [0, 1, "embed"], [1, 2, "layers.0.attn"], [2, 3, "layers.0.mlp"], [3, 4, "layers.1.attn"],
    [4, 5, "layers.1.mlp"], [5, 6, "layers.2.attn"], [6, 7, "layers.2.mlp"], [7, 8, "head"],
  ]);
  const first = find_stretches(trace, steps.slice(1, 3));
  assert.deepEqual(first.map(({ name }) => name), ["layers.0.attn", "layers.0.mlp"]);
});

test("a label that has no room, or lies on another, is left out", () => {
  const label = (text, x, y, room = 100) => ({ text, x, y, room });
  const kept = choose_labels([
    label("64", 0, 50), label("64", 0, 50), label("32", 10, 55), label("3", 0, 80),
    label("128", 40, 50, 20),
  ], measure);
  assert.deepEqual(kept.map(({ text, y }) => [text, y]), [["64", 50], ["3", 80]]);
});

test("a dimension that the first steps lack begins where there is one", () => {
  assert.deepEqual(find_plateaus([undefined, undefined, 4]),
    [{ start: 0, end: 2, value: undefined }, { start: 2, end: 3, value: 4 }]);
});
