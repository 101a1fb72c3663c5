import assert from "node:assert/strict";
import { test } from "node:test";
import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { find_family } from "../../meta_magic/view/static/flow/families.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";
import { make_trace } from "./flow_payloads.mjs";

/** The families of the modules of a class each, which run these operators. */
function find_families(ops_by_class) {
  const modules = Object.keys(ops_by_class).map((cls, i) => ({ name: `m${i}`, cls }));
  const ops = Object.values(ops_by_class).flatMap((names, module) => names.map((op, i) =>
    ({ op, reads: [`x${module}${i}`], makes: [`x${module}${i + 1}`], module, call: module })));
  let first = 0;
  const calls = Object.values(ops_by_class).map((names, module) =>
    ({ module, first, end: (first += names.length) }));
  const trace = make_trace(ops, modules, calls);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  return boxes.root.items.map((item) => find_family(boxes, item));
}

test("a module has the family of its operators", () => {
  assert.deepEqual(find_families({
    Conv1D: ["aten.view.default", "aten.addmm.default"], Conv2d: ["aten.convolution.default"],
    BatchNorm2d: ["aten.native_batch_norm.default"], Mine: ["aten.gelu.default", "aten.mul.Tensor"],
    MaxPool2d: ["aten.max_pool2d_with_indices.default"], Flatten: ["aten.view.default"],
    Dropout: ["aten.native_dropout.default"], Criterion: ["aten._log_softmax.default", "aten.nll_loss_forward.default"],
  }), ["linear", "convolution", "norm", "activation", "pooling", "reshape", "", "loss"]);
});

test("a class says what its operators do not", () => {
  const ops = ["aten.pow.Tensor_Scalar", "aten.mean.dim", "aten.mul.Tensor"];
  assert.deepEqual(find_families({
    LlamaRMSNorm: ops, RotaryEmbedding: ops, MambaMixer: ["aten.mul.Tensor", "aten.mm.default"], Scale: ops,
  }), ["norm", "embedding", "recurrent", ""]);
});

/** The family of a module that holds one module for each operator. */
function find_outer(cls, ...names) {
  const ops = names.map((op, i) => ({ op, reads: [`x${i}`], makes: [`x${i + 1}`], module: i + 1, call: i + 1 }));
  const inner = names.map((_, i) => ({ name: `m${i}`, parent: 0, cls: `Part${i}` }));
  const calls = names.map((_, i) => ({ module: i + 1, parent: 0, first: i, end: i + 1 }));
  const trace = make_trace(ops, [{ name: "model", cls }, ...inner],
    [{ module: 0, first: 0, end: names.length }, ...calls]);
  const boxes = new Boxes(follow_values(trace), choose_phase(trace));
  return find_family(boxes, boxes.root.items[0]);
}

test("what holds products of one family has it, and a mixture is a container", () => {
  assert.equal(find_outer("MLP", "aten.mm.default", "aten.gelu.default", "aten.mm.default"), "linear");
  assert.equal(find_outer("Net", "aten.convolution.default", "aten.mm.default"), "container");
  assert.equal(find_outer("Steps", "aten.gelu.default", "aten.view.default"), "container");
  assert.equal(find_outer("SelfAttention", "aten.mm.default", "aten.gelu.default"), "attention");
});
