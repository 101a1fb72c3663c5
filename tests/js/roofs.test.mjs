import assert from "node:assert/strict";
import { test } from "node:test";
import { has_room } from "../../meta_magic/view/static/charts/depth.js";
import { find_decades, has_rate, list_dots, list_roofs } from "../../meta_magic/view/static/charts/roofs.js";
import { Times } from "../../meta_magic/view/static/times.js";
import { DEVICE } from "./payloads.mjs";
import { make_trace } from "./table_payloads.mjs";

/**
 * On a device that does 100 FLOPs, 50 operations element by element and 10 bytes in a second:
 * a product of 400 FLOPs and 20 bytes (4 s), one of 100 FLOPs and 60 bytes (6 s), an addition
 * of 100 elements and 10 bytes (2 s), a copy of 10 bytes (1 s), and a view.
 */
function make_dots() {
  const trace = make_trace({ ops: [
    { op: "aten.mm.default", flops: 400, moves: [20, 0] }, { op: "aten.mm.default", flops: 100, moves: [60, 0] },
    { op: "aten.add.Tensor", moves: [5, 5] }, { op: "aten.clone.default", moves: [5, 5] }, { op: "aten.t.default" },
  ] });
  Object.assign(trace.work, { kind: [0, 0, -1, -1, -1], elementwise: [0, 0, 100, 0, 0] });
  return list_dots(trace, new Times(trace));
}

test("calls of an operator are one dot, the longest first, and what takes no time is none", () => {
  assert.deepEqual(make_dots().map(({ op, n_calls, seconds }) => [op, n_calls, seconds]),
    [["mm", 2, 10], ["add", 1, 2], ["clone", 1, 1]]);
});

test("a dot adds up what its calls compute, move, and wait for", () => {
  const [{ work, nbytes, waiting, longest, signatures }] = make_dots();
  assert.deepEqual([work, nbytes, waiting, longest], [500, 80, 6, 1]);
  assert.deepEqual(signatures.toSorted(), [0, 1]);
});

test("what computes nothing is not drawn, and elements count as operations", () => {
  const dots = make_dots();
  assert.deepEqual(dots.map(has_rate), [true, true, false]);
  assert.equal(dots[1].work, 100);
});

test("products of two kinds are two dots", () => {
  const trace = make_trace({ ops: [1, 2].map(() => ({ op: "aten.mm.default", flops: 100, moves: [5, 5] })) });
  trace.work.kind = [0, 1];
  trace.work.devices = [{ ...DEVICE, peaks: [["float32", 100], ["bfloat16", 200]] }];
  assert.equal(list_dots(trace, new Times(trace)).length, 2);
});

test("there is a roof for each peak that is used, the highest first, and one for equal ones", () => {
  const dots = make_dots();
  assert.deepEqual(list_roofs(dots.filter(has_rate), DEVICE),
    [{ name: "float32", flops: 100 }, { name: "elementwise", flops: 50 }]);
  assert.deepEqual(list_roofs(dots, { ...DEVICE, vectors: 100 }), [{ name: "float32, elementwise", flops: 100 }]);
  assert.deepEqual(list_roofs(dots, { ...DEVICE, vectors: null }), [{ name: "float32", flops: 100 }]);
});

test("decades are whole, and at least one", () => {
  assert.deepEqual(find_decades([0.02, 3, 700]), { from: -2, to: 3 });
  assert.deepEqual(find_decades([10]), { from: 1, to: 2 });
});

test("a label has room where no other is, within the chart", () => {
  const measure = (text) => 10 * text.length;
  const kept = [{ text: "abc", x: 0, y: 0, room: 100 }];
  const at = (x, y, room = 100) => has_room(kept, { text: "de", x, y, room }, measure);
  assert.deepEqual([at(20, 5), at(35, 5), at(20, 12), at(35, 5, 19)], [false, true, true, false]);
});
