import assert from "node:assert/strict";
import { test } from "node:test";

import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { walk } from "../../meta_magic/view/static/flow/items.js";
import { arrange_nodes } from "../../meta_magic/view/static/flow/layers.js";
import { arrange, ellipsize, forget_layout } from "../../meta_magic/view/static/flow/layout.js";
import { list_frames } from "../../meta_magic/view/static/flow/crumbs.js";
import { LABEL_LINE } from "../../meta_magic/view/static/flow/routes.js";
import { list_spots } from "../../meta_magic/view/static/flow/spots.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { find_crossings } from "./crossings.mjs";
import { mark_modules } from "../../meta_magic/view/static/difference.js";
import { make_layers, make_trace } from "./flow_payloads.mjs";

/** Numbers that look random and are the same each time. */
function make_random(seed) {
  return (limit) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * limit);
  };
}

function make_graph(seed, n_nodes, n_wires) {
  const random = make_random(seed);
  const spots = Array.from({ length: n_nodes }, (_, i) => ({
    w: 30 + random(200), h: 18 + random(300),
    kind: i === 0 ? "in" : i === n_nodes - 1 ? "out" : "op",
  }));
  const wires = Array.from({ length: n_wires }, () => {
    const from = random(n_nodes - 1);
    const to = Array.from({ length: 1 + random(3) }, () => from + 1 + random(n_nodes - 1 - from));
    return {
      from: spots[from], starts: [{ x: 0 }], label: "(2, 3) f32".repeat(random(2)),
      ends: [...new Set(to)].map((node) => ({ node: spots[node], x: 0 })),
    };
  });
  return { spots, wires };
}

function count_overlaps(boxes) {
  let n_overlaps = 0;
  boxes.forEach((a, i) => boxes.slice(0, i).forEach((b) => {
    if (a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h) n_overlaps += 1;
  }));
  return n_overlaps;
}

function check_arranged(arranged) {
  assert.equal(count_overlaps(arranged.nodes), 0);
  for (const { x, y, w, h, inner } of arranged.nodes) {
    assert.ok(x >= -0.1 && y >= -arranged.headroom && x + w <= arranged.w + 0.1 && y + h <= arranged.h + 0.1);
    if (inner) check_arranged(inner);
  }
}

for (const [n_nodes, n_wires] of [[2, 1], [5, 6], [20, 30], [60, 100], [150, 250], [150, 0]]) {
  test(`of ${n_nodes} random nodes with ${n_wires} wires, no two overlap`, () => {
    for (let seed = 1; seed <= 5; seed += 1) {
      const { spots, wires } = make_graph(seed, n_nodes, n_wires);
      const placed = arrange_nodes(spots, wires);
      assert.equal(count_overlaps(spots), 0);
      for (const { x, y, w, h } of spots) {
        assert.ok(x >= -0.1 && y >= 0 && x + w <= placed.w + 0.1 && y + h <= placed.h + 0.1);
      }
    }
  });
}

test("wires start at the bottom of their node or its label, and end at the top of others", () => {
  const { spots, wires } = make_graph(7, 40, 60);
  arrange_nodes(spots, wires);
  for (const { from, ends, path, heads, label } of wires) {
    const [, x, y] = path.match(/^M([-\d.]+) ([-\d.]+)/).map(Number);
    assert.ok(Math.abs(y - from.y - from.h - (label ? LABEL_LINE : 0)) < 0.2);
    assert.ok(x >= from.x && x <= from.x + from.w);
    const tips = [...heads.matchAll(/M([-\d.]+) ([-\d.]+)h7/g)];
    assert.equal(tips.length, ends.length);
    tips.forEach(([, left, top], j) => {
      const { node } = ends[j];
      assert.ok(Math.abs(Number(top) + 7 - node.y) < 0.2);
      assert.ok(Number(left) + 3.5 >= node.x - 0.1);
      assert.ok(Number(left) + 3.5 <= node.x + node.w + 0.1);
    });
  }
});

for (const is_across of [false, true]) {
  test(`no wire runs through a label or a box, ${is_across ? "across" : "down"}`, () => {
    for (let seed = 1; seed <= 20; seed += 1) {
      const { spots, wires } = make_graph(seed, 20, 40);
      for (const node of spots) node.text = "";
      for (const wire of wires) {
        wire.starts = [{ node: wire.from, x: null }];
        for (const end of wire.ends) end.x = null;
      }
      arrange_nodes(spots, wires, is_across);
      assert.deepEqual(find_crossings({ nodes: spots, wires }), []);
    }
  });
}

test("a wire through a label is found, and a label over a box", () => {
  const { spots: [node, below], wires: [wire] } = make_tower(2);
  arrange_nodes([node, below], [wire]);
  Object.assign(wire, { label: "(2, 3) f32", label_x: node.x + node.w / 2, label_y: node.y + node.h + 10 });
  assert.equal(find_crossings({ nodes: [node, below], wires: [wire] }).length, 1);
  wire.label_y = node.y + 4;
  assert.equal(find_crossings({ nodes: [node, below], wires: [wire] }).length, 1);
});

test("across, layers go from left to right", () => {
  const { spots, wires } = make_tower(4);
  const { w, h } = arrange_nodes(spots, wires, true);
  assert.equal(new Set(spots.map(({ y }) => y)).size, 1);
  spots.forEach(({ x }, i) => assert.ok(!i || x >= spots[i - 1].x + spots[i - 1].w));
  assert.ok(w > 4 * 150 && h === 38);
});

test("of many alike labels of a node one is shown, with their number", () => {
  const [from, ...readers] = Array.from({ length: 7 }, () => ({ w: 40, h: 20, kind: "op" }));
  const wires = readers.map((node) =>
    ({ from, starts: [{ node: from, x: null }], label: "(2,) f32", ends: [{ node, x: null }] }));
  arrange_nodes([from, ...readers], wires);
  assert.deepEqual(wires.map(({ label }) => label).filter(Boolean), ["6 × (2,) f32"]);
});

test("every wire leads down", () => {
  const { spots, wires } = make_graph(3, 40, 60);
  arrange_nodes(spots, wires);
  for (const { from, ends } of wires) {
    for (const { node } of ends) assert.ok(node.y >= from.y + from.h);
  }
});

/** Nodes one below the other, and the wires between them. */
function make_tower(n_nodes) {
  const spots = Array.from({ length: n_nodes }, () => ({ w: 150, h: 38, kind: "op" }));
  const wires = spots.slice(1).map((node, i) => ({
    from: spots[i], starts: [{ x: 0 }], label: "", ends: [{ node, x: 0 }],
  }));
  return { spots, wires };
}

test("a tower is laid out in columns of like heights, as wide as a view", () => {
  const { spots, wires } = make_tower(30);
  const { w, h } = arrange_nodes(spots, wires);
  assert.equal(count_overlaps(spots), 0);
  assert.ok(w > 1.5 * h && w < 3 * h);
  const heads = spots.filter(({ x }, i) => x > (spots[i - 1]?.x ?? -1));
  assert.ok(heads.length > 2);
  for (const { y } of heads.slice(1)) assert.equal(y, heads[1].y);
  const lows = spots.filter(({ x }, i) => x < (spots[i + 1]?.x ?? 0)).map(({ y }) => y);
  assert.ok(Math.min(...lows) > 0.5 * Math.max(...lows));
});

test("a wire to the next column goes round the foot of its own", () => {
  const { spots, wires } = make_tower(30);
  arrange_nodes(spots, wires);
  const turning = wires.filter(({ from, ends }) => ends[0].node.x > from.x + 1);
  assert.ok(turning.length);
  for (const { path, from, ends, left, right, top, bottom } of turning) {
    assert.match(path, /V[\d.]+H[\d.]+V[-\d.]+H[\d.]+V[\d.]+$/);
    assert.ok(left <= from.x + from.w / 2 && right >= ends[0].node.x + ends[0].node.w / 2);
    assert.ok(top < ends[0].node.y && bottom > from.y + from.h);
  }
});

test("what is low, and where many wires lead on, is not cut into columns", () => {
  const low = make_tower(4);
  arrange_nodes(low.spots, low.wires);
  assert.equal(new Set(low.spots.map(({ x }) => x)).size, 1);
  const { spots, wires } = make_tower(30);
  for (let i = 0; i < 3; i += 1) wires.push(make_skip(spots));
  arrange_nodes(spots, wires);
  spots.forEach(({ y }, i) => assert.ok(!i || y > spots[i - 1].y));
});

const make_skip = (spots) => ({ from: spots[0], starts: [{ x: 0 }], label: "", ends: [{ node: spots.at(-1), x: 0 }] });

test("a few wires lead from column to column, each in its lane", () => {
  const { spots, wires } = make_tower(30);
  wires.push(make_skip(spots));
  arrange_nodes(spots, wires);
  const firsts = spots.filter(({ y }, i) => i && y < spots[i - 1].y);
  assert.ok(firsts.length > 1);
  for (const first of firsts) {
    const wire = wires.find(({ ends: [{ node }] }) => node === first);
    assert.notEqual(wire.lane, wires.at(-1).lane);
  }
});

test("a fixed end is reached where it was asked for", () => {
  const [above, below] = [{ w: 50, h: 20, kind: "op" }, { w: 200, h: 100, kind: "op" }];
  const ends = [{ node: below, x: -60 }, { node: below, x: 70 }];
  const wire = { from: above, starts: [{ x: 0 }], label: "", ends };
  arrange_nodes([above, below], [wire]);
  const tips = [...wire.heads.matchAll(/M([-\d.]+)/g)].map(([, x]) => Number(x) + 3.5);
  assert.deepEqual(tips.map((x) => Math.round(x - below.x - 100)), [-60, 70]);
});

test("what reads one node stands in several layers, where it is too much for one", () => {
  const from = { w: 50, h: 20, kind: "op" };
  const readers = Array.from({ length: 40 }, () => ({ w: 100, h: 20, kind: "op" }));
  const ends = readers.map((node) => ({ node, x: 0 }));
  const { w, h } = arrange_nodes([from, ...readers], [{ from, starts: [{ x: 0 }], label: "", ends }]);
  assert.ok(w < 1700 && h < 300);
});

test("equal graphs are laid out equally", () => {
  const [one, other] = [make_graph(11, 60, 90), make_graph(11, 60, 90)];
  assert.deepEqual(arrange_nodes(one.spots, one.wires), arrange_nodes(other.spots, other.wires));
  assert.deepEqual(one.wires.map(({ path }) => path), other.wires.map(({ path }) => path));
});

test("nothing takes no room", () => {
  assert.deepEqual(arrange_nodes([], []), { w: 0, h: 0, headroom: 0 });
});

for (const n_layers of [1, 2, 5, 80, 300]) {
  test(`boxes of ${n_layers} layers do not overlap, closed or open`, () => {
    const trace = make_layers(n_layers);
    const boxes = new Boxes(follow_values(trace), choose_phase(trace));
    check_arranged(arrange(boxes, boxes.root));
    for (const box of walk(boxes.root)) {
      box.is_open = true;
      box.arranged = null;
    }
    check_arranged(arrange(boxes, boxes.root));
  });
}

test("a box that was not touched is not laid out again", () => {
  const trace = make_layers(3);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  const model = boxes.root.items[1];
  model.is_open = true;
  const before = arrange(boxes, boxes.root);
  const inside = model.arranged;
  assert.equal(arrange(boxes, boxes.root), before);
  forget_layout(boxes.root);
  assert.notEqual(arrange(boxes, boxes.root), before);
  assert.equal(model.arranged, inside);
});

test("an edge is labelled once, and not where a pill says the same", () => {
  const trace = make_layers(2);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  const { wires } = arrange(boxes, boxes.root);
  assert.deepEqual(wires.map(({ label }) => label), ["(2, 3) f32", ""]);
});

test("the operator at which a cell failed is marked, and what it is in", () => {
  const trace = make_trace([{ op: "aten.mm.default" }], [{ name: "m" }], [], { error: "E" });
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  assert.equal(arrange(boxes, boxes.root).nodes[0].text, "✗ mm");
});

test("no operator is marked where none raised the error", () => {
  const trace = make_trace([{ op: "aten.mm.default", makes: ["a"] }], [{ name: "m" }]);
  trace.error = "E";
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  assert.equal(arrange(boxes, boxes.root).nodes[0].text, "mm");
});

test("a module that another design had stands between what was called before and after it", () => {
  const trace = make_trace(
    [0, 1].map((i) => ({ op: "aten.mm.default", reads: [`x${i}`], makes: [`x${i + 1}`], module: i + 1, call: i + 1 })),
    [{ name: "model" }, { name: "a", parent: 0 }, { name: "b", parent: 0 }],
    [{ module: 0, first: 0, end: 2 }, ...[0, 1].map((i) => ({ module: i + 1, parent: 0, first: i, end: i + 1 }))],
  );
  mark_modules(trace, { marks: {}, removed: [{ text: "n: Norm", above: "model", previous: "model.a", next: "model.b" }] });
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  for (const box of walk(boxes.root)) box.is_open = box.module === 0;
  const { nodes } = arrange(boxes, boxes.root).nodes.find(({ inner }) => inner).inner;
  const below = nodes.filter(({ is_port }) => !is_port).toSorted((one, other) => one.y - other.y);
  assert.deepEqual(below.map(({ text }) => text), ["a: Linear", "− n: Norm", "b: Linear"]);
  assert.equal(trace.marks.get(0), "below");
});

test("the boxes that a view is within are named, but not those whose header it shows", () => {
  const trace = make_layers(3);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  for (const box of walk(boxes.root)) box.is_open = true;
  const spots = list_spots(arrange(boxes, boxes.root));
  const spot = spots.find(({ thing }) => thing.item && boxes.name(thing.item) === "layers.0: Layer");
  const read = (y, h) => list_frames(spots, { x: spot.x, y, w: spot.thing.w, h })
    .map((item) => boxes.name(item));
  assert.deepEqual(read(spot.y - 1, 60), ["model: Net", "layers.0–2: 3 × Layer"]);
  assert.deepEqual(read(spot.y + 30, 20),
    ["model: Net", "layers.0–2: 3 × Layer", "layers.0: Layer"]);
  assert.deepEqual(read(-10, 40), []);
});

test("long names are cut by their width", () => {
  assert.equal(ellipsize("short"), "short");
  assert.equal(ellipsize("x".repeat(500)).length, 42);
  assert.equal(ellipsize("😀".repeat(40), 10), `${"😀".repeat(4)}…`);
  assert.equal(ellipsize("a\nb"), "a b");
  assert.equal(ellipsize("a size beside a long name", 0), "");
});

test("the main path is one straight column, and a skip enters its sum from the side", () => {
  const make_box = (w, more = {}) => ({ w, h: 24, kind: "op", text: "", ...more });
  const [a, b, c, sum] = [make_box(60), make_box(200), make_box(90), make_box(24, { sign: "+" })];
  const make_wire = (from, ...to) => ({
    from, starts: [{ node: from, x: null }], label: "", ends: to.map((node) => ({ node, x: null })),
  });
  const wires = [make_wire(a, b, sum), make_wire(b, c), make_wire(c, sum)];
  arrange_nodes([a, b, c, sum], wires);
  const find_middle = ({ x, w }) => x + w / 2;
  assert.deepEqual([b, c, sum].map(find_middle), [a, a, a].map(find_middle));
  const [skip, , last] = wires.map(({ heads }) => heads);
  const side = wires[0].left < find_middle(sum) - sum.w ? 1 : -1;
  assert.ok(skip.includes(`v7l${7 * side} -3.5z`)); // beside the circle
  assert.ok(wires[0].path.includes(wires[0].skip)); // the way on of what is read next, too
  assert.deepEqual(wires.map((wire) => Boolean(wire.skip)), [true, false, false]);
  assert.ok(last.includes("h7l-3.5 7z")); // on its top
  assert.deepEqual(find_crossings({ nodes: [a, b, c, sum], wires }), []);
});
