// The module trees as a table: equal siblings are folded, rows open on demand.

import { list_path } from "../data.js";
import { find_mark } from "../difference.js";
import { make_device_select } from "../devices.js";
import { find_module } from "../selection.js";
import { mount_grid } from "./grid.js";
import { list_held, read_held_row, split_held } from "./parameters.js";
import { list_tensors, make_filter, add_sent } from "./rows.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{filter: string, open: Map<string, boolean>, wanted: number, wanted_tensor?: number, depth: number, has_runs?: boolean,
 *   sort: (rows: {modules: number[]}[]) => {modules: number[]}[]}} ModuleFolds
 *   `filter`: words of paths and classes; `open`: what was opened and closed, by key of the
 *   row and for each filter; `wanted`: a module to be shown, or -1, and `wanted_tensor` what of
 *   it; `depth`: levels that are open at first; `has_runs`: whether a run is one; `sort`: puts siblings in order
 * @typedef {import("./grid.js").GridBranch & {key: string, modules: number[],
 *   tensors: number[]}} ModuleRow
 *   `modules`: one, or those of a run; `tensors`: of the one, if the row is about these
 */

const MOST_ROWS = 14; // that are in sight at first

/**
 * Return the rows to show, parents before what is below them.
 * @param {TraceView} trace @param {ModuleFolds} folds @returns {ModuleRow[]}
 */
export function build_module_rows(trace, { filter, open, wanted, wanted_tensor = -1, depth, has_runs = false, sort }) {
  const rows = [];
  const path = (at) => list_path(trace, at);
  const opened = path(wanted);
  const is_found = make_filter(filter);
  const found = trace.modules.filter(({ fqn, name, class_name }) =>
    is_found(`${fqn || name} ${class_name}`.toLowerCase()));
  const kept = new Set(found.flatMap(({ index }) => path(index)));
  const make_rows = (runs) => runs.map((modules) => ({ modules }));
  const fold = (siblings) => sort(make_rows(trace.runs(siblings.filter((i) => kept.has(i)))));
  const add = (siblings, parent, level) => {
    for (const { modules, tensors = [] } of siblings) {
      const [first, ...others] = modules;
      const what = tensors.length ? `tensor${tensors.length}-${tensors[0]}` : others.length ? "run" : "module";
      const key = `${filter}:${what}${tensors.length ? "" : first}`;
      const { children } = trace.modules[first];
      const is_leaf = !children.length && !others.length;
      const has_wanted = tensors.length || is_leaf ? wanted_tensor >= 0 : true;
      if (has_wanted && modules.some((i) => opened.includes(i))) open.set(key, true);
      // A run opens to its first module and the rest; the rest opens to all of its modules.
      const is_rest = rows[parent]?.modules.length > 1;
      const parts = is_rest ? modules.map((i) => [i]) : [[first], others];
      const find_below = () => {
        if (tensors.length) return tensors.length > 1 ? split_held({ modules, tensors }) : [];
        return others.length ? make_rows(parts) : [...list_held(trace, first), ...fold(children)];
      };
      const below = find_below();
      const is_first_open = !is_leaf && !tensors.length
        && (filter !== "" || (level <= depth && (!others.length || (has_runs && !is_rest))));
      const is_open = below.length ? open.get(key) ?? is_first_open : null;
      const at = rows.push({ key, modules, tensors, level, parent, is_open }) - 1;
      if (is_open) add(below, at, level + 1);
    }
  };
  add(fold(trace.roots), -1, 1);
  return rows;
}

/**
 * How many levels are open at first: as many as are in sight whole, and say more than that
 * something holds a run; of the runs the first ones, too, if all of them are.
 * @param {TraceView} trace @returns {{depth: number, has_runs: boolean}}
 */
export function find_depth(trace) {
  const list = (depth, has_runs) => build_module_rows(trace, {
    filter: "", open: new Map(), wanted: -1, depth, has_runs, sort: (rows) => rows,
  });
  // The first module of a run shows no more than the run.
  const count_single = (rows) => rows.filter(({ modules, parent }) =>
    modules.length < 2 && !(rows[parent]?.modules.length > 1)).length;
  const find = (depth, has_runs) => {
    let [best, n_best] = [depth, count_single(list(depth, has_runs))];
    for (let i = depth + 1, n_rows = 0; ; i += 1) {
      const rows = list(i, has_runs);
      if (rows.length === n_rows || rows.length > MOST_ROWS) return best;
      n_rows = rows.length;
      if (count_single(rows) > n_best) [best, n_best] = [i, count_single(rows)];
    }
  };
  const depth = find(1, false);
  const deeper = find(depth, true);
  return { depth: deeper, has_runs: deeper > depth };
}

/**
 * Return what is shown of a row; the numbers of a run are those of all in it.
 * @param {TraceView} trace @param {{modules: number[]}} row @param {number} flops of all modules
 * @param {import("../times.js").Times} times
 * @returns {import("./grid.js").GridValues}
 */
export function read_module_row(trace, { modules }, flops, times) {
  const { index, name, class_name, kind, first_call, place } = trace.modules[modules[0]];
  const sum = (read) => modules.reduce((total, i) => total + read(i), 0);
  const add_up = (field) => sum((i) => trace.modules[i][field]);
  const list = (passed = []) => list_tensors(passed.map(({ geometry }) => geometry));
  const call = trace.calls[first_call];
  const n = modules.length;
  const settings = new Set(modules.map((i) => trace.settings(i).slice(1).filter(Boolean).join(", ")));
  const own_class = n > 1 ? `${n} x ${class_name}` : kind ?? class_name;
  const held = {
    name: n > 1 ? `${name}-${trace.modules[modules[n - 1]].name}` : name || "(root)",
    class: settings.size > 1 ? own_class : `${own_class} ${[...settings][0]}`.trim(),
    output: list(call?.outputs), parameters: add_up("n_params"),
    time: sum((i) => times.by_module[i]) / times.in_modules || "", bytes: add_up("nbytes"),
    FLOPs: add_up("flops") || "", share: add_up("flops") / flops || "",
    activations: add_up("activations") || "", place: place ?? "", input: list(call?.inputs),
  };
  return add_sent(trace.columns.modules, held, ({ values, add_up: how }) =>
    (how === "sum" ? sum((i) => values[i]) : values[index]));
}

/**
 * Show the module trees.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("../selection.js").Selection} selection @param {{depth?: number}} settings
 * @param {import("../times.js").Times} times
 */
export function mount_modules(element, trace, selection, settings, times) {
  const flops = trace.roots.reduce((sum, i) => sum + trace.modules[i].flops, 0);
  const open = new Map();
  const { depth, has_runs } = settings.depth
    ? { depth: settings.depth, has_runs: true } : find_depth(trace);
  const failed = list_path(trace, trace.is_raised(trace.n_ops - 1) ? trace.op_module.at(-1) : -1);
  const find = (selected) => find_module(trace, selected);
  const find_tensor = (selected) => (selected?.kind === "parameter" ? selected.index : -1);
  const grid = mount_grid(element, selection, {
    label: "Modules", hint: "filter by path or class", columns: trace.columns.modules,
    read: (row) => (row.tensors?.length ? read_held_row : read_module_row)(trace, row, flops, times),
    titles: { time: (share) => times.describe(share * times.in_modules) },
    beside: { time: make_device_select(times) },
    list: (filter, sort, wanted) => build_module_rows(trace, {
      filter, open, sort, wanted: find(wanted), wanted_tensor: find_tensor(wanted), depth, has_runs,
    }),
    follows: (selected) => find(selected) >= 0,
    // A closed run is selected with its first module.
    is_selected: (selected, { modules: [first, second], tensors, is_open }) => {
      const tensor = find_tensor(selected);
      if (tensors.length) return tensors.includes(tensor) && !is_open;
      return first === find(selected) && !((second || tensor >= 0) && is_open);
    },
    // The module that failed, or the closed one that it is in.
    is_bad: ({ modules, tensors, is_open }) => !tensors.length
      && modules.some((i) => (is_open ? failed[0] === i && modules.length === 1 : failed.includes(i))),
    find_mark: ({ modules, tensors, is_open }) => !tensors.length && find_mark(trace, modules, !is_open),
    pick: ({ modules: [index], tensors: [tensor, next] }) => (tensor >= 0 && !(next >= 0)
      ? { kind: "parameter", index: tensor } : { kind: "module", index }),
    toggle: ({ key, is_open }) => open.set(key, !is_open),
  });
  times.subscribe(() => grid?.renew());
}
