import assert from "node:assert/strict";
import { test } from "node:test";
import { TraceView } from "../../meta_magic/view/static/data.js";
import {
  add_up_lives, choose_marks, choose_ops, find_most, list_live, read_lives,
} from "../../meta_magic/view/static/memory/lives.js";
import { make_modules, make_payload, to_deltas, to_steps } from "./payloads.mjs";

/**
 * Five operators, on lines 2 to 6, of which 1 and 2 run in module 1.
 *
 * A parameter of module 1 (storage 0, 8 bytes, cpu) from 0 on; what 1 made (storage 1, 4
 * bytes, cuda:0) until 3; what 2 made (storage 2, cpu), 2 bytes, from 3 on 6 bytes.
 */
function make_memory() {
  return new TraceView(make_payload({
    modules: make_modules([{ name: "net" }, { parent: 0, name: "layer" }]),
    signatures: [{ op: "aten.mm.default", inputs: [], outputs: [], writes: [], views: [], flops: -1 }],
    places: [2, 3, 4, 5, 6].map((line) => ({ function: "", line, phase: 1, position: -1 })),
    ops: {
      signature: [0, 0, 0, 0, 0], place: [0, 1, 2, 3, 4], module: [-1, 1, 1, -1, -1],
      call: [-1, -1, -1, -1, -1], forward: [0, 0, 0, 0, 0], tensors: to_deltas([]),
    },
    owners: [[0, 1]],
    memory: {
      categories: ["parameter", "temporary"], places: ["cpu", "cuda:0"],
      storage: to_steps([0, 1, 2, 2]), start: to_steps([0, 1, 2, 3]), length: [0, 2, 1, 0],
      nbytes: [0, 1, 2, 3], sizes: [8, 4, 2, 6], category: [0, 1, 1, 1], place: [0, 1, 0, 0],
    },
  }));
}

const add_up = (trace, device) => add_up_lives(trace, read_lives(trace), device);

test("a storage that is resized belongs to the operator that first used it", () => {
  const lives = read_lives(make_memory());
  assert.deepEqual(lives.map(({ start, stop, op }) => [start, stop, op]), [
    [0, 5, 0], [1, 3, 1], [2, 3, 2], [3, 5, 2],
  ]);
});

test("what lives adds up by category", () => {
  const { by_category, totals, peak } = add_up(make_memory(), -1);
  assert.deepEqual([...totals], [8, 12, 14, 14, 14]);
  assert.deepEqual([...by_category[1].subarray(0, 5)], [0, 4, 6, 6, 6]);
  assert.equal(peak, 2);
});

test("each device has bytes and a peak of its own", () => {
  const trace = make_memory();
  assert.deepEqual([...add_up(trace, 0).totals], [8, 8, 10, 14, 14]);
  assert.equal(add_up(trace, 0).peak, 3);
  assert.deepEqual([...add_up(trace, 1).totals], [0, 4, 4, 0, 0]);
});

test("what is alive is listed by module and by line", () => {
  const trace = make_memory();
  const { by_module, by_line } = list_live(trace, read_lives(trace), -1, 2);
  assert.deepEqual([...by_module], [[1, 14]]);
  assert.deepEqual([...by_line], [[2, 8], [3, 4], [4, 2]]);
});

test("of another device nothing is listed", () => {
  const trace = make_memory();
  assert.deepEqual([...list_live(trace, read_lives(trace), 1, 3).by_line], []);
});

test("few operators are all drawn", () => {
  assert.deepEqual(choose_ops(Float64Array.of(5, 1, 3), 10), [0, 1, 2]);
});

test("of many operators each column keeps its most and its least, in their order", () => {
  const totals = Float64Array.of(1, 9, 0, 4, 4, 4, 7, 2, 7, 3, 3, 8);
  assert.deepEqual(choose_ops(totals, 3), [1, 2, 6, 7, 9, 11]);
});

test("no peak is lost, however narrow the chart", () => {
  const totals = Float64Array.from({ length: 46_000 }, (_, op) => (op === 31_337 ? 1e12 : op % 7));
  for (const width of [0.4, 1, 300, 1440]) {
    const kept = choose_ops(totals, width);
    assert.ok(kept.includes(31_337));
    assert.ok(kept.length <= Math.max(2, 2 * width));
    assert.deepEqual(kept, [...new Set(kept)].sort((a, b) => a - b));
  }
});

test("the first of equal numbers is the most", () => {
  assert.equal(find_most(Float64Array.of(1, 5, 5), 0, 3), 1);
  assert.equal(find_most(Float64Array.of(), 0, 0), -1);
});

test("marks are round numbers of bytes", () => {
  assert.deepEqual(choose_marks(700 * 2 ** 20), [256, 512].map((n) => n * 2 ** 20));
  assert.deepEqual(choose_marks(1024), [512, 1024]);
  assert.deepEqual(choose_marks(1), [1]);
});
