// The operators as a table: to filter, to sort, to copy.

import { PHASES } from "../data.js";
import { shorten_op } from "../dom.js";
import { mount_grid } from "./grid.js";
import { list_tensors, make_filter, add_sent } from "./rows.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 */

const hide_none = (/** @type {number} */ n) => (n < 0 ? "" : n);

/**
 * Return what is known of an operator without being sent for its column.
 * @param {TraceView} trace @param {number} i
 */
function read_held(trace, i) {
  const { op, args, inputs, outputs, writes, views, flops } = trace.signature(i);
  const place = trace.place(i);
  const module = trace.modules[trace.op_module[i]];
  return {
    index: i, op, inputs: list_tensors(inputs), outputs: list_tensors(outputs), arguments: args,
    module: module?.fqn || module?.name || "",
    // Modules are numbered root by root.
    root: hide_none(trace.roots.findLastIndex((root) => root <= trace.op_module[i])),
    module_call: hide_none(trace.op_call[i]),
    phase: PHASES[place.phase], line: place.line || "", function: place.function,
    forward: hide_none(trace.op_forward[i]), flops: hide_none(flops),
    views: views.filter((input) => input >= 0).join(" "), writes: writes.join(" "),
    position: place.file && `${place.file}:${place.start}`,
    ...trace.remarks_of_op[i] ?? trace.no_remarks,
  };
}

/**
 * Return the columns of Trace.to_pandas() of an operator.
 * @param {TraceView} trace @param {number} i
 */
export const read_op = (trace, i) => add_sent(
  trace.columns.ops, read_held(trace, i), ({ wire, values }) => values[wire === "call" ? i : trace.op_signature[i]]);

/**
 * Return what of an operator is searched, in small letters.
 * @param {import("./rows.js").GridValues} values
 */
export const describe_op = (values) => [
  `op:${shorten_op(String(values.op))}`, values.op, values.inputs, values.outputs, values.function,
  `phase:${values.phase}`, `line:${values.line}`, `module:${values.module}`,
  `place:${values.place}`,
].join(" ").toLowerCase();

/**
 * Whether a selection is about an operator.
 * @param {TraceView} trace @param {import("../selection.js").Selected | null} selected
 * @param {number} i
 */
export function is_op_selected(trace, selected, i) {
  const { kind, index } = selected ?? {};
  if (kind === "op") return i === index;
  if (kind === "line") return trace.place(i).line === index;
  let module = trace.op_module[i];
  while (module > index) module = trace.modules[module].parent;
  return module === index;
}

/**
 * Show the operators.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("../selection.js").Selection} selection
 */
export function mount_operators(element, trace, selection) {
  const all = [...Array(trace.n_ops).keys()];
  const texts = [];
  const read = (i) => read_op(trace, i);
  mount_grid(element, selection, {
    label: "Operators", hint: "filter, as in op:mm line:7", columns: trace.columns.ops, read,
    list: (filter, sort) => {
      const is_found = make_filter(filter);
      return sort(filter ? all.filter((i) => is_found(texts[i] ??= describe_op(read(i)))) : all);
    },
    follows: Boolean,
    is_selected: (selected, i) => is_op_selected(trace, selected, i),
    is_bad: trace.is_raised,
    pick: (index) => ({ kind: "op", index }),
  });
}
