// The operators as a table: to filter, to sort, to copy.

import { PHASES } from "./data.js";
import { format_bytes, format_flops, format_shape, make, shorten_dtype } from "./dom.js";
import { compare_texts, format_whole, make_grid, make_grid_bar } from "./grid.js";

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {import("./data.js").Geometry} Geometry
 * @typedef {string | number | null} OpValue
 * @typedef {ReturnType<typeof read_op>} OpRow
 * @typedef {import("./grid.js").GridColumn & {read: (op: OpRow) => OpValue,
 *   show?: (value: any) => string, tell?: (op: OpRow) => string}} OpColumn
 *   `read`: as it is sorted and copied; `show`, `tell`: its text and title where not that
 * @typedef {Record<string, string>} OpTexts by field, "" for none
 */

const op_number = (/** @type {number} */ n) => (n < 0 ? null : n);
const op_tensors_text = (/** @type {Geometry[]} */ tensors) =>
  tensors.map(({ shape, dtype }) => `${format_shape(shape)} ${shorten_dtype(dtype)}`).join(", ");
const op_tensors_title = (/** @type {Geometry[]} */ tensors) =>
  tensors.map(({ shape, dtype, device, stride, offset }) => [
    format_shape(shape), dtype, device, stride && `stride ${format_shape(stride)}`,
    offset && `offset ${offset}`,
  ].filter(Boolean).join(" ")).join("\n");
const op_nbytes = (/** @type {Geometry[]} */ tensors) =>
  tensors.reduce((sum, { nbytes }) => sum + nbytes, 0);
/** Whether all it returns shares the storage of an argument, unwritten. */
const op_is_view = (/** @type {OpRow} */ { signature: { outputs, writes, views } }) =>
  outputs.length > 0 && !writes.length && !views.includes(-1);
const op_module_name = (/** @type {import("./data.js").Module | undefined} */ module) =>
  module ? module.fqn || module.name : null;

/** @param {OpRow} op */
function op_root({ trace, module }) {
  let root = module;
  while (trace.modules[root]?.parent >= 0) root = trace.modules[root].parent;
  return op_number(trace.roots.indexOf(root));
}

/** @param {OpRow} op */
function op_nbytes_written({ signature: { inputs, outputs, writes, views } }) {
  return op_nbytes([...outputs.filter((_, i) => views[i] < 0), ...writes.map((i) => inputs[i])]);
}

/** The columns of Trace.to_pandas(). @type {OpColumn[]} */
export const OP_COLUMNS = [
  { key: "index", width: 64, kind: "mm-number", read: (op) => op.index },
  { key: "op", width: 190, read: (op) => op.signature.op },
  { key: "inputs", width: 180, kind: "mm-code",
    read: (op) => op_tensors_text(op.signature.inputs),
    tell: (op) => op_tensors_title(op.signature.inputs) },
  { key: "outputs", width: 130, kind: "mm-code",
    read: (op) => op_tensors_text(op.signature.outputs),
    tell: (op) => op_tensors_title(op.signature.outputs) },
  { key: "arguments", width: 140, kind: "mm-code", read: (op) => op.signature.args },
  { key: "module", width: 180, read: (op) => op_module_name(op.trace.modules[op.module]) },
  { key: "root", width: 54, kind: "mm-number", read: op_root },
  { key: "module_call", width: 114, kind: "mm-number", read: (op) => op_number(op.call) },
  { key: "phase", width: 76, read: (op) => PHASES[op.place.phase] },
  { key: "line", width: 52, kind: "mm-number", read: (op) => op.place.line || null },
  { key: "function", width: 170, read: (op) => op.place.function || null },
  { key: "forward", width: 76, kind: "mm-number", read: (op) => op_number(op.forward) },
  { key: "flops", width: 112, kind: "mm-number", show: format_flops,
    read: (op) => op_number(op.signature.flops) },
  { key: "nbytes_read", width: 116, kind: "mm-number", show: format_bytes,
    read: (op) => (op_is_view(op) ? 0 : op_nbytes(op.signature.inputs)) },
  { key: "nbytes_written", width: 136, kind: "mm-number", show: format_bytes,
    read: op_nbytes_written },
  { key: "views", width: 60, help: "for each output the input whose storage it shares",
    read: ({ signature: { views } }) => (views.some((i) => i >= 0)
      ? views.map((i) => op_number(i) ?? "-").join(" ") : null) },
  { key: "writes", width: 68, help: "inputs that are written",
    read: (op) => op.signature.writes.join(" ") || null },
  { key: "position", width: 150, show: (position) => position.replace(/^.*[\\/]/s, ""),
    read: ({ place }) => (place.file ? `${place.file}:${place.start}` : null) },
];

/** @param {TraceView} trace @param {number} index */
export function read_op(trace, index) {
  return {
    trace, index, signature: trace.signatures[trace.op_signature[index]],
    place: trace.places[trace.op_place[index]], module: trace.op_module[index],
    call: trace.op_call[index], forward: trace.op_forward[index],
  };
}

/**
 * Return what is searched, in lower case, once for all operators that share it.
 * @param {TraceView} trace @returns {OpTexts[][]} of signatures, places, modules
 */
export function index_op_texts({ signatures, places, modules }) {
  return [
    signatures.map((signature) => {
      const op = signature.op.toLowerCase();
      const shapes = op_tensors_text([...signature.inputs, ...signature.outputs]);
      return { op, "": `${op} ${shapes.toLowerCase()}` };
    }),
    places.map((place) => {
      const [phase, line] = [PHASES[place.phase], `${place.line || ""}`];
      return { phase, line, "": `${place.function.toLowerCase()} ${phase} ${line}` };
    }),
    modules.map((module) => {
      const name = op_module_name(module)?.toLowerCase() ?? "";
      return { module: name, "": name };
    }),
  ];
}

/**
 * Return the test of one word of a filter.
 * @param {string} word @returns {(texts: OpTexts) => boolean}
 */
function make_op_test(word) {
  const [, field = "", part = ""] = /^(?:(op|module|phase|line):)?(.*)$/s.exec(word) ?? [];
  // Of modules, `layers.1` is not found in `layers.10`.
  const whole = new RegExp(part.replace(/\W/g, "\\$&") + (/\d$/.test(part) ? "(?!\\d)" : ""));
  return ({ [field]: text = "" }) => part === text
    || (field !== "line" && text.includes(part) && (field !== "module" || whole.test(text)));
}

/**
 * Return the operators of which each word of a filter is found in the op, the shapes, the
 * function, the phase, the line or the module; `op:`, `phase:`, `line:`, `module:` say where.
 * @param {TraceView} trace @param {OpTexts[][]} texts @param {string} filter
 */
export function filter_ops(trace, texts, filter) {
  /** @type {Int32Array} */
  let rows = Int32Array.from({ length: trace.n_ops }, (_, i) => i);
  for (const word of filter.toLowerCase().split(/\s+/).filter(Boolean)) {
    const test = make_op_test(word);
    const [signatures, places, modules] = texts.map((table) => table.map(test));
    rows = rows.filter((i) => signatures[trace.op_signature[i]] || places[trace.op_place[i]]
      || modules[trace.op_module[i]]);
  }
  return rows;
}

/**
 * Return the operators in the order of a column, where equal as before; absent ones last.
 * @param {TraceView} trace @param {Int32Array} rows @param {import("./grid.js").GridSort} by
 */
export function sort_ops(trace, rows, by) {
  const column = OP_COLUMNS.find(({ key }) => key === by?.key);
  if (!by || !column) return rows;
  const values = Array.from(rows, (i) => column.read(read_op(trace, i)));
  const distinct = [...new Set(values)].sort((a, b) => {
    if (a === null || b === null) return a === b ? 0 : by.direction * (a === null ? 1 : -1);
    return typeof a === "number" ? a - Number(b) : compare_texts(a, `${b}`);
  });
  if (by.direction < 0) distinct.reverse();
  const ranks = new Map(distinct.map((value, rank) => [value, rank]));
  // Numbers sort by themselves much faster than by a function.
  const keys = Float64Array.from(values, (value, at) => (ranks.get(value) ?? 0) * rows.length + at);
  return Int32Array.from(keys.sort(), (key) => rows[key % rows.length]);
}

/** Rows as CSV, quoted as RFC 4180 has it. @param {OpValue[][]} rows */
export function format_csv(rows) {
  const quote = (/** @type {OpValue} */ value) =>
    (/[",\r\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value ?? ""}`);
  return rows.map((row) => `${row.map(quote).join(",")}\r\n`).join("");
}

/** Copy, or save where the browser lets nothing be copied. @param {string} csv */
async function copy_csv(csv) {
  try {
    await navigator.clipboard.writeText(csv);
    return "copied";
  } catch {
    const href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    make("a", { href, download: "operators.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
    return "saved as operators.csv";
  }
}

/**
 * Return which operators a selection is about.
 * @param {TraceView} trace @param {import("./selection.js").Selected | null} selected
 * @returns {(i: number) => boolean}
 */
export function make_op_mark(trace, selected) {
  const { kind = "", index = -1 } = selected ?? {};
  if (kind === "op") return (i) => i === index;
  if (kind === "line") return (i) => trace.places[trace.op_place[i]].line === index;
  // Modules are numbered parents first: what is below one follows it.
  let last = index;
  while (trace.modules[last]?.children.length) last = trace.modules[last].children.at(-1) ?? last;
  return (i) => kind === "module" && trace.op_module[i] >= index && trace.op_module[i] <= last;
}

/**
 * Show the operators.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("./selection.js").Selection} selection
 */
export function mount_operators(element, trace, selection,) {
  if (!trace.n_ops) {
    element.append(make("p", {}, "No operator ran in this trace."));
    return;
  }
  const view = {};
  const total = format_whole(trace.n_ops);
  /** @type {OpTexts[][] | null} */
  let texts = null;
  /** @type {import("./grid.js").GridSort} */
  let sorted = null;
  let rows = filter_ops(trace, [], "");
  let is_marked = make_op_mark(trace, null);
  const show = () => {
    if (input.value) texts ??= index_op_texts(trace);
    rows = sort_ops(trace, filter_ops(trace, texts ?? [], input.value), sorted);
    status.textContent = `${format_whole(rows.length)} of ${total}`;
    grid.show(rows.length);
  };
  const hint = "filter, as in mm phase:backward line:7 module:layers.0";
  const { input, status, bar } = make_grid_bar(hint, show);
  const copy = make("button", { type: "button" }, "Copy as CSV");
  copy.addEventListener("click", async () => {
    const cells = Array.from(rows, (i) => OP_COLUMNS.map(({ read }) => read(read_op(trace, i))));
    status.textContent = await copy_csv(format_csv([OP_COLUMNS.map(({ key }) => key), ...cells]));
  });
  const grid = make_grid({
    label: "Operators", columns: OP_COLUMNS,
    read: (row) => {
      const op = read_op(trace, rows[row]);
      return OP_COLUMNS.map(({ read, show: format = String, tell }) => {
        const value = read(op);
        return [value === null ? "" : format(value), tell ? tell(op) : `${value ?? ""}`];
      });
    },
    is_marked: (row) => is_marked(rows[row]),
    choose: (row) => {
      is_marked = make_op_mark(trace, { kind: "op", index: rows[row] });
      grid.show(rows.length);
      selection.select({ kind: "op", index: rows[row] }, view);
    },
    leave: () => selection.select(null),
    sort: (by) => {
      sorted = by;
      show();
    },
  });
  selection.subscribe((selected, source) => {
    if (source === view) return;
    is_marked = make_op_mark(trace, selected);
    if (selected && input.value && !rows.some(is_marked)) {
      input.value = "";
      show();
    } else grid.show(rows.length);
    const first = rows.findIndex(is_marked);
    if (first >= 0) grid.go(first);
  });
  bar.append(copy);
  element.append(bar, grid.element);
  show();
}
