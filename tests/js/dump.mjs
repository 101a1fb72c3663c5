// Print what the report's JavaScript reads of a payload, as JSON.

import fs from "node:fs";
import { decode, PHASES } from "../../meta_magic/view/static/data.js";
import { read_module_row } from "../../meta_magic/view/static/tables/modules.js";
import { read_op } from "../../meta_magic/view/static/tables/operators.js";
import { Times } from "../../meta_magic/view/static/times.js";

const trace = await decode(fs.readFileSync(process.argv[2]));
const module_of = (index) => trace.modules[index]?.fqn ?? null;

function root_of(index) {
  for (let i = index; i >= 0; i = trace.modules[i].parent) {
    if (trace.modules[i].parent < 0) return trace.roots.indexOf(i);
  }
  return null;
}

const ops = Array.from({ length: trace.n_ops }, (_, i) => {
  const op = trace.op(i);
  return {
    op: op.signature.op, args: op.signature.args, writes: op.signature.writes,
    views: op.signature.views, flops: op.signature.flops, inputs: op.inputs,
    outputs: op.outputs, line: op.site.line, phase: PHASES[op.site.phase],
    function: op.site.function, file: op.site.file, start: op.site.start,
    column: op.site.column, module: module_of(op.module), root: root_of(op.module),
    call: op.call, forward: op.forward,
  };
});
const modules = trace.modules.map((m) => ({ ...m, runs: trace.runs(m.children).map((r) => r.length) }));
const times = new Times(trace);
const rows = ops.map((_, i) => read_op(trace, i, times));
const module_rows = modules.map((_, i) => read_module_row(trace, { modules: [i] }, 1, times));
const { failure, headline, error, error_line, source, notes, nbytes_by_dtype, roots, calls } = trace;
console.log(JSON.stringify({
  ops, modules, rows, module_rows, failure, headline, error, error_line, source, notes, nbytes_by_dtype, roots, calls,
}));
