// The live report, beside a kernel: with its Materialize panel, values and fits on demand.

import { make_ask, show_answer } from "./asking.js";
import { decode, list_path } from "./data.js";
import { make_values } from "./details/values.js";
import { keep_from_notebook, make } from "./dom.js";
import { add_work_out } from "./memory/work_out.js";
import { mount_panel } from "./panel.js";
import { mount_report, SAVED, VIEWS } from "./report.js";
import { follow_scheme } from "./scheme.js";
import { add_sliders } from "./sliders.js";
import { find_make_cell, find_set_cell } from "./why/new_cell.js";
import { mount_world } from "./world/world.js";

const STAY = 2000; // milliseconds that its height is kept after its cell ran, for the next report

VIEWS.World = mount_world;

/** What a report has that shows other numbers than the cell's. */
const VARIED = {
  ...SAVED,
  make_why: () => make("p", {}, "This needs a run of the cell: put these numbers into the cell, and run it."),
};

/** Show an error message instead of the report. */
function show_failure(/** @type {HTMLElement} */ element, /** @type {unknown} */ error) {
  element.append(make("p", { class: "mm-danger" }, `the report cannot be drawn: ${error}`));
}

/** Let a cell have the height of its content again, some time after it ran. */
function let_go_later(/** @type {HTMLElement} */ cell) {
  setTimeout(() => {
    if (cell.querySelector(".jp-InputPrompt")?.textContent?.includes("*")) let_go_later(cell);
    else cell.style.removeProperty("min-height");
  }, STAY);
}

/**
 * Keep the height of a cell while it runs again, so that the cells below do not move. Return
 * a function to call when the report is removed.
 * @param {HTMLElement} report
 */
function keep_height(report) {
  /** @type {HTMLElement | null} */
  const cell = report.closest(".jp-Cell");
  if (!cell) return () => {};
  // Once what is drawn has its own height: tables learn how wide they are after a frame.
  requestAnimationFrame(() => requestAnimationFrame(() => cell.style.removeProperty("min-height")));
  let height = 0;
  const observer = new ResizeObserver(() => {
    if (report.isConnected) height = cell.offsetHeight;
  });
  observer.observe(cell);
  return () => {
    observer.disconnect();
    cell.style.minHeight = `${height}px`;
    let_go_later(cell);
  };
}

/**
 * The live report: hides the saved one while it is there.
 * @param {{model: any, el: HTMLElement}} context
 */
async function render({ model, el }) {
  const saved = document.getElementById(model.get("saved_id")) ?? make("div");
  saved.inert = true; // so that it does not start
  const report = make("div");
  const panel = make("div");
  el.addEventListener("keydown", keep_from_notebook);
  el.append(report, panel);
  follow_scheme(el);
  /** @type {ReturnType<typeof mount_panel> | undefined} */
  let materialize;
  try {
    const trace = await decode(model.get("payload"));
    const [ask, ask_why] = ["values", "why"].map((kind) => make_ask(model, kind));
    /** @type {import("./report.js").Live} */
    const live = {
      make_values: (...tensor) => make_values(ask, ...tensor),
      make_fit: (view, at = {}) => add_work_out(view, model, at),
      make_cell: find_make_cell(model),
      vary: null,
      follow: (selected) => {
        if (selected?.kind !== "module") return;
        const root = list_path(trace, selected.index).at(-1);
        materialize?.pick(trace.roots.indexOf(root), trace.modules[selected.index].fqn);
      },
      make_why: (asked, _, draw_chain) => {
        const answer = make("div", { role: "status" });
        show_answer(answer, "asking the kernel", ask_why(asked), (chain) => [draw_chain(chain)]);
        return answer;
      },
    };
    const settings = model.get("settings");
    const kernel = { ask: make_ask(model, "vary"), set_cell: find_set_cell(model) };
    const sliders = add_sliders(report, trace, settings, [live, VARIED], model.get("sliders"), kernel, (other) => materialize?.follow(other));
    if (!trace.error) live.vary = sliders;
    const whole = mount_report(report, trace, settings, live);
    if (whole !== report) whole.append(panel);
    saved.hidden = true;
  } catch (error) {
    saved.inert = false;
    if (!saved.isConnected) show_failure(report, error);
  }
  if (model.get("roots").length) materialize = mount_panel({ model, el: panel });
  const leave = keep_height(report);
  return () => {
    leave();
    materialize?.unmount();
    saved.hidden = saved.inert = false;
  };
}

export default { render };
