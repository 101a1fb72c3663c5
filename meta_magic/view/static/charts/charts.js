// The Charts view: treemap, roofline, and the shapes that modules return.

import { list_path } from "../data.js";
import { format_count, format_flops, make } from "../dom.js";
import { find_module } from "../selection.js";
import { add_up_modules } from "./areas.js";
import { make_curve } from "./curve.js";
import { make_roofline } from "./roofline.js";
import { make_treemap } from "./treemap.js";

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
  const n_params = add_up_modules(trace, ({ tensors }) => tensors.reduce((sum, { kind, numel, tied_to, is_again }) =>
    (kind === "parameter" && !tied_to && !is_again ? sum + numel : sum), 0));
  const drawn = [
    make_curve(trace, tools),
    make_treemap(trace, "Parameters by module", (i) => n_params[i], tools),
    make_treemap(trace, "FLOPs by module", (i) => modules[i].flops, { ...tools, format: format_flops }),
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
