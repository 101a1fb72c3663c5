// For each recorded call with a picture, which numbers of its inputs each output element reads.
// `first`: of a window after others, which of their first input. Standard input: payloads of traces, one JSON a line. Output: one JSON a line.

import { createInterface } from "node:readline";
import { TraceView } from "../../meta_magic/view/static/data.js";
import { make_call } from "../../meta_magic/view/static/pictures/call.js";
import { read_inputs, to_index, to_number } from "../../meta_magic/view/static/pictures/reach.js";

const MOST_ELEMENTS = 2000; // of an output that is compared

const count = (shape) => shape.reduce((a, b) => a * b, 1);

/** All combinations of the indices in each dimension, as numbers. */
function to_numbers(found, shape) {
  let indices = [[]];
  for (const some of found) indices = indices.flatMap((index) => some.map((i) => [...index, i]));
  return indices.map((index) => to_number(index, shape));
}

/** What an element of windows comes from through all of them, as numbers of the first input's elements. */
function read_first(call, found) {
  const [read] = read_inputs(call, found);
  if (!read) return [];
  return call.before ? read_first(call.before, read) : to_numbers(read, call.inputs[0].geometry.shape);
}

for await (const line of createInterface({ input: process.stdin })) {
  const trace = new TraceView(JSON.parse(line));
  const calls = [];
  for (let op = 0; op < trace.n_ops; op += 1) {
    const call = make_call(trace, op);
    if (!call) continue;
    const is_large = call.outputs.some(({ geometry: { shape } }) => count(shape) > MOST_ELEMENTS);
    const read = is_large ? [] : call.outputs.map((output) => [output.geometry.shape, { ...call, outputs: [output] }]).map(([shape, one]) =>
      Array.from({ length: count(shape) }, (_, n) => read_inputs(one, to_index(n, shape).map((i) => [i]))
        .map((found, i) => found && to_numbers(found, call.inputs[i].geometry.shape))));
    const { shape } = call.outputs[0].geometry;
    const first = call.before && !is_large
      && Array.from({ length: count(shape) }, (_, n) => read_first(call, to_index(n, shape).map((i) => [i])));
    calls.push({ op, kind: call.picture.kind, read, first });
  }
  process.stdout.write(`${JSON.stringify(calls)}\n`);
}
