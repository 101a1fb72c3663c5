import assert from "node:assert/strict";
import { test } from "node:test";
import { judge, read_numbers } from "../../meta_magic/view/static/lesson.js";

const SHAPE = {
  kind: "shape", text: "", answer: [2, 3, 5], options: [], right: "",
  whys: { rank: "R.", order: "O.", size: "S." },
};
const NUMBER = { kind: "number", text: "", answer: 4, options: [], right: "", whys: { 3: "three", other: "else" } };

test("an answer is read in each form that Python or a person writes", () => {
  for (const text of ["(2, 3)", "2, 3", "2 3", "2x3", "2 × 3", "(2,3,)", "[2,3]", "torch.Size([2, 3])"]) {
    assert.deepEqual(read_numbers(text), [2, 3], text);
  }
  assert.deepEqual(read_numbers("(8*16, 4)"), [128, 4]);
  assert.deepEqual(read_numbers("8 * 16"), [128]);
  assert.deepEqual(read_numbers("()"), []);
  assert.deepEqual(read_numbers("(4,)"), [4]);
  for (const text of ["", "B, T", "two", "x", ",", "2;3", "<img>"]) assert.equal(read_numbers(text), null, text);
});

test("a wrong shape is told by its kind", () => {
  const say = (text) => judge(SHAPE, text).said;
  assert.match(say("2, 3"), /3 dimensions, not 2\. R\./);
  assert.match(say("3, 2, 5"), /sizes are right, their order is not\. O\./);
  assert.match(say("2, 3, 4"), /Dimension 2 has another size\. S\./);
  assert.ok(judge(SHAPE, "torch.Size([2, 3, 5])").is_right);
  assert.equal(judge(SHAPE, "no idea"), null);
});

test("a wrong number has the sentence of its own, else a general one", () => {
  assert.match(judge(NUMBER, "3").said, /three/);
  assert.match(judge(NUMBER, "7").said, /else/);
  assert.ok(judge(NUMBER, "2*2").is_right);
  assert.equal(judge(NUMBER, "1, 2"), null);
});
