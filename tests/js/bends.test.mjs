import assert from "node:assert/strict";
import { test } from "node:test";

import { find_bend, stack_halves } from "../../meta_magic/view/static/flow/bends.js";
import { arrange_nodes, flip } from "../../meta_magic/view/static/flow/layers.js";
import { find_crossings } from "./crossings.mjs";

const LABEL = "(2, 3) f32";

/** Nodes one after the other, with wires from each to the next, and to what skips say. */
function make_chain(n_nodes, skips, more = []) {
  const nodes = Array.from({ length: n_nodes }, (_, i) =>
    ({ w: 60 + 30 * (i % 4), h: 38, kind: "op", text: String(i) }));
  const readers = nodes.map((_, i) => (nodes[i + 1] ? [i + 1] : []));
  for (const [from, to] of skips) readers[from].push(to);
  const make_wire = (from, to) => ({
    from: nodes[from], starts: [{ node: nodes[from], x: null }], label: LABEL,
    ends: to.map((i) => ({ node: nodes[i], x: null })),
  });
  const wires = [...readers.entries(), ...more].filter(([, to]) => to.length)
    .map(([from, to]) => make_wire(from, to));
  return { nodes, wires };
}

/** An encoder of some levels, what is below it, and a decoder. */
const make_unet = (n_levels, more) => make_chain(2 * n_levels + 1,
  Array.from({ length: n_levels }, (_, i) => [i, 2 * n_levels - i]), more);

const bends = ({ nodes, wires }) => {
  arrange_nodes(nodes, wires);
  return nodes.some(({ is_up }) => is_up);
};

test("what nests stands side by side: down one half, up the other", () => {
  const { nodes, wires } = make_unet(4);
  const { h } = arrange_nodes(nodes, wires);
  nodes.slice(0, 5).forEach(({ y }, i, half) => assert.ok(!i || y > half[i - 1].y));
  nodes.slice(5).forEach(({ y }, i, half) => assert.ok(!i || y < half[i - 1].y));
  assert.ok(nodes[5].x > Math.max(...nodes.slice(0, 5).map(({ x, w }) => x + w)));
  assert.ok(h < 6 * 90);
});

test("a skip is short: it enters beside where it leaves", () => {
  const { nodes, wires } = make_unet(4);
  arrange_nodes(nodes, wires);
  for (let i = 0; i < 4; i += 1) {
    const [from, to] = [nodes[i], nodes[8 - i]];
    assert.equal(to.y + to.h, from.floor);
  }
  for (const [, , y] of wires[5].path.matchAll(/M([-\d.]+) ([-\d.]+)/g)) assert.ok(Number(y) <= nodes[5].y);
});

for (const is_across of [false, true]) {
  test(`in what bends, no wire runs through a label or a box, ${is_across ? "across" : "down"}`, () => {
    const shared = [[0, [2, 4, 6, 8, 9]], [1, [3, 5, 9]], [4, [6]], [2, [9, 10]], [8, [10]]];
    for (const n_levels of [2, 3, 5, 9]) {
      for (const more of [[], n_levels > 4 ? shared : []]) {
        const { nodes, wires } = make_unet(n_levels, more);
        const { w, h } = arrange_nodes(nodes, wires, is_across);
        assert.ok(nodes.some(({ is_up }) => is_up));
        assert.deepEqual(find_crossings({ nodes, wires }), []);
        for (const node of nodes) {
          assert.ok(node.x > -0.1 && node.y >= 0 && node.x + node.w < w + 0.1 && node.y + node.h <= h);
        }
      }
    }
  });
}

test("what is made of it comes down again, out of the second half's way", () => {
  const chain = make_unet(3);
  const out = { w: 60, h: 18, kind: "out", text: "out" };
  chain.wires.push({ from: chain.nodes[6], starts: [{ node: chain.nodes[6], x: null }], label: "",
    ends: [{ node: out, x: null }] });
  const nodes = [...chain.nodes, out];
  arrange_nodes(nodes, chain.wires);
  assert.equal(out.is_up, false);
  assert.ok(out.x > Math.max(...chain.nodes.map(({ x, w }) => x + w)));
  assert.deepEqual(find_crossings({ nodes, wires: chain.wires }), []);
});

test("residuals one after the other do not bend, nor one round them", () => {
  assert.equal(bends(make_chain(13, [[0, 3], [3, 6], [6, 9], [9, 12]])), false);
  assert.equal(bends(make_chain(14, [[0, 13], [1, 3], [3, 5], [5, 8], [8, 10]])), false);
});

test("a chain of concatenations does not bend, nor one where each reads all before", () => {
  assert.equal(bends(make_chain(12, [[0, 2], [2, 4], [4, 6], [6, 8], [8, 10]])), false);
  const dense = Array.from({ length: 8 }, (_, i) =>
    Array.from({ length: 8 - i }, (_, j) => [i, i + j + 2])).flat().filter(([, to]) => to < 9);
  assert.equal(bends(make_chain(9, dense)), false);
});

test("first out, first in does not bend", () => {
  assert.equal(bends(make_chain(12, [[0, 7], [1, 8], [2, 9], [3, 10]])), false);
});

test("a gate within a residual is too uneven to bend", () => {
  assert.equal(bends(make_chain(13, [[0, 12], [5, 11]])), false);
});

test("a row is as high as the higher of its sides", () => {
  const bend = { starts: [0, 3, 5], rows: [[1, 3], [0, 4]] };
  // From the bend up: layer 2 of 30, with a gap; then 3 of 100 beside 1 of 20; then 4, and 0.
  assert.deepEqual(stack_halves([40, 20, 30, 100, 10], bend, 5), [40, 145, 180, 145, 40]);
});

test("what is flipped leads up, and flipped again is as before", () => {
  for (const is_across of [false, true]) {
    const { nodes, wires } = make_chain(5, [[0, 3]]);
    const size = arrange_nodes(nodes, wires, is_across);
    const arranged = /** @type {any} */ ({ ...size, nodes, wires, is_up: false });
    const read = () => JSON.stringify([nodes.map(({ x, y }) => [x, y]), wires.map(({ path, label_x, label_y }) =>
      [path, label_x, label_y])]);
    const [before, [first, last]] = [read(), [nodes[0], nodes[4]]];
    flip(arranged, true, is_across);
    assert.ok(is_across ? first.x > last.x : first.y > last.y);
    assert.deepEqual(find_crossings(arranged), []);
    flip(arranged, true, is_across);
    flip(arranged, false, is_across);
    assert.equal(read(), before);
  }
});

test("no bend is found among few", () => {
  assert.equal(find_bend([]), null);
});
