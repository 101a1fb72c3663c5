// The Charts view: treemap, roofline, and the shapes that modules return.

import { list_path } from "../data.js";
import { format_bytes, format_count, format_flops, make } from "../dom.js";
import { find_module } from "../selection.js";
import { add_up_modules } from "./areas.js";
import { make_curve } from "./curve.js";
import { make_roofline } from "./roofline.js";
import { make_bars, make_treemap } from "./treemap.js";

const CHART_FONT = "11px system-ui, sans-serif"; // as in charts.css
const N_COLORS = 6;

/** Return a function that measures the width of a text in pixels. */
export function make_measure() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = CHART_FONT;
  return (/** @type {string} */ text) => context.measureText(text).width;
}

/** Gives a module the colour that it, or its largest part, got before; or the next one. */
export function make_paint() {
  const colors = new Map();
  let n_colors = 0;
  const key = ({ at, modules }) => (modules.length ? at : ~at); // of what it has beside those in it
  const find = (area) => colors.get(key(area))
    ?? area.children.reduce((found, child) => found ?? find(child), undefined);
  return (/** @type {import("./areas.js").Area} */ area) => {
    const color = find(area) ?? (n_colors += 1) - 1;
    colors.set(key(area), color);
    return `mm-color-${color % N_COLORS}`;
  };
}

/** A quantity of the tensors that modules have, each counted once. @returns {(module: number) => number} */
function add_up_tensors(trace, read) {
  const totals = add_up_modules(trace, ({ tensors }) => tensors.reduce((sum, tensor) => (
    tensor.tied_to || tensor.is_again ? sum : sum + read(tensor)), 0));
  return (module) => totals[module];
}

/** The bytes of a dtype that modules have, for each. @param {import("../data.js").TraceView} trace */
const read_dtypes = (trace) => Object.keys(trace.nbytes_by_dtype).map((dtype) => /** @type {[string, (module: number) => number]} */ ([
  dtype, add_up_tensors(trace, (tensor) => (tensor.dtype === dtype && tensor.kind !== "attribute" ? tensor.nbytes : 0)),
]));

/**
 * Show the charts.
 * @param {HTMLElement} element @param {import("../data.js").TraceView} trace
 * @param {import("../selection.js").Selection} selection @param {object} settings
 * @param {import("../times.js").Times} times
 */
export function mount_charts(element, trace, selection, settings, times) {
  const { modules } = trace;
  const select = (index) => selection.select({ kind: "module", index });
  const tools = { format: format_count, select, measure: make_measure(), paint: make_paint() };
  const dtypes = read_dtypes(trace);
  const drawn = [
    make_curve(trace, tools),
    make_treemap(trace, "Parameters by module",
      add_up_tensors(trace, ({ kind, numel }) => (kind === "parameter" ? numel : 0)), tools),
    make_treemap(trace, "FLOPs by module", (i) => modules[i].flops, { ...tools, format: format_flops }),
    dtypes.length > 0 && make_bars(trace, dtypes, { ...tools, format: format_bytes }),
    make_roofline(trace, times, { ...tools, select: (index) => selection.select({ kind: "op", index }) }),
  ].filter(Boolean);
  if (!drawn.length) {
    element.append("No module of this trace has parameters or was called.");
    return;
  }
  const charts = make("div", { class: "mm-charts" }, ...drawn.map((chart) => chart.element));
  element.append(charts);
  const mark = () => {
    const path = list_path(trace, find_module(trace, selection.current));
    for (const chart of drawn) chart.mark(path, selection.current);
  };
  let width = 0;
  new ResizeObserver(() => {
    if (!charts.clientWidth || charts.clientWidth === width) return;
    width = charts.clientWidth;
    for (const { element: figure, resize } of drawn) resize(figure.clientWidth);
    mark();
  }).observe(charts);
  selection.subscribe(mark);
}
