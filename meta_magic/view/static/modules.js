// The module trees as a table: what is alike is folded, what is asked for is opened.

import { format_bytes, format_count, format_flops } from "./dom.js";
import { format_shape, make, shorten_dtype } from "./dom.js";
import { compare_texts, format_whole, make_grid, make_grid_bar } from "./grid.js";

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {import("./grid.js").GridCell} GridCell
 * @typedef {{depth: number, toggled: Set<string>, full: Set<number>, kept: Int32Array,
 *   by: import("./grid.js").GridSort}} ModuleFolds
 *   `depth`: levels open at first; `toggled`: keys of rows that are not as at first;
 *   `full`: first modules of the runs shown in full; `kept`: see keep_modules
 * @typedef {{key: string, kind: "module" | "run" | "rest", modules: number[], level: number,
 *   parent: number, is_open: boolean | null}} ModuleRow
 *   `rest`: stands for all but the first of a run
 */

const MODULE_MANY = 200; // roots, from which on they are closed at first
/** @type {import("./grid.js").GridColumn[]} */
const MODULE_COLUMNS = [
  { key: "name", width: 180 },
  { key: "class", width: 150 },
  { key: "parameters", width: 118, kind: "mm-number" },
  { key: "bytes", width: 80, kind: "mm-number" },
  { key: "input", width: 112, kind: "mm-code", is_fixed: true, help: "of the first call" },
  { key: "output", width: 112, kind: "mm-code", is_fixed: true, help: "of the first call" },
  { key: "FLOPs", width: 76, kind: "mm-number", help: "share of all in the trace" },
  { key: "marks", width: 120, is_fixed: true, help: "ties, buffers, and the like" },
];
/** @type {Record<string, "name" | "class_name" | "n_params" | "nbytes" | "flops">} */
const MODULE_FIELDS = {
  name: "name", class: "class_name", parameters: "n_params", bytes: "nbytes", FLOPs: "flops",
};

/**
 * Return for each module how many match a filter, of it and those below.
 * @param {TraceView} trace @param {string} filter part of a path or class, in any case
 */
export function keep_modules({ modules }, filter) {
  const part = filter.trim().toLowerCase();
  const kept = new Int32Array(modules.length).fill(part ? 0 : 1);
  for (let i = modules.length - 1; part && i >= 0; i -= 1) {
    const { fqn, name, class_name, parent } = modules[i];
    if (`${fqn || name} ${class_name}`.toLowerCase().includes(part)) kept[i] += 1;
    if (parent >= 0) kept[parent] += kept[i];
  }
  return kept;
}

/** @param {TraceView} trace @param {number[][]} runs @param {import("./grid.js").GridSort} by */
function sort_module_runs({ modules }, runs, by) {
  if (!by) return runs;
  const field = MODULE_FIELDS[by.key];
  const is_text = field === "name" || field === "class_name";
  const total = (/** @type {number[]} */ run) =>
    run.reduce((sum, i) => sum + Number(modules[i][field]), 0);
  return [...runs].sort((a, b) => by.direction * (is_text
    ? compare_texts(`${modules[a[0]][field]}`, `${modules[b[0]][field]}`)
    : total(a) - total(b)));
}

/** Siblings that are kept; a run stays one if all of it is kept alike. */
function fold_modules(
  /** @type {TraceView} */ trace, /** @type {number[]} */ siblings, /** @type {Int32Array} */ kept,
) {
  return trace.runs(siblings)
    .flatMap((run) => (run.every((i) => kept[i] === kept[run[0]]) ? [run] : run.map((i) => [i])))
    .filter(([first]) => kept[first]);
}

/**
 * Return the rows to show, parents before what is below them.
 * @param {TraceView} trace @param {ModuleFolds} folds @returns {ModuleRow[]}
 */
export function build_module_rows(trace, { depth, toggled, full, kept, by }) {
  /** @type {ModuleRow[]} */
  const rows = [];
  /** @param {ModuleRow["kind"]} kind @param {number[]} modules @param {number} parent */
  const add = (kind, modules, parent, is_leaf = false) => {
    const level = parent < 0 ? 1 : rows[parent].level + 1;
    const key = kind + modules[0];
    const is_open = is_leaf ? null : kind !== "rest" && (level <= depth) !== toggled.has(key);
    rows.push({ key, kind, modules, level, parent, is_open });
    return is_open ? rows.length - 1 : -1;
  };
  /** @param {number[][]} runs @param {number} parent */
  const add_runs = (runs, parent) => {
    for (const run of sort_module_runs(trace, runs, by)) {
      if (run.length > 1) add_run(run, parent);
      else add_one(run[0], parent);
    }
  };
  /** @param {number} module @param {number} parent */
  const add_one = (module, parent) => {
    const { children } = trace.modules[module];
    const row = add("module", [module], parent, !children.some((i) => kept[i]));
    if (row >= 0) add_runs(fold_modules(trace, children, kept), row);
  };
  /** @param {number[]} run @param {number} parent */
  const add_run = (run, parent) => {
    const row = add("run", run, parent);
    if (row < 0) return;
    const is_full = full.has(run[0]);
    add_runs((is_full ? run : [run[0]]).map((i) => [i]), row);
    if (!is_full) add("rest", run.slice(1), row);
  };
  add_runs(fold_modules(trace, trace.roots, kept), -1);
  return rows;
}

/**
 * Open a row, or close it.
 * @param {ModuleFolds} folds @param {ModuleRow[]} rows @param {ModuleRow} row
 */
export function toggle_module_row({ full, toggled }, rows, { kind, key, parent }) {
  if (kind === "rest") full.add(rows[parent].modules[0]);
  else if (!toggled.delete(key)) toggled.add(key);
}

/**
 * Open what hides a module, and return its row; -1 if a filter hides it.
 * @param {TraceView} trace @param {ModuleFolds} folds @param {number} index
 */
export function open_module(trace, folds, index) {
  const path = new Set();
  for (let i = index; i >= 0; i = trace.modules[i].parent) path.add(i);
  for (;;) {
    const rows = build_module_rows(trace, folds);
    const row = rows.findIndex(({ key }) => key === `module${index}`);
    if (row >= 0) return row;
    const last = rows.filter(({ modules }) => modules.some((i) => path.has(i))).at(-1);
    if (last?.is_open !== false) return row;
    toggle_module_row(folds, rows, last);
  }
}

/** Words for what is special about a module. @param {TraceView} trace @param {number} index */
export function module_marks({ modules }, index) {
  const { shared_with, n_calls, tensors } = modules[index];
  const marks = shared_with < 0 ? [] : [`same module as ${modules[shared_with].fqn || "the root"}`];
  if (n_calls > 1) marks.push(`called ${format_whole(n_calls)} times`);
  for (const { name, kind, shape, tied_to, is_lazy, is_persistent, is_real } of tensors) {
    const named = `${name} ${format_shape(shape)}`;
    if (tied_to) marks.push(`${name} tied to ${tied_to}`);
    if (is_lazy) marks.push(`${name} lazy`);
    if (kind === "buffer") marks.push(`buffer ${named}${is_persistent ? "" : ", not persistent"}`);
    if (kind === "attribute") marks.push(`tensor attribute ${named}`);
    if (is_real && !is_lazy) marks.push(`${name} real`);
  }
  return marks.join(" · ");
}

/** The first shape; all in the title. @returns {GridCell} */
function read_passed(/** @type {import("./data.js").Passed[]} */ passed = []) {
  const shapes = passed.map(({ geometry }) => format_shape(geometry.shape));
  const all = passed.map(
    ({ path, geometry: { dtype } }, i) => `${path}: ${shapes[i]} ${shorten_dtype(dtype)}`,
  );
  const more = shapes.length > 1 ? ` +${shapes.length - 1}` : "";
  return [`${shapes[0] ?? ""}${more}`, all.join("\n")];
}

/**
 * Return the cells of a row; the numbers of a run are those of all in it.
 * @param {TraceView} trace @param {ModuleRow} row @param {number} flops of the whole trace
 * @returns {GridCell[]}
 */
export function read_module_row(trace, { kind, modules }, flops) {
  const n = modules.length;
  if (kind === "rest") return [[`show all ${n + 1}`]];
  const [first, last] = [trace.modules[modules[0]], trace.modules[modules[n - 1]]];
  /** @param {number} one @param {(n: number) => string} format @returns {[string, string]} */
  const count = (one, format) => {
    const each = n > 1 ? `, ${format(Math.round(one))} each` : "";
    return [format(n * one), `${format_whole(n * one)}${each}`];
  };
  const name = first.name || "(root)";
  const call = trace.calls[first.first_call];
  const work = modules.reduce((sum, i) => sum + trace.modules[i].flops, 0);
  const share = work / (flops || 1);
  return [
    n > 1 ? [`${name}-${last.name}`, `${first.fqn} to ${last.fqn}`] : [name, first.fqn || name],
    [n > 1 ? `${n} x ${first.class_name}` : first.class_name],
    count(first.n_params, format_count), count(first.nbytes, format_bytes),
    read_passed(call?.inputs), read_passed(call?.outputs),
    [work ? `${(100 * share).toFixed(1)} %` : "", count(work / n, format_flops).join(" = "), share],
    [module_marks(trace, modules[0])],
  ];
}

/**
 * Show the module trees.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("./selection.js").Selection} selection @param {{depth?: number}} settings
 */
export function mount_modules(element, trace, selection, settings = {}) {
  if (!trace.modules.length) {
    element.append(make("p", {}, "No module was made or called in this trace."));
    return;
  }
  const view = {};
  const depth = trace.roots.length < MODULE_MANY ? settings.depth ?? 2 : 0;
  let flops = 0;
  for (const i of trace.op_signature) flops += Math.max(0, trace.signatures[i].flops);
  /** @type {ModuleFolds} */
  const folds = {
    depth, toggled: new Set(), full: new Set(), kept: keep_modules(trace, ""), by: null,
  };
  /** @type {ModuleRow[]} */
  let rows = [];
  let marked = "";
  const show = () => {
    rows = build_module_rows(trace, folds);
    grid.show(rows.length);
  };
  const { input, status, bar } = make_grid_bar("filter by path or class", filter);
  function filter() {
    const is_all = !input.value.trim();
    folds.kept = keep_modules(trace, input.value);
    folds.depth = is_all ? depth : Infinity;
    folds.toggled.clear();
    const n = trace.roots.reduce((sum, i) => sum + folds.kept[i], 0);
    status.textContent = is_all ? "" : `${format_whole(n)} found`;
    show();
  }
  const toggle = (/** @type {number} */ row) => {
    toggle_module_row(folds, rows, rows[row]);
    show();
  };
  const grid = make_grid({
    label: "Modules", columns: MODULE_COLUMNS, toggle,
    branch: (row) => rows[row],
    read: (row) => read_module_row(trace, rows[row], flops),
    is_marked: (row) => rows[row].key === marked,
    choose: (row) => {
      if (rows[row].kind === "rest") return toggle(row);
      marked = rows[row].key;
      show();
      selection.select({ kind: "module", index: rows[row].modules[0] }, view);
    },
    leave: () => selection.select(null),
    sort: (by) => {
      folds.by = by;
      show();
    },
  });
  selection.subscribe((selected, source) => {
    if (source === view) return;
    const { kind = "", index = -1 } = selected ?? {};
    const module = kind === "module" ? index : kind === "op" ? trace.op_module[index] : -1;
    marked = `module${module}`;
    if (module >= 0 && !folds.kept[module]) {
      input.value = "";
      filter();
    }
    const row = open_module(trace, folds, module);
    show();
    if (row >= 0) grid.go(row);
  });
  element.append(bar, grid.element);
  show();
}
