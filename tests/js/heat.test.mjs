import assert from "node:assert/strict";
import { test } from "node:test";

import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { Heat, list_measures } from "../../meta_magic/view/static/flow/heat.js";
import { arrange } from "../../meta_magic/view/static/flow/layout.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { Times } from "../../meta_magic/view/static/times.js";
import { make_layers, make_trace } from "./flow_payloads.mjs";

const NBYTES = 24; // of a tensor (2, 3) of float32
const build = (trace) => {
  const values = follow_values(trace);
  return [values, new Boxes(values, choose_phase(trace))];
};
const names = (values) => list_measures(values, new Times(values.trace)).map(([key]) => key);

test("only that is offered of which there are numbers", () => {
  const trace = make_trace([{ op: "aten.t.default", reads: ["x"], makes: ["y"], is_view: true }]);
  assert.deepEqual(names(follow_values(trace)), []);
  trace.signatures[0].flops = 5;
  assert.deepEqual(names(follow_values(trace)), ["flops"]);
});

test("a box takes what all in it take", () => {
  const trace = make_layers(4);
  for (const signature of trace.signatures) signature.flops = 10;
  const [values, boxes] = build(trace);
  const heat = new Heat(values, "flops");
  assert.equal(heat.count(boxes.root), 10 * boxes.root.n_ops);
  assert.equal(heat.format(boxes.root.items[0]), "10 FLOPs");
});

test("a view and a tensor written in place are no new bytes", () => {
  const [values, boxes] = build(make_trace([
    { op: "aten.ones.default", makes: ["a"] },
    { op: "aten.t.default", reads: ["a"], makes: ["b"], is_view: true },
    { op: "aten.add_.Tensor", reads: ["a"], makes: ["a"], writes: [0] },
  ]));
  const heat = new Heat(values, "made");
  assert.deepEqual([boxes.root, ...boxes.root.items].map((item) => heat.count(item)),
    [NBYTES, NBYTES, 0, 0]);
});

test("a parameter that is read twice is counted once", () => {
  const [values, boxes] = build(make_trace([
    { op: "aten.mm.default", reads: ["x", "w"], makes: ["y"] },
    { op: "aten.mm.default", reads: ["y", "w"], makes: ["z"] },
  ], [{ name: "m" }], [], { parameters: ["w"] }));
  const heat = new Heat(values, "held");
  assert.deepEqual([boxes.root, ...boxes.root.items].map((item) => heat.count(item)),
    [NBYTES, NBYTES, NBYTES]);
});

test("the hottest that is shown has the deepest colour, and nothing has none", () => {
  const trace = make_trace([1, 2, 3].map((i) => ({ op: "aten.mm.default", makes: [`y${i}`] })));
  [40, 20, -1].forEach((flops, i) => { trace.signatures[i].flops = flops; });
  const [values, boxes] = build(trace);
  const heat = new Heat(values, "flops");
  heat.scale(boxes.root.items);
  assert.deepEqual(boxes.root.items.map((item) => heat.mix(item)), [60, 30, 0]);
  assert.equal(heat.most, 40);
});

test("a closed box shows what it takes by the measure that is chosen", () => {
  const trace = make_layers(2);
  for (const signature of trace.signatures) signature.flops = 1000;
  const [values, boxes] = build(trace);
  boxes.heat = new Heat(values, "flops");
  const node = arrange(boxes, boxes.root).nodes.find(({ kind }) => kind === "closed");
  assert.match(node.detail, /^\d+\.0 KFLOPs · \d+ ops$/);
});
