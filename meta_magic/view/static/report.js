// The report: header, tabs, views; and the two ways into it, live and saved.

import { decode } from "./data.js";
import { fill, format_bytes, make, make_id, shorten_op } from "./dom.js";
import { mount_flow } from "./flow/flow.js";
import { mount_modules } from "./tables/modules.js";
import { mount_operators } from "./tables/operators.js";
import { mount_panel } from "./panel.js";
import { Selection } from "./selection.js";
import { mount_source } from "./source/source.js";

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {{depth?: number, hide?: string[], height?: number}} Settings
 * @typedef {(element: HTMLElement, trace: TraceView, selection: Selection,
 *   settings: Settings) => void} Mount
 */

/** @type {Record<string, Mount>} */
const VIEWS = {
  Modules: mount_modules, Flow: mount_flow, Operators: mount_operators, Source: mount_source,
  Charts: mount_charts,
};
const LITTLE = 3; // operators of a cell that one line is enough for
const GRACE = 1500; // milliseconds that a live report has to take the place of a saved one

/**
 * Keep keys from the notebook, where "dd" deletes the cell; leave it its own shortcuts.
 * @param {KeyboardEvent} event
 */
function keep_from_notebook(event) {
  const is_run = event.shiftKey && event.key === "Enter";
  if (!event.ctrlKey && !event.metaKey && !is_run) event.stopPropagation();
}

/**
 * What ran in words and numbers, and what the user should know of it.
 * @param {TraceView} trace @param {(line: number) => void} show_line
 */
function make_header({ failure, headline, nbytes_by_dtype, error, error_line, notes }, show_line) {
  const dtypes = Object.entries(nbytes_by_dtype).map(([dtype, nbytes]) =>
    `${dtype} ${format_bytes(nbytes)}`);
  const stop = { text: `stopped by ${error}`, line: error_line };
  const items = [...error ? [stop] : [], ...notes].map((note) => {
    const { text, line } = note;
    const link = make("button", {
      type: "button", class: "mm-link", onclick: () => show_line(line),
    }, `line ${line}`);
    const words = line ? [link, `: ${text}`] : [text];
    return make("li", { class: note === stop && "mm-danger" }, ...words);
  });
  return make("header", { class: "mm-header" },
    failure && make("p", { class: "mm-danger" }, failure), make("p", {}, headline),
    make("div", { class: "mm-dtypes" }, dtypes.length > 1 ? dtypes.join(" · ") : ""),
    make("ul", { class: "mm-notes" }, ...items));
}

/**
 * The treemap of parameters, which Python drew. It escaped every name in it.
 * @param {HTMLElement} element @param {TraceView} trace @param {Selection} selection
 */
function mount_charts(element, trace, selection) {
  element.innerHTML = trace.chart || "<p>No module of this trace has parameters.";
  const boxes = new Map();
  for (const box of element.querySelectorAll("[data-module]")) {
    const index = Number(box.getAttribute("data-module"));
    const select = () => selection.select({ kind: "module", index });
    boxes.set(index, fill(box, {
      role: "button", tabindex: 0, onclick: select,
      onkeydown: ({ key }) => key === "Enter" && select(),
    }));
  }
  element.querySelector("svg")?.setAttribute("role", "group");
  selection.subscribe((selected) => {
    let at = selected?.kind === "module" ? selected.index : -1;
    // What is too small for a box of its own is in that of a module around it.
    while (at >= 0 && !boxes.has(at)) at = trace.modules[at].parent;
    for (const [index, box] of boxes) box.classList.toggle("mm-selected", index === at);
  });
}

/**
 * The tabs in a row, through which the arrow keys lead.
 * @param {HTMLElement[]} tabs @param {(i: number) => void} show
 */
const make_tab_bar = (tabs, show) => make("div", {
  class: "mm-tabs", role: "tablist", "aria-label": "Views",
  onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (tabs.indexOf(event.target) + step + tabs.length) % tabs.length;
    show(next);
    tabs[next].focus();
    event.preventDefault();
  },
}, ...tabs);

/** Whether there is so little to see that a line says it. @param {TraceView} trace */
const is_little = ({ n_ops, modules, notes, error }) =>
  n_ops <= LITTLE && !modules.length && !notes.length && !error;

/**
 * One line that opens to the views.
 * @param {TraceView} trace @param {() => HTMLElement[]} make_views
 */
function make_line(trace, make_views) {
  const ops = Array.from({ length: trace.n_ops }, (_, i) => shorten_op(trace.signature(i).op));
  const line = make("details", {
    class: "mm-little",
    ontoggle: () => line.children.length < 2 && line.append(...make_views()),
  }, make("summary", {}, [trace.headline, ops.join(", ")].filter(Boolean).join(" · ")));
  return line;
}

/**
 * Make the tabs and the views; a view is drawn when it is first shown.
 * @param {TraceView} trace @param {Selection} selection @param {Settings} settings
 */
function make_parts(trace, selection, settings) {
  const id = make_id();
  const names = Object.keys(VIEWS);
  const tabs = names.map((name, i) => make("button", {
    type: "button", role: "tab", id: `${id}-${i}`, "aria-controls": `${id}-pane-${i}`,
    onclick: () => show(i),
  }, name));
  const panes = names.map((name, i) => make("div", {
    class: `mm-view mm-view-${name.toLowerCase()}`, role: "tabpanel", id: `${id}-pane-${i}`,
    "aria-labelledby": `${id}-${i}`,
  }));

  function show(chosen) {
    tabs.forEach((tab, i) => {
      fill(tab, { "aria-selected": `${i === chosen}`, tabindex: i === chosen ? 0 : -1 });
      panes[i].hidden = i !== chosen;
    });
    if (panes[chosen].hasChildNodes()) return;
    VIEWS[names[chosen]](panes[chosen], trace, selection, settings);
    // What was selected before this view was there.
    if (selection.current) selection.select(selection.current);
  }

  show(trace.modules.length ? 0 : names.indexOf("Operators"));
  const show_line = (line) => {
    selection.select({ kind: "line", index: line });
    show(names.indexOf(trace.source ? "Source" : "Operators"));
  };
  const views = make("div", {
    class: "mm-views", style: settings.height ? `--mm-height: ${settings.height}px` : false,
  }, ...panes);
  return { show_line, views: [make_tab_bar(tabs, show), views] };
}

/**
 * Draw the report of a trace.
 * @param {HTMLElement} element @param {TraceView} trace @param {Settings} settings
 */
function mount_report(element, trace, settings) {
  const selection = new Selection();
  selection.select(trace.stop);
  element.classList.add("mm-live");
  if (is_little(trace)) {
    element.replaceChildren(make_line(trace, () => make_parts(trace, selection, settings).views));
    return;
  }
  const { show_line, views } = make_parts(trace, selection, settings);
  element.replaceChildren(make_header(trace, show_line), ...views);
}

/** Say in words what went wrong, where the report would be. */
function show_failure(/** @type {HTMLElement} */ element, /** @type {unknown} */ error) {
  element.append(make("p", { class: "mm-danger" }, `the report cannot be drawn: ${error}`));
}

/**
 * The live report: hides the saved one while it is there.
 * @param {{model: any, el: HTMLElement}} context
 */
async function render({ model, el }) {
  const saved = document.getElementById(model.get("saved_id"));
  if (saved) saved.hidden = true;
  const report = make("div");
  const panel = make("div");
  el.addEventListener("keydown", keep_from_notebook);
  el.append(report, panel);
  try {
    mount_report(report, await decode(model.get("payload")), model.get("settings"));
  } catch (error) {
    if (saved) saved.hidden = false;
    else show_failure(report, error);
  }
  const unmount = model.get("roots").length ? mount_panel({ model, el: panel }) : () => {};
  return () => {
    unmount();
    if (saved) saved.hidden = false;
  };
}

/**
 * The saved report: takes the place of the plain tree, unless a live one is there.
 * @param {string} id @param {string} packed the payload in base64
 * @param {Settings} settings
 */
async function start_saved(id, packed, settings) {
  const element = document.getElementById(id);
  if (!element) return;
  const is_notebook = Boolean(element.closest(".jp-Notebook"));
  if (is_notebook) await new Promise((resolve) => setTimeout(resolve, GRACE));
  if (element.hidden || !element.isConnected) return;
  element.addEventListener("keydown", keep_from_notebook);
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  mount_report(element, await decode(bytes), settings);
}

export default { render, start_saved };
