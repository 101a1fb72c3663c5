// The Materialize panel. What it shows are traits of the Python side; what it sends are
// the messages "choose", "start" and "cancel".

import { make } from "./dom.js";

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
const TRAITS = [
  "choice", "needed", "free", "is_enough", "is_real", "state", "progress", "message",
  "report",
];

let n_fields = 0;

/**
 * @template {HTMLElement} E
 * @param {string} text
 * @param {E} control
 */
function make_field(text, control) {
  control.id = `mm-field-${(n_fields += 1)}`;
  return make("span", { class: "mm-field" }, make("label", { for: control.id }, text), control);
}

/** @param {string[]} names */
function make_select(names) {
  const options = names.map((name, i) => make("option", { value: String(i) }, name));
  return make("select", {}, ...options);
}

/** @param {Model} model */
function make_parts(model) {
  const parts = {
    root: make_select(model.get("roots")),
    device: make_select(model.get("devices")),
    init: make_select(model.get("inits")),
    dtype: make_select(model.get("dtypes")),
    checkpoint: make("input", { type: "text", spellcheck: "false", size: "28" }),
    start: make("button", { type: "submit", class: "mm-start" }, "Materialize"),
    cancel: make("button", { type: "button", class: "mm-cancel" }, "Cancel"),
    budget: make("p", { class: "mm-budget" }),
    bar: make("div", {
      class: "mm-bar", role: "progressbar", "aria-label": "Materialized",
      "aria-valuemin": "0", "aria-valuemax": "100",
    }, make("div")),
    message: make("p", { class: "mm-message", role: "status", "aria-live": "polite" }),
    result: make("div", { class: "mm-result" }),
  };
  const path = make_field("checkpoint", parts.checkpoint);
  const form = make("form", { class: "mm-fields" },
    make_field("module", parts.root),
    make_field("device", parts.device),
    make_field("init", parts.init),
    path,
    make_field("dtype", parts.dtype),
    parts.start,
    parts.cancel,
  );
  return { ...parts, path, form };
}

/**
 * @param {ReturnType<typeof make_parts>} parts
 * @param {Model} model
 * @returns {Choice}
 */
function read_choice(parts, model) {
  return {
    root: parts.root.selectedIndex,
    device: model.get("devices")[parts.device.selectedIndex],
    init: model.get("inits")[parts.init.selectedIndex],
    dtype: model.get("dtypes")[parts.dtype.selectedIndex],
    checkpoint: parts.checkpoint.value,
  };
}

/**
 * Write only what differs: what the user is typing, and where the focus is, stay.
 * @param {ReturnType<typeof make_parts>} parts
 * @param {Model} model
 */
function show_choice(parts, model) {
  const choice = model.get("choice");
  parts.root.selectedIndex = choice.root;
  parts.device.selectedIndex = model.get("devices").indexOf(choice.device);
  parts.init.selectedIndex = model.get("inits").indexOf(choice.init);
  parts.dtype.selectedIndex = model.get("dtypes").indexOf(choice.dtype);
  if (document.activeElement !== parts.checkpoint) {
    parts.checkpoint.value = choice.checkpoint;
  }
}

/**
 * @param {ReturnType<typeof make_parts>} parts
 * @param {Model} model
 */
function show_budget(parts, model) {
  const needed = model.get("needed");
  const device = model.get("choice").device;
  const short = model.get("is_enough") ? "" : " — does not fit";
  parts.budget.textContent =
    (needed ? `needs ${needed} · ` : "") + `${model.get("free")} free on ${device}${short}`;
  parts.budget.classList.toggle("mm-danger", !model.get("is_enough"));
}

/**
 * @param {ReturnType<typeof make_parts>} parts
 * @param {number} fraction
 */
function show_progress(parts, fraction) {
  const percent = Math.round(100 * fraction);
  parts.bar.setAttribute("aria-valuenow", String(percent));
  /** @type {HTMLElement} */ (parts.bar.firstElementChild).style.width = `${percent}%`;
}

/**
 * @param {ReturnType<typeof make_parts>} parts
 * @param {Model} model
 * @param {boolean} is_answered
 */
function show_state(parts, model, is_answered) {
  const state = model.get("state");
  const is_running = state === "running" && is_answered;
  const had_focus = [parts.start, parts.cancel].some((b) => b === document.activeElement);
  for (const field of [parts.root, parts.device, parts.init, parts.dtype, parts.checkpoint]) {
    field.disabled = is_running || !is_answered;
  }
  parts.start.disabled = is_running || !is_answered || model.get("is_real");
  parts.cancel.hidden = parts.bar.hidden = !is_running;
  const target = is_running ? parts.cancel : parts.start;
  if (had_focus) (target.disabled ? parts.device : target).focus();
  parts.message.textContent = is_answered ? model.get("message") : NO_ANSWER;
  parts.message.classList.toggle("mm-danger", is_answered && state === "failed");
}

/**
 * The one place that sets HTML: Python made it, and escaped every name in it.
 * @param {ReturnType<typeof make_parts>} parts
 * @param {Model} model
 */
function show_report(parts, model) {
  parts.result.innerHTML = model.get("report");
}

/** @param {{model: Model, el: HTMLElement}} context */
export function mount_panel({ model, el }) {
  const parts = make_parts(model);
  el.classList.add("mm-panel");
  el.setAttribute("role", "group");
  el.setAttribute("aria-label", "Materialize");
  el.append(parts.form, parts.budget, parts.bar, parts.message, parts.result);

  let is_answered = true;
  let timer = 0;
  const listen = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      is_answered = false;
      show();
    }, PATIENCE);
  };
  /** @param {string} kind */
  const send = (kind) => {
    try {
      model.send({ kind, choice: read_choice(parts, model) });
    } catch {
      // The kernel is gone, and with it the other end: then nobody answers.
    }
  };
  const choose = () => {
    parts.path.hidden = read_choice(parts, model).init !== "checkpoint";
    listen();
    send("choose");
  };
  const show = () => {
    show_choice(parts, model);
    parts.path.hidden = model.get("choice").init !== "checkpoint";
    show_budget(parts, model);
    show_progress(parts, model.get("progress"));
    show_state(parts, model, is_answered);
  };

  parts.form.addEventListener("change", choose);
  parts.form.addEventListener("submit", (event) => {
    event.preventDefault();
    send("start");
  });
  parts.cancel.addEventListener("click", () => send("cancel"));
  for (const name of TRAITS) model.on(`change:${name}`, show);
  model.on("change:report", () => show_report(parts, model));
  model.on("comm_live_update", choose);
  model.on("msg:custom", () => {
    clearTimeout(timer);
    is_answered = true;
    show();
  });

  show();
  show_report(parts, model);
  choose();
  return () => clearTimeout(timer);
}
