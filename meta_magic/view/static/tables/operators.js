// The operators as a table: to filter, to sort, to copy.

import { find_live } from "../alive.js";
import { PHASES } from "../data.js";
import { make_device_select } from "../devices.js";
import { list_sizes, make, shorten_dtype, shorten_op } from "../dom.js";
import { ESTIMATE } from "../times.js";
import { mount_grid } from "./grid.js";
import { list_tensors, make_filter, add_sent } from "./rows.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {import("../times.js").Times} Times
 */

const FORWARD = PHASES.indexOf("forward");

const hide_none = (/** @type {number} */ n) => (n < 0 ? "" : n);

/**
 * Return what is known of an operator without being sent for its column.
 * @param {TraceView} trace @param {number} i @param {Times} [times] of its share, if that is wanted
 */
function read_held(trace, i, times) {
  const { op, args, inputs, outputs, writes, views, flops } = trace.signature(i);
  const [nbytes_read, nbytes_written] = [trace.work.read, trace.work.written].map((nbytes) => nbytes[trace.op_signature[i]]);
  const nbytes = nbytes_read + nbytes_written;
  const site = trace.site(i);
  const module = trace.modules[trace.op_module[i]];
  return {
    index: i, op, inputs: list_tensors(inputs), outputs: list_tensors(outputs), arguments: args,
    module: module?.fqn || module?.name || "",
    // Modules are numbered root by root.
    root: hide_none(trace.roots.findLastIndex((root) => root <= trace.op_module[i])),
    module_call: hide_none(trace.op_call[i]),
    phase: PHASES[site.phase], line: site.line || "", function: site.function,
    forward: hide_none(trace.op_forward[i]), flops: hide_none(flops),
    time: times?.has(i) && times.of_op(i) / times.total || "",
    // Worked out for all operators when it is first asked for.
    get alive() { return find_live(trace).totals[i]; },
    nbytes_read, nbytes_written, intensity: flops > 0 && nbytes ? flops / nbytes : "",
    views: views.filter((input) => input >= 0).join(" "), writes: writes.join(" "),
    position: site.file && `${site.file}:${site.start}`,
    ...trace.notes_of_op[i] ?? trace.no_notes,
  };
}

/**
 * Return the columns of Trace.to_pandas() of an operator.
 * @param {TraceView} trace @param {number} i @param {Times} [times]
 */
export const read_op = (trace, i, times) => add_sent(
  trace.columns.ops, read_held(trace, i, times), ({ wire, values }) => values[wire === "call" ? i : trace.op_signature[i]]);

/**
 * Return what of an operator is searched, in small letters.
 * @param {import("./rows.js").GridValues} values
 */
export const describe_op = (values) => [
  `op:${shorten_op(String(values.op))}`, values.op, values.inputs, values.outputs, values.function,
  `phase:${values.phase}`, `line:${values.line}`, `module:${values.module}`,
  `place:${values.place}`,
].join(" ").toLowerCase();

/** The numbers of what an operator reads and makes. @param {TraceView} trace @param {number} i */
const list_op_tensors = ({ op_tensors, op_start }, i) =>
  op_tensors.subarray(op_start[i], op_start[i + 1]);

/**
 * Whether a selection is about an operator.
 * @param {TraceView} trace @param {import("../selection.js").Selected | null} selected
 * @param {number} i
 */
export function is_op_selected(trace, selected, i) {
  const { kind, index } = selected ?? {};
  if (kind === "op") return i === index;
  if (kind === "line") return trace.site(i).line === index;
  if (kind === "tensor") return list_op_tensors(trace, i).includes(index);
  if (kind !== "module") return false;
  let module = trace.op_module[i];
  while (module > index) module = trace.modules[module].parent;
  return module === index;
}

/**
 * Where the next stretch of a phase begins, after the last one the first; or -1.
 * @param {number[]} phases of the rows @param {number} phase @param {number} active a row
 */
export function find_stretch(phases, phase, active) {
  const is_start = (i) => phases[i] === phase && phases[i - 1] !== phase;
  const starts = [...phases.keys()].filter(is_start);
  return starts.find((i) => i > active) ?? starts[0] ?? -1;
}

/** The rank of an operator by its share of the time. */
function describe_rank(/** @type {Times} */ { each, total, device }, share) {
  const n_longer = each.filter((seconds) => seconds > total * share * (1 + 1e-9)).length;
  return `rank ${n_longer + 1} of ${each.length} different calls by time on ${device.title}, ${ESTIMATE}`;
}

/** Tensors in a cell, as `list_tensors` has them; `ask` is called with a size that is clicked. */
const make_tensors = (/** @type {import("../data.js").TensorSeen[]} */ tensors, ask) =>
  tensors.flatMap(({ id, geometry: { shape, dtype } }, i) => [i ? ", " : "", ...list_sizes(shape, (size, dim) =>
    make("span", {
      class: "mm-dim",
      onclick: (event) => {
        event.stopPropagation();
        ask({ kind: "tensor", index: id, dim });
      },
    }, `${size}`)), ` ${shorten_dtype(dtype)}`]);

/**
 * Show the operators.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("../selection.js").Selection} selection @param {object} settings
 * @param {Times} times
 */
export function mount_operators(element, trace, selection, settings, times) {
  const all = [...Array(trace.n_ops).keys()];
  const texts = [];
  const read = (i) => read_op(trace, i, times);
  const phase_of = (i) => trace.site(i).phase;
  const make_side = (side) => (values) => make_tensors(trace.op(values.index)[side], (selected) =>
    selection.select(selected, grid?.element));
  const grid = mount_grid(element, selection, {
    label: "Operators", hint: "filter, as in op:mm line:7", columns: trace.columns.ops, read,
    titles: { time: (share) => describe_rank(times, share) },
    beside: { time: make_device_select(times) },
    makes: { inputs: make_side("inputs"), outputs: make_side("outputs") },
    list: (filter, sort) => {
      const is_found = make_filter(filter);
      return sort(filter ? all.filter((i) => is_found(texts[i] ??= describe_op(read(i)))) : all);
    },
    follows: (selected) => Boolean(selected) && selected.kind !== "parameter",
    is_selected: (selected, i) => is_op_selected(trace, selected, i),
    is_bad: trace.is_raised,
    is_main: (i) => phase_of(i) === FORWARD,
    pick: (index) => ({ kind: "op", index }),
  });
  if (!grid) return;
  times.subscribe(grid.renew);
  add_phases(grid, phase_of);
}

/**
 * Buttons that lead to each phase; the table begins at the forward.
 * @param {import("./grid.js").Grid} grid @param {(i: number) => number} phase_of
 */
function add_phases(grid, phase_of) {
  const go = (phase) => {
    const at = find_stretch(grid.rows.map(phase_of), phase, grid.active);
    if (at >= 0) grid.go_to_top(at);
  };
  const present = new Set(grid.rows.map(phase_of));
  if (present.size < 2) return;
  const buttons = PHASES.flatMap((name, phase) => (present.has(phase) ? [make("button", {
    type: "button", onclick: () => go(phase),
    title: `to the ${name} phase; again: to the next one`,
  }, name)] : []));
  grid.bar.insertBefore(make("span", {
    class: "mm-phases", role: "group", "aria-label": "Phases",
  }, ...buttons), grid.status);
  go(FORWARD);
}
