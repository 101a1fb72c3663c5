// The report: header, tabs, views. `live.js` and `saved.js` are its entry points.

import { mount_charts } from "./charts/charts.js";
import { fill, format_bytes, make, make_id, naming, shorten_op } from "./dom.js";
import { Lineage } from "./details/lineage.js";
import { mount_details } from "./details/panel.js";
import { make_difference, mark_modules } from "./difference.js";
import { mount_flow } from "./flow/flow.js";
import { mount_memory } from "./memory/memory.js";
import { mount_modules } from "./tables/modules.js";
import { mount_operators } from "./tables/operators.js";
import { follow_scheme } from "./scheme.js";
import { Selection } from "./selection.js";
import { mount_source } from "./source/source.js";
import { Times } from "./times.js";
import { make_line_link, Whys } from "./why/chain.js";
import { make_explanation } from "./why/why.js";
import { explain_text, split_line } from "./meanings.js";

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {{depth?: number, parameters?: boolean, height?: number, line?: string, why?: string, tab?: number,
 *   difference?: import("./difference.js").Difference}} Settings
 *   of a failed cell: `line`, the text of the one line that opens the report; `why`, the id of
 *   the element above the traceback in which the explanation is shown, or ""
 * @typedef {{make_values: import("./details/parts.js").MakeValues,
 *   make_fit: (view: import("./memory/memory.js").MemoryView, at?: Record<string, number>) => void,
 *   make_why: import("./why/chain.js").MakeWhy,
 *   make_cell: import("./why/repairs.js").MakeCell,
 *   vary: import("./source/source.js").Vary | null,
 *   follow: (selected: import("./selection.js").Selected | null) => void}} Live
 *   what only a report with a kernel has
 * @typedef {(element: HTMLElement, trace: TraceView, selection: Selection,
 *   settings: Settings, times: Times, live: Live) => void} Mount
 */

/** The views by name; an entry point may add some. @type {Record<string, Mount>} */
export const VIEWS = {
  Modules: mount_modules, Flow: mount_flow, Operators: mount_operators, Memory: mount_memory,
  Source: mount_source, Charts: mount_charts,
};
const LITTLE = 3; // operators of a cell that one line is enough for

/** @type {Live} */
export const SAVED = {
  make_values: () => false, make_fit: () => {}, make_cell: null, vary: null, follow: () => {},
  make_why: (_, call) => make("p", {}, "no kernel is here: where the trace is, ask ", make("code", {}, call)),
};

/** A line whose parts have their meanings as tooltips. @param {string} line */
const explain_line = (line) => split_line(line).flatMap((part, i) => [
  i ? " · " : "", make("span", { title: explain_text(part) }, part),
]);

/**
 * The headline and the notes.
 * @param {TraceView} trace @param {HTMLElement | ""} why @param {import("./why/chain.js").ShowLine} show_line
 */
function make_header({ failure, headline, nbytes_by_dtype, error, error_line, notes }, why, show_line) {
  const dtypes = Object.entries(nbytes_by_dtype).map(([dtype, nbytes]) =>
    `${dtype} ${format_bytes(nbytes)}`);
  const stop = { text: `stopped by ${error}`, line: error_line, why: "" };
  const items = [...error ? [stop] : [], ...notes].map((note) => {
    const { text, line, why: evidence } = note;
    const words = line ? [make_line_link(line, show_line), `: ${text}`] : [text];
    const body = evidence ? [make("details", {}, make("summary", {}, ...words), evidence)] : words;
    return make("li", { class: note === stop && "mm-danger" }, ...body);
  });
  // Not the banner of the page, which a header would be.
  return make("header", { class: "mm-header", role: "group", "aria-label": "Summary" },
    failure && make("p", { class: "mm-danger" }, failure),
    why,
    make("p", {}, ...explain_line(headline)),
    make("div", { class: "mm-dtypes" }, dtypes.length > 1 ? dtypes.join(" · ") : ""),
    make("ul", { class: "mm-notes" }, ...items));
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

/** Whether one line is enough for a trace. @param {TraceView} trace */
const is_little = ({ n_ops, modules, notes, error }) =>
  n_ops <= LITTLE && !modules.length && !notes.length && !error;

/** The one line of a little trace. @param {TraceView} trace */
function describe_little(trace) {
  const ops = Array.from({ length: trace.n_ops }, (_, i) => shorten_op(trace.signature(i).op));
  return [trace.headline, ops.join(", ")].filter(Boolean).join(" · ");
}

/**
 * One line that opens to the views, and a function that opens it.
 * @param {string} text @param {() => HTMLElement[]} make_views
 */
function make_line(text, make_views) {
  const inside = make("div");
  const make_once = () => inside.hasChildNodes() || inside.append(...make_views());
  const line = make("details", { class: "mm-little", ontoggle: () => line.open && make_once() },
    make("summary", {}, text), inside);
  const open = () => {
    line.open = true;
    make_once();
  };
  return { line, open };
}

/** A button that shows sizes by name, or as numbers. @param {() => void} redraw */
const make_switch = (redraw) => make("button", {
  type: "button", class: "mm-details-toggle mm-naming", "aria-pressed": `${naming.is_on}`,
  title: "sizes by name, or as numbers",
  onclick: () => {
    naming.is_on = !naming.is_on;
    redraw();
  },
}, "Names");

/**
 * Make the tabs and the views; a view is drawn when it is first shown.
 * @param {TraceView} trace @param {Selection} selection @param {Settings} settings
 * @param {Live} live @param {(tab: number) => void} [redraw] draws the whole report again
 */
function make_parts(trace, selection, settings, live, redraw) {
  const id = make_id();
  const names = Object.keys(VIEWS).filter((name) => name !== "World" || trace.world);
  const times = new Times(trace);
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
    VIEWS[names[chosen]](panes[chosen], trace, selection, settings, times, live);
    // The selection was made before this view existed.
    if (selection.current) selection.select(selection.current);
  }

  show(settings.tab ?? (trace.modules.length ? 0 : names.indexOf("Operators")));
  const show_line = (line) => {
    selection.select({ kind: "line", index: line });
    show(names.indexOf(trace.source ? "Source" : "Operators"));
  };
  const views = make("div", {
    class: "mm-views", style: settings.height ? `--mm-height: ${settings.height}px` : false,
  }, ...panes);
  const lineage = new Lineage(trace);
  const whys = new Whys(trace, lineage, live.make_why, show_line);
  const details = mount_details({ trace, lineage, whys, make_values: live.make_values }, selection);
  return { show_line, whys, views: [
    make("div", { class: "mm-top" }, make_tab_bar(tabs, show),
      ...redraw && trace.has_names ? [make_switch(() => redraw(tabs.findIndex((tab) => tab.tabIndex === 0)))] : [],
      details.toggle),
    make("div", { class: "mm-parts" }, views, details.element),
  ] };
}

/**
 * Draw the report of a failed cell as a line, and its explanation above the traceback.
 * @param {HTMLElement} element @param {TraceView} trace @param {Selection} selection
 * @param {Settings} settings @param {Live} live
 */
function mount_failed(element, trace, selection, settings, live) {
  const { line: text, why: id } = settings;
  // A notebook takes cells out of the document that are scrolled out of sight.
  const outputs = element.closest(".jp-OutputArea") ?? document;
  /** @type {HTMLElement | null} */
  const above = id && trace.explanation ? outputs.querySelector(`#${id}`) : null;
  /** @type {import("./why/chain.js").ShowLine} */
  let show_line;
  const explain = (whys) => make_explanation(trace.explanation, whys, live.make_cell);
  const { line, open } = make_line(text, () => {
    const parts = make_parts(trace, selection, settings, live);
    ({ show_line } = parts);
    const why = trace.explanation && !above ? explain(parts.whys) : "";
    return [make_header(trace, why, show_line), ...parts.views];
  });
  element.replaceChildren(line);
  if (above) {
    const whys = new Whys(trace, new Lineage(trace), live.make_why, (number) => {
      open();
      show_line(number);
      line.scrollIntoView({ block: "nearest" });
    });
    above.classList.add("mm-live");
    follow_scheme(above);
    above.replaceChildren(make("div", { class: "mm-header" },
      make("p", { class: "mm-danger" }, trace.failure), explain(whys)));
  }
  return line;
}

/**
 * Draw the report of a trace; return the element that opens and closes.
 * @param {HTMLElement} element @param {TraceView} trace @param {Settings} settings
 * @param {Live} live
 * @returns {HTMLElement}
 */
export function mount_report(element, trace, settings, live = SAVED) {
  const selection = new Selection();
  selection.select(trace.stop);
  element.classList.add("mm-live");
  if (is_little(trace) || settings.line) selection.subscribe(live.follow);
  if (is_little(trace)) {
    const make_views = () => make_parts(trace, selection, settings, live).views;
    const { line } = make_line(describe_little(trace), make_views);
    element.replaceChildren(line);
    return line;
  }
  if (settings.line) return mount_failed(element, trace, selection, settings, live);
  /** @param {Settings} own @param {Selection} selection */
  const draw = (own, selection) => {
    selection.subscribe(live.follow);
    const { show_line, whys, views } = make_parts(trace, selection, own, live, (tab) => {
      const anew = new Selection();
      anew.select(selection.current);
      draw({ ...settings, tab }, anew);
      /** @type {HTMLElement} */ (element.querySelector(".mm-naming")).focus();
    });
    const why = trace.explanation ? make_explanation(trace.explanation, whys, live.make_cell) : "";
    const { difference } = settings;
    const header = make_header(trace, why, show_line);
    if (difference?.text) header.append(make_difference(difference));
    element.replaceChildren(header, ...views);
  };
  if (settings.difference) mark_modules(trace, settings.difference);
  draw(settings, selection);
  return element;
}
