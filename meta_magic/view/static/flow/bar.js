// The bar above the flow: phase, steps, levels, search, colours, and a menu of what is rare.

import { PHASES } from "../data.js";
import { make_device_select } from "../devices.js";
import { make } from "../dom.js";
import { save_picture } from "./export.js";
import { list_measures } from "./heat.js";
import { search_flow } from "./search.js";
import { list_phases } from "./values.js";

const DIRECTIONS = { down: "top to bottom", across: "left to right" };
const STEPS = ["functions", "operators"];
const OF_BOXES = "A folded run has the sum of its members.";

const make_button = (text, title, onclick) =>
  make("button", { type: "button", title, "aria-label": title, onclick }, text);

/** Show a view in full screen, or end that. @param {HTMLElement} view */
function toggle_full_screen(view) {
  if (document.fullscreenElement) document.exitFullscreen();
  else view.requestFullscreen();
}

/** The choice of the steps: calls of functions, or operators. @param {import("./flow.js").Flow} flow */
const make_steps = (flow) => STEPS.map((name, i) => make("button", {
  type: "button", "aria-pressed": String(!i), onclick: () => flow.show_functions(!i),
}, name));

/** A choice among texts. @param {Record<string, string>} texts by value */
const make_select = (label, texts, onchange) => make("select", { "aria-label": label, onchange },
  ...Object.entries(texts).map(([value, text]) => make("option", { value }, text)));

/** The scale of the colours. */
function make_scale() {
  const most = make("output", { "aria-label": "Most in a box" });
  const element = make("span", {
    class: "mm-flow-heat", hidden: "",
  }, "0", make("i"), most);
  return {
    element,
    /** @param {import("./heat.js").Heat | null} heat @param {import("./items.js").Item[]} items */
    show(heat, items) {
      heat?.scale(items);
      element.hidden = !heat;
      most.textContent = heat ? heat.measure.format(heat.most) : "";
      element.title = `${heat?.measure.help ?? ""}${OF_BOXES}`;
    },
  };
}

/** The buttons for zoom and full screen, in a corner of the flow. @param {import("./flow.js").Flow} flow */
export const make_views = (flow) => make("div", { class: "mm-flow-zoom", role: "group", "aria-label": "Zoom" },
  make_button("−", "Zoom out", () => flow.viewport.zoom_by(0.8)),
  make_button("+", "Zoom in", () => flow.viewport.zoom_by(1.25)),
  make_button("fit", "Fit all into view (0)", () => flow.viewport.fit()),
  ...document.fullscreenEnabled // not in the frames of some notebooks
    ? [make_button("full", "Full screen", () => toggle_full_screen(flow.bar.element.parentElement))] : []);

/** A menu; it closes where the focus goes elsewhere. @param {(Node | string)[]} parts */
function make_menu(parts) {
  const menu = make("details", {
    class: "mm-flow-menu",
    onfocusout: ({ relatedTarget }) => { if (!menu.contains(relatedTarget)) menu.open = false; },
    onkeydown: ({ key }) => { if (key === "Escape") menu.open = false; },
  }, make("summary", { "aria-label": "More" }, "⋯"), make("div", {}, ...parts));
  return menu;
}

/**
 * Make the bar.
 * @param {import("./flow.js").Flow} flow
 * @param {{parameters?: boolean, marks?: boolean}} chosen at first
 */
export function make_bar(flow, chosen) {
  const { trace } = flow;
  const steps = make_steps(flow);
  const status = make("span", { class: "mm-flow-status", role: "status" });
  const phases = make_select("Phase",
    Object.fromEntries(list_phases(trace).map((phase) => [phase, PHASES[phase]])),
    () => flow.show_phase(Number(phases.value)));
  const make_choice = (is_chosen) => make("input", {
    type: "checkbox", checked: is_chosen && "", onchange: () => flow.choose(),
  });
  const [parameters, marks] = [chosen.parameters, chosen.marks].map(make_choice);
  const direction = make_select("Direction", DIRECTIONS, () => flow.choose());
  const measures = { kind: "by kind", ...Object.fromEntries(list_measures(flow.values, flow.times)), "": "no colours" };
  const [heat, scale] = [make_select("Colours by", measures, () => flow.choose()), make_scale()];
  const device = make_device_select(flow.times);
  const level = make("output", { "aria-label": "Open levels" });
  const show_level = (n, last) => {
    level.textContent = STEPS.slice(flow.has_functions ? 0 : 1)[n - last - 1] ?? `${n} of ${last}`;
  };
  const element = make("div", { class: "mm-flow-bar" },
    phases,
    make("span", { class: "mm-flow-choice", role: "group", "aria-label": "Shown as" }, ...steps),
    make("span", { class: "mm-flow-steps" }, "levels ",
      make_button("−", "Close a level", () => flow.step_level(-1)), level,
      make_button("+", "Open a level", () => flow.step_level(1))),
    make("input", {
      type: "search", placeholder: "Search", "aria-label": "Search in the flow",
      onkeydown: (event) => search_flow(flow, event),
    }),
    heat, scale.element, device,
    make_menu([direction,
      make("label", {}, parameters, " parameters and constants"),
      make("label", {}, marks, " views dashed, writes in place orange"),
      make_button("save as SVG", "Save as SVG", () => save_picture(flow.viewport, flow.painter.content))]));
  return { element, phases, steps, parameters, marks, direction, heat, scale, device, status, show_level };
}
