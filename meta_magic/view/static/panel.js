// The Materialize panel. What it shows are traits of the Python side; what it sends are
// the messages "choose", "start" and "cancel".

import { fill, make, make_id } from "./dom.js";

/**
 * @typedef {{root: number, device: string, init: string, dtype: string,
 *   checkpoint: string}} Choice
 * @typedef {{roots: string[], devices: string[], inits: string[], dtypes: string[],
 *   choice: Choice, needed: string, free: string, is_enough: boolean, is_real: boolean,
 *   state: "idle" | "running" | "done" | "failed" | "cancelled", progress: number,
 *   message: string, report: string}} Traits
 * @typedef {{
 *   get<K extends keyof Traits>(name: K): Traits[K],
 *   on(event: string, callback: (content: any) => void): void,
 *   send(content: object): void,
 * }} Model
 */

const PATIENCE = 4000; // milliseconds
const NO_ANSWER =
  "no answer from the kernel: it is busy, or it was restarted or shut down; " +
  "then run the cell again";

/** @param {{model: Model, el: HTMLElement}} context */
export function mount_panel({ model, el }) {
  const pick = (names) => make("select", {}, ...names.map((name) => make("option", {}, name)));
  const root = pick(model.get("roots").map((name, i) => name || `module ${i}`));
  const device = pick(model.get("devices"));
  const init = pick(model.get("inits"));
  const dtype = pick(model.get("dtypes"));
  const checkpoint = make("input", { type: "text", spellcheck: "false", size: 28 });
  const start = make("button", { type: "submit", class: "mm-start" }, "Materialize");
  const cancel = make("button", {
    type: "button", class: "mm-cancel", onclick: () => send("cancel"),
  }, "Cancel");
  const controls = { module: root, device, init, checkpoint, dtype };
  const fields = Object.entries(controls).map(([text, control]) => {
    control.id = make_id();
    return make("span", { class: "mm-field" }, make("label", { for: control.id }, text), control);
  });
  const path = fields[3];
  const form = make("form", {
    class: "mm-fields", onchange: choose,
    onsubmit: (event) => {
      event.preventDefault();
      send("start");
    },
  }, ...fields, start, cancel);
  const budget = make("p", { class: "mm-budget" });
  const bar = make("progress", { class: "mm-bar", max: 1, "aria-label": "Materialized" });
  const message = make("p", { class: "mm-message", role: "status", "aria-live": "polite" });
  const result = make("div", { class: "mm-result" });
  let is_answered = true;
  let n_pending = 0; // choices without an answer
  let timer = 0;
  let shown = "";

  function send(kind) {
    try {
      model.send({ kind, choice: {
        root: root.selectedIndex, device: device.value, init: init.value, dtype: dtype.value,
        checkpoint: checkpoint.value,
      } });
    } catch {
      // The kernel is gone, and with it the other end: then nobody answers.
    }
  }

  function choose() {
    path.hidden = init.value !== "checkpoint";
    n_pending += 1;
    clearTimeout(timer);
    timer = setTimeout(() => {
      is_answered = false;
      show();
    }, PATIENCE);
    send("choose");
  }

  /** Write only what differs: what the user is typing, and where the focus is, stay. */
  function show_choice() {
    const choice = model.get("choice");
    root.selectedIndex = choice.root;
    [device.value, init.value, dtype.value] = [choice.device, choice.init, choice.dtype];
    if (document.activeElement !== checkpoint) checkpoint.value = choice.checkpoint;
    path.hidden = choice.init !== "checkpoint";
  }

  function show() {
    if (!n_pending) show_choice();
    const [needed, is_enough, state] = ["needed", "is_enough", "state"].map((name) =>
      model.get(/** @type {keyof Traits} */ (name)));
    budget.textContent = (needed ? `needs ${needed} · ` : "")
      + `${model.get("free")} free on ${device.value}${is_enough ? "" : " — does not fit"}`;
    budget.classList.toggle("mm-danger", !is_enough);
    const is_running = state === "running" && is_answered;
    const had_focus = [start, cancel].some((button) => button === document.activeElement);
    for (const control of Object.values(controls)) control.disabled = is_running || !is_answered;
    start.disabled = is_running || !is_answered || model.get("is_real");
    cancel.hidden = bar.hidden = !is_running;
    bar.value = model.get("progress");
    const target = is_running ? cancel : start;
    if (had_focus) (target.disabled ? device : target).focus();
    message.textContent = is_answered ? model.get("message") : NO_ANSWER;
    message.classList.toggle("mm-danger", is_answered && state === "failed");
    // The one place that sets HTML: Python made it, and escaped every name in it.
    if (shown !== model.get("report")) result.innerHTML = shown = model.get("report");
  }

  fill(el, { role: "group", "aria-label": "Materialize" }, [form, budget, bar, message, result]);
  el.classList.add("mm-panel");
  model.on("change", show);
  model.on("comm_live_update", choose);
  model.on("msg:custom", () => {
    clearTimeout(timer);
    is_answered = true;
    n_pending = Math.max(0, n_pending - 1);
    show();
  });
  show();
  choose();
  return () => clearTimeout(timer);
}
