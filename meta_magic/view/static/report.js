// The report: header, tabs, views; and the two ways into it, live and saved.

import { decode } from "./data.js";
import { format_bytes, make } from "./dom.js";
import { mount_flow } from "./flow.js";
import { mount_modules } from "./modules.js";
import { mount_operators } from "./operators.js";
import { mount_panel } from "./panel.js";
import { Selection } from "./selection.js";
import { mount_source } from "./source.js";

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {{depth?: number, hide?: string[], height?: number}} Settings
 * @typedef {(element: HTMLElement, trace: TraceView, selection: Selection,
 *   settings: Settings) => void} Mount
 */

/** @type {[string, Mount][]} */
const VIEWS = [
  ["Modules", mount_modules],
  ["Flow", mount_flow],
  ["Operators", mount_operators],
  ["Source", mount_source],
];
const GRACE = 1500; // milliseconds that a live report has to take the place of a saved one

let n_reports = 0;

/**
 * Keep keys from the notebook, where "dd" deletes the cell; leave it its own shortcuts.
 * @param {KeyboardEvent} event
 */
function keep_from_notebook(event) {
  const is_run = event.shiftKey && event.key === "Enter";
  if (!event.ctrlKey && !event.metaKey && !is_run) event.stopPropagation();
}

/** @param {TraceView} trace */
function make_header(trace) {
  const header = make("header", { class: "mm-header" }, make("p", {}, trace.headline));
  if (trace.bytes_by_dtype.length > 1) {
    const parts = trace.bytes_by_dtype.map(([dtype, n]) => `${dtype} ${format_bytes(n)}`);
    header.append(make("div", { class: "mm-dtypes" }, parts.join(" · ")));
  }
  if (trace.error) header.append(make("div", { class: "mm-danger" }, `stopped by ${trace.error}`));
  return header;
}

/** @param {TraceView} trace @param {Selection} selection */
function make_notes(trace, selection) {
  const list = make("ul", { class: "mm-notes" });
  for (const { text, line } of trace.notes) {
    const item = make("li");
    if (line) {
      const link = make("button", { type: "button", class: "mm-link" }, `line ${line}`);
      link.addEventListener("click", () => selection.select({ kind: "line", index: line }));
      item.append(link, ": ");
    }
    item.append(text);
    list.append(item);
  }
  return list;
}

/**
 * Make the tabs of the views; a view is drawn when it is first shown.
 * @param {TraceView} trace @param {Selection} selection @param {Settings} settings
 */
function make_tabs(trace, selection, settings) {
  const id = `mm-tabs-${(n_reports += 1)}`;
  const bar = make("div", { class: "mm-tabs", role: "tablist", "aria-label": "Views" });
  const body = make("div", { class: "mm-views" });
  if (settings.height) body.style.setProperty("--mm-height", `${settings.height}px`);
  /** @type {HTMLButtonElement[]} */
  const tabs = [];
  const panes = VIEWS.map(([name], i) => {
    const names = { id: `${id}-${i}`, pane: `${id}-pane-${i}` };
    const tab = make("button", {
      type: "button", role: "tab", id: names.id, "aria-controls": names.pane,
    }, name);
    const pane = make("div", {
      class: `mm-view mm-view-${name.toLowerCase()}`, role: "tabpanel", id: names.pane, "aria-labelledby": names.id,
    });
    tab.addEventListener("click", () => show(i));
    tabs.push(tab);
    return pane;
  });
  /** @param {number} chosen */
  const show = (chosen) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panes[i].hidden = i !== chosen;
    });
    if (!panes[chosen].hasChildNodes()) {
      VIEWS[chosen][1](panes[chosen], trace, selection, settings);
      // What was selected before this view was there.
      if (selection.current) selection.select(selection.current);
    }
  };
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const from = tabs.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const next = (from + step + tabs.length) % tabs.length;
    show(next);
    tabs[next].focus();
    event.preventDefault();
  });
  bar.append(...tabs);
  body.append(...panes);
  return { bar, body, show };
}

/**
 * Draw the report of a trace.
 * @param {HTMLElement} element @param {TraceView} trace @param {Settings} settings
 */
function mount_report(element, trace, settings) {
  const selection = new Selection();
  const tabs = make_tabs(trace, selection, settings);
  element.classList.add("mm-live");
  element.addEventListener("keydown", keep_from_notebook);
  element.replaceChildren(make_header(trace), make_notes(trace, selection), tabs.bar, tabs.body);
  tabs.show(trace.modules.length ? 0 : 2);
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
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  mount_report(element, await decode(bytes), settings);
}

export default { render, start_saved };
