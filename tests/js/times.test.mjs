import assert from "node:assert/strict";
import { test } from "node:test";
import { count_alive, find_live } from "../../meta_magic/view/static/alive.js";
import { format_seconds } from "../../meta_magic/view/static/dom.js";
import { count_seconds, waits_for_memory } from "../../meta_magic/view/static/rooflines.js";
import { Times } from "../../meta_magic/view/static/times.js";
import { DEVICE } from "./payloads.mjs";
import { make_trace } from "./table_payloads.mjs";

const OTHER = { ...DEVICE, name: "other", bandwidth: 20, vectors: null };
const work = (own) => ({ products: 0, elementwise: 0, nbytes: 0, kind: -1, ...own });

/** Two modules in one; 60 bytes moved in the first, 30 in the second and 10 outside. */
const make_moves = () => make_trace({
  modules: [{ name: "net" }, { name: "a", parent: 0 }, { name: "b", parent: 0 }],
  ops: [{ module: 1, moves: [20, 40] }, { module: 2, moves: [30, 0] }, { moves: [0, 10] }],
});

test("a call takes the longer of its products, its elements and its bytes", () => {
  assert.equal(count_seconds(work({ products: 400, kind: 0, nbytes: 30 }), DEVICE), 4);
  assert.equal(count_seconds(work({ elementwise: 250, nbytes: 30 }), DEVICE), 5);
  assert.equal(count_seconds(work({ elementwise: 100, nbytes: 30 }), DEVICE), 3);
});

test("elements cost nothing where no peak of theirs is known", () => {
  assert.equal(count_seconds(work({ elementwise: 1e9, nbytes: 30 }), OTHER), 1.5);
});

test("a call waits for the memory if that takes as long or longer", () => {
  const [short, equal] = [40, 41].map((nbytes) => work({ products: 400, kind: 0, nbytes }));
  assert.deepEqual([short, equal].map((one) => waits_for_memory(one, DEVICE)), [true, true]);
  assert.equal(waits_for_memory(work({ products: 401, kind: 0, nbytes: 40 }), DEVICE), false);
});

test("times add up by module, with all in it", () => {
  const times = new Times(make_moves());
  assert.deepEqual([...times.by_module], [9, 6, 3]);
  assert.deepEqual([times.total, times.in_modules], [10, 9]);
});

test("what initializes is not counted", () => {
  const trace = make_moves();
  trace.call_sites[0].phase = 0;
  const times = new Times(trace);
  assert.deepEqual([times.total, times.in_modules, times.of_op(0)], [4, 3, 6]);
});

test("another device reaches all listeners, with other times", () => {
  const times = new Times(make_moves());
  const heard = [];
  times.subscribe(() => heard.push(times.total));
  times.choose(OTHER);
  assert.deepEqual(heard, [5]);
});

test("what raised takes no time", () => {
  const trace = make_moves();
  trace.notes_of_op = [];
  trace.notes_of_op[2] = { raised: "RuntimeError" };
  assert.equal(new Times(trace).total, 9);
});

test("seconds have the unit in which they are at least one", () => {
  assert.deepEqual([12, 1, 0.0123, 1e-3, 4.5e-6, 3e-9, 2e-12, 0].map(format_seconds),
    ["12 s", "1 s", "12.3 ms", "1 ms", "4.5 µs", "3 ns", "0.002 ns", "0 ns"]);
});

test("what is alive is worked out once", () => {
  const trace = make_trace({ ops: [{}, {}, {}] });
  trace.memory = {
    categories: ["temporary"], places: ["cpu"], sizes: [4, 6], storage: [0, 1, 0], start: [0, 1, 1],
    length: [2, 1, 0], nbytes: [0, 1, 0], category: [0, 0, 0], place: [0, 0, 0],
  };
  assert.deepEqual([...find_live(trace).totals], [4, 10, 4]);
  assert.equal(find_live(trace), find_live(trace));
  assert.deepEqual([0, 1, 2].map((op) => count_alive(trace, 1, op)), [0, 6, 4]);
  assert.equal(count_alive(trace, 7, 0), 0);
});
