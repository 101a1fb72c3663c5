import assert from "node:assert/strict";
import { test } from "node:test";
import { format_room, group_devices } from "../../meta_magic/view/static/memory/fit.js";
import {
  choose_end, choose_ticks, find_largest, find_peak, interpolate, name_choices, resize_lives, describe_fit,
  describe_size,
} from "../../meta_magic/view/static/memory/growth.js";

/** Two calls: 1000 + n bytes, and 100 n; the second is the highest from 11 on. */
const make_growth = (own = {}) => ({
  name: "batch", current: 8, choices: [], nbytes: 5000, largest: 50,
  recorded: [[2, 1002], [3, 1003], [8, 1008], [50, 5000]], sizes: [2, 3, 8], step: 1,
  highest: [[1002, 1003, 1008], [200, 300, 800]], reason: null, ...own,
});

/** 500 bytes less, whichever call it is. */
const make_lower = () => make_growth({
  choices: ["fused"], recorded: [], highest: [[502, 503, 508], [-300, -200, 300]], nbytes: 1, largest: 0,
});

/** Nothing is known beside what was recorded. */
const make_points = () => make_growth({ sizes: [], highest: [] });

const format = (nbytes) => `${nbytes} B`;

test("a polynomial goes through its points, and is exact far away", () => {
  const square = (n) => 7 + 3 * n + 5 * n * n;
  for (const sizes of [[2, 3, 4], [128, 256, 384], [17, 12, 7]]) {
    for (const n of [...sizes, 1, 1000, 2 ** 20]) assert.equal(interpolate(sizes, sizes.map(square), n), square(n));
  }
});

test("what grows evenly loses no digit among terabytes", () => {
  const line = (n) => 4_000_001 * n + 123_456_789_012;
  assert.equal(interpolate([2, 3, 4], [2, 3, 4].map(line), 2 ** 20), line(2 ** 20));
});

test("between the recorded sizes nothing is floored", () => {
  assert.deepEqual([4, 5, 7].map((n) => interpolate([3, 6, 9], [9, 36, 81], n)), [16, 25, 49]);
});

test("the peak moves from one call to another", () => {
  assert.deepEqual([10, 11, 12].map((n) => find_peak(make_growth(), n)), [1010, 1100, 1200]);
});

test("what was recorded goes before what follows from it", () => {
  assert.equal(find_peak(make_growth({ recorded: [[12, 1234]] }), 12), 1234);
  assert.equal(find_peak(make_points(), 8), 1008);
  assert.ok(Number.isNaN(find_peak(make_points(), 9)));
});

test("the largest size is the last that there is room for", () => {
  for (const nbytes of [1001, 1010, 1099, 1100, 4999, 123_456]) {
    const largest = find_largest(make_growth(), nbytes);
    assert.ok(find_peak(make_growth(), largest) <= nbytes && find_peak(make_growth(), largest + 1) > nbytes);
  }
  assert.equal(find_largest(make_growth(), 1000), 0);
  assert.equal(find_largest(make_growth(), 1e18), 2 ** 20);
});

test("sizes are multiples of a step", () => {
  const growth = make_growth({ step: 4 });
  assert.deepEqual([1100, 1199, 1200].map((nbytes) => find_largest(growth, nbytes)), [8, 8, 12]);
  assert.equal(describe_fit([make_growth({ step: 4 })], 900, format), "no batch fits, 4 takes 1004 B; a choice may help");
});

test("of the memory that was asked about it is the one that was recorded", () => {
  assert.equal(find_largest(make_growth({ largest: 49 }), 5000), 49);
  assert.equal(find_largest(make_points(), 5000), 50);
  assert.ok(Number.isNaN(find_largest(make_points(), 6000)));
  assert.ok(Number.isNaN(find_largest(make_growth({ reason: "it raises" }), 5000)));
});

test("stretches of calls have the bytes of another size", () => {
  const stretches = { sizes: [2, 3, 4], row: [1, 0, 1], rows: [[5, 5, 5], [4, 9, 16]] };
  const lives = [1, 2, 3].map((start) => ({ start, nbytes: 0 }));
  const found = resize_lives(lives, stretches, 10);
  assert.deepEqual(found, [{ start: 1, nbytes: 100 }, { start: 2, nbytes: 5 }, { start: 3, nbytes: 100 }]);
  assert.equal(lives[0].nbytes, 0);
});

test("the chart ends beyond what fits", () => {
  assert.equal(choose_end([make_growth(), make_lower()], 5000), Math.ceil(55 * 1.25));
  assert.equal(choose_end([make_growth()], 900), 16); // twice the size that it has
  assert.equal(choose_end([make_points()], 6000), 16);
});

test("sizes stand at round numbers, few of them", () => {
  assert.deepEqual(choose_ticks(4), [1, 2, 3, 4]);
  assert.deepEqual(choose_ticks(69), [20, 40, 60]);
  assert.deepEqual(choose_ticks(4096), [1000, 2000, 3000, 4000]);
  assert.deepEqual(choose_ticks(1_234_567), [500_000, 1_000_000]);
});

test("it is said whether it fits, and what would", () => {
  assert.equal(describe_fit([make_growth()], 5000, format), "batch = 8 fits, and up to 50");
  assert.equal(describe_fit([make_growth()], 1004, format), "batch = 8 does not fit, up to 4 does; a choice may help");
  assert.equal(describe_fit([make_growth(), make_lower()], 900, format), "no batch fits, 1 takes 1001 B; fused: up to 14");
  assert.equal(describe_fit([make_growth(), make_lower()], 400, format),
    "no batch fits, 1 takes 1001 B; no choice that was tried helps, the least is 501 B with fused");
  assert.equal(describe_fit([make_points()], 6000, format), "");
});

test("beyond the largest size that is tried nothing is known", () => {
  assert.deepEqual([NaN, 0, 4000, 2 ** 20].map(describe_size), ["not known", "none", "4,000", "1,048,576 or more"]);
});

test("choices are named together", () => {
  assert.equal(name_choices([]), "as it is");
  assert.equal(name_choices(["fused", "sgd"]), "fused + sgd");
});

test("devices with as much memory stand together, the least first", () => {
  const devices = [["a", 24e9], ["b", 16e9], ["c", 24e9], ["cpu", 0]].map(([name, nbytes]) => ({ name, nbytes }));
  assert.deepEqual(group_devices(devices).map((group) => group.map(({ name }) => name)), [["b"], ["a", "c"]]);
  assert.equal(format_room(141e9), "141 GB");
});
