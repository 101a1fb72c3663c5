// The bar above the flow: what is shown, the search, zoom, export, the legend.

import { PHASES } from "../data.js";
import { make } from "../dom.js";
import { save_picture } from "./export.js";
import { search_flow } from "./search.js";
import { FLOW_LEGEND } from "./shapes.js";
import { list_phases } from "./values.js";

const make_button = (text, title, onclick) =>
  make("button", { type: "button", title, "aria-label": title, onclick }, text);

/** Fill the screen with the view that a bar is of, or no longer. @param {HTMLElement} bar */
function toggle_full_screen(bar) {
  if (document.fullscreenElement) document.exitFullscreen();
  else bar.parentElement.requestFullscreen();
}

/**
 * Make the bar.
 * @param {import("./flow.js").Flow} flow @param {boolean} has_parameters at first
 */
export function make_bar(flow, has_parameters) {
  const { viewport, trace } = flow;
  const save = (is_png) => save_picture(viewport, flow.painter.content, is_png);
  const status = make("span", { class: "mm-flow-status", role: "status" });
  const phases = make("select", {
    "aria-label": "Phase", onchange: () => flow.show_phase(Number(phases.value)),
  }, ...list_phases(trace).map((phase) => make("option", { value: phase }, PHASES[phase])));
  const make_choice = (is_chosen) => make("input", {
    type: "checkbox", checked: is_chosen && "", onchange: () => flow.choose(),
  });
  const [parameters, columns] = [make_choice(has_parameters), make_choice(true)];
  const level = make("output", { "aria-label": "Open levels" });
  const show_level = (n, last) => {
    level.textContent = n > last ? "operators" : `${n} of ${last}`;
  };
  const element = make("div", { class: "mm-flow-bar" },
    phases,
    make("span", { class: "mm-flow-steps" }, "levels ",
      make_button("−", "Close a level", () => flow.step_level(-1)), level,
      make_button("+", "Open a level", () => flow.step_level(1))),
    make("input", {
      type: "search", placeholder: "Search", "aria-label": "Search in the flow",
      onkeydown: (event) => search_flow(flow, event),
    }),
    make("label", {}, parameters, " parameters and constants"),
    make("label", {}, columns, " columns"),
    make("span", { class: "mm-flow-steps" }, "zoom ",
      make_button("−", "Zoom out", () => viewport.zoom_by(0.8)),
      make_button("+", "Zoom in", () => viewport.zoom_by(1.25)),
      make_button("fit", "Fit all into view", () => viewport.fit())),
    make_button("full screen", "Full screen", () => toggle_full_screen(element)),
    make_button("SVG", "Save as SVG", () => save(false)),
    make_button("PNG", "Save as PNG", () => save(true)),
    ...Object.entries(FLOW_LEGEND).map(([kind, text]) =>
      make("span", { class: `mm-flow-key mm-key-${kind}` }, text)),
    status);
  return { element, phases, parameters, columns, status, show_level };
}
