// The Materialize panel. It shows traits of the Python side, and sends the messages "choose",
// "start" and "cancel".

import { fill, format_bytes, make, make_id } from "./dom.js";

/**
 * @typedef {{root: number, path: string, device: string, init: string, dtype: string,
 *   values: string, checkpoint: string}} Choice
 * @typedef {{roots: string[], places: number[], devices: string[], inits: string[], dtypes: string[],
 *   values: string[], choice: Choice, needed: string, free: string, is_enough: boolean,
 *   is_real: boolean, forecast: string, fitting: string,
 *   state: "idle" | "running" | "done" | "failed" | "cancelled", progress: number,
 *   left: string, message: string, report: string}} Traits
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

/** The fields to choose in. @param {Model} model */
function make_controls(model) {
  const pick = (names) => make("select", {}, ...names.map((name) => make("option", {}, name)));
  return {
    module: pick(model.get("roots").map((name, i) => name || `module ${i}`)),
    device: pick(model.get("devices")),
    init: pick(model.get("inits")),
    values: pick(model.get("values")),
    checkpoint: make("input", { type: "text", spellcheck: "false", size: 28 }),
    dtype: pick(model.get("dtypes")),
  };
}

/** Text with what is between backticks as code. @param {string} text */
const mark_code = (text) =>
  text.split("\x60").map((part, i) => (i % 2 ? make("code", {}, part) : part));

/** Shows the traits; owns the choice that was sent, and whether it was answered. */
class Panel {
  is_answered = true;
  /** Choices without an answer. */ n_pending = 0;
  timer = 0;
  /** The report that is shown. */ shown = "";
  /** What sliders show instead of the cell. @type {import("./data.js").TraceView | null} */ other = null;
  /** A block below a root that was chosen. */ block = make("option");
  start = make("button", { type: "submit", class: "mm-start" }, "Materialize");
  cancel = make("button", {
    type: "button", class: "mm-cancel", onclick: () => this.send("cancel"),
  }, "Cancel");
  budget = make("p", { class: "mm-budget" });
  forecast = make("p", { class: "mm-budget" });
  left = make("span", { class: "mm-left" });
  /** @type {HTMLElement} */ path;
  /** @type {HTMLElement} */ values;
  bar = make("progress", { class: "mm-bar", max: 1, "aria-label": "Materialized" });
  message = make("p", { class: "mm-message", role: "status", "aria-live": "polite" });
  result = make("div", { class: "mm-result" });

  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.controls = make_controls(model);
    const fields = Object.entries(this.controls).map(([text, control]) => {
      control.id = make_id();
      const label = make("label", { for: control.id }, text);
      return make("span", { class: "mm-field" }, label, control);
    });
    [this.values, this.path] = fields.slice(3);
    const form = make("form", {
      class: "mm-fields", onchange: this.choose,
      onsubmit: (event) => {
        event.preventDefault();
        this.send("start");
      },
    }, ...fields, this.start, this.cancel);
    this.run = make("div", { class: "mm-run" }, this.bar, this.left);
    this.parts = [form, this.budget, this.forecast, this.run, this.message, this.result];
  }

  /** @param {string} kind */
  send(kind) {
    const { module, device, init, dtype, values, checkpoint } = this.controls;
    const { root, path } = this.block.selected ? this.block.dataset
      : { root: module.selectedIndex, path: "" };
    try {
      this.model.send({ kind, choice: {
        root: Number(root), path, device: device.value, init: init.value, dtype: dtype.value,
        values: values.value, checkpoint: checkpoint.value,
      } });
    } catch {
      // The kernel is gone: nobody answers.
    }
  }

  choose = () => {
    this.show_fields();
    this.n_pending += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.is_answered = false;
      this.show();
    }, PATIENCE);
    this.send("choose");
  };

  answer = () => {
    clearTimeout(this.timer);
    this.is_answered = true;
    this.n_pending = Math.max(0, this.n_pending - 1);
    this.show();
  };

  /** Offer a module below a root beside the roots, and choose it. */
  offer_block(/** @type {number} */ root, /** @type {string} */ path) {
    const [name] = this.model.get("roots")[root].split(": ");
    fill(this.block, { "data-root": root, "data-path": path });
    this.block.textContent = `${name}.${path}`;
    this.controls.module.append(this.block);
    this.block.selected = true;
  }

  /**
   * Choose the module that was selected in a view, if it can be made real.
   * @param {number} index of its root in the trace @param {string} path within that
   */
  pick(index, path) {
    const { module } = this.controls;
    const root = this.model.get("places").indexOf(index);
    if (root < 0 || module.disabled) return;
    if (path) this.offer_block(root, path);
    else module.selectedIndex = root;
    this.choose();
  }

  /** Show the fields that the chosen `init` needs. */
  show_fields() {
    const init = this.controls.init.value;
    this.path.hidden = init !== "checkpoint";
    this.values.hidden = init !== "replay" && init !== "checkpoint";
  }

  /** Write only differences, so that the user's typing and focus stay. */
  show_choice() {
    const { module, checkpoint, ...named } = this.controls;
    const choice = this.model.get("choice");
    if (choice.path) this.offer_block(choice.root, choice.path);
    else module.selectedIndex = choice.root;
    for (const [name, control] of Object.entries(named)) control.value = choice[name];
    if (document.activeElement !== checkpoint) checkpoint.value = choice.checkpoint;
    this.show_fields();
  }

  show = () => {
    const { model, n_pending, is_answered, message, result } = this;
    if (!n_pending) this.show_choice();
    const state = model.get("state");
    this.show_outlook();
    this.show_run(state === "running" && is_answered);
    message.replaceChildren(...mark_code(is_answered ? model.get("message") : NO_ANSWER));
    message.classList.toggle("mm-danger", is_answered && state === "failed");
    const report = model.get("report");
    // The only HTML that is set: Python made it, and escaped every name in it.
    if (this.shown !== report) result.innerHTML = this.shown = report;
  };

  /** Show the bytes and the forecast of the choice, or a choice that fits; of other numbers, their bytes. */
  show_outlook() {
    const { model, controls, other } = this;
    if (other) {
      const root = other.roots[model.get("places")[controls.module.selectedIndex] ?? 0];
      this.budget.textContent = `needs ${format_bytes(other.modules[root]?.nbytes ?? 0)} with these numbers`;
      this.forecast.textContent = "put them into the cell, and run it";
      return;
    }
    const where = controls.device.value;
    const [needed, fitting] = [model.get("needed"), model.get("fitting")];
    this.budget.textContent = (needed ? `needs ${needed} · ` : "")
      + `${model.get("free")} free${where === "as planned" ? "" : ` on ${where}`}`
      + (model.get("is_enough") ? "" : " · does not fit")
      + (fitting && `; what would: ${fitting}`);
    this.forecast.textContent = model.get("forecast") || "\u00a0"; // keeps its height
  }

  /** Enable the controls that can be used; the focus stays on a button. @param {boolean} is_running */
  show_run(is_running) {
    const { model, controls, is_answered, start, cancel, run, bar, left } = this;
    const had_focus = [start, cancel].some((button) => button === document.activeElement);
    const is_closed = is_running || !is_answered;
    for (const control of Object.values(controls)) control.disabled = is_closed;
    start.disabled = is_closed || Boolean(this.other) || model.get("is_real") || !model.get("is_enough");
    cancel.hidden = run.hidden = !is_running;
    bar.value = model.get("progress");
    left.textContent = model.get("left");
    const target = is_running ? cancel : start;
    if (had_focus) (target.disabled ? controls.device : target).focus();
  }
}

/** @param {{model: Model, el: HTMLElement}} context */
export function mount_panel({ model, el }) {
  const panel = new Panel(model);
  fill(el, { role: "group", "aria-label": "Materialize" }, panel.parts);
  el.classList.add("mm-panel");
  model.on("change", panel.show);
  model.on("comm_live_update", panel.choose);
  model.on("msg:custom", (content) => content?.kind !== "values" && panel.answer());
  panel.show();
  panel.choose();
  return {
    pick: panel.pick.bind(panel),
    follow: (/** @type {import("./data.js").TraceView | null} */ other) => {
      panel.other = other;
      panel.show();
    },
    unmount: () => clearTimeout(panel.timer),
  };
}
