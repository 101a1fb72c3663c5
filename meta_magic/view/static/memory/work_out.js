// The controls of the Fit panel: the kernel records the cell again at other sizes and choices.

import { make_ask, NOT_YET, show_answer, SILENCE } from "../asking.js";
import { format_bytes, make, make_id } from "../dom.js";
import { choose_end, find_largest, find_peak, name_choices, resize_lives, describe_fit, describe_size } from "./growth.js";
import { Peaks } from "./peaks.js";

/**
 * @typedef {import("./growth.js").Growth} Growth
 * @typedef {{sizes: Record<string, number>, choices: string[], reason: string}} FitOffer
 *   as `view/fits_of_sizes.py` writes it
 * @typedef {{get: (name: string) => any, on: (event: string, callback: (...sent: any[]) => void) => void,
 *   send: (content: object) => void}} FitModel
 */

const TRAITS = ["fit_state", "growths", "stretches", "fit_at"];
const OTHER_PROGRAM = "The cell runs another program at the size that it has: the curve above stays as recorded.";
const NO_CURVE = "Operators differ by size: each point was recorded, and nothing is known in between.";

/** Whether an element has the focus, which goes to the notebook if the element vanishes. @param {Element} element */
const is_focused = (element) => element.ownerDocument.activeElement === element;

/** Which sizes follow from those recorded. @param {Growth} growth */
const describe_step = ({ step }) => (step > 1 ? `all other multiples of ${step} follow` : "all others follow");

/** Asks a kernel, and shows its answer; owns the size and the choices that are shown. */
class WorkOut {
  size = 0;
  /** @type {any[]} */ seen = [];
  late = 0;
  pick = make("select", { id: make_id(), onchange: () => this.reset() });
  start = make("button", { type: "submit", class: "mm-start" }, "Work out");
  check = make("button", { type: "button", title: "for which sizes the cell runs", onclick: () => this.find_condition() }, "Which run?");
  stop = make("button", { type: "button", onclick: () => this.send({}) }, "Stop");
  status = make("p", { role: "status" });
  notes = make("div");
  slider = make("input", { type: "range", id: make_id(), oninput: () => this.take(this.slider.valueAsNumber) });
  label = make("label", { for: this.slider.id });
  back = make("button", { type: "button", class: "mm-link", onclick: () => this.reset() }, "as recorded");
  peaks = new Peaks((size) => this.take(size));

  /**
   * @param {import("./memory.js").MemoryView} view @param {FitModel} model @param {FitOffer} offer
   * @param {Record<string, number>} at the numbers of sliders
   */
  constructor(view, model, { sizes, choices }, at) {
    this.view = view;
    this.at = at;
    this.check.hidden = Object.keys(at).length > 0;
    this.model = model;
    this.ask_check = make_ask(model, "check");
    this.pick.append(...Object.entries(sizes).map(([name, value]) =>
      make("option", { value: name }, `${name} = ${value}`)));
    this.boxes = choices.map((value) => make("input", { type: "checkbox", value }));
    const form = make("form", {
      class: "mm-fields",
      onsubmit: (event) => {
        event.preventDefault();
        this.ask();
      },
    }, make("span", { class: "mm-field" }, make("label", { for: this.pick.id }, "size"), this.pick),
    make("fieldset", {}, make("legend", {}, "choices"), ...this.boxes.map((box, i) => make("label", {}, box, choices[i]))),
    this.start, this.check, this.stop);
    this.shown = make("div", {}, make("div", { class: "mm-slide" }, this.label, this.slider, this.back), this.peaks.element);
    this.element = make("figure", { class: "mm-work-out" },
      make("figcaption", {}, "At other sizes, with other choices"), form, this.status, this.shown, this.notes);
    view.times.subscribe(() => this.show());
    model.on("change", () => this.follow());
    this.reset();
  }

  /** @param {object} content */
  send(content) {
    try {
      this.model.send({ kind: "fit", ...content });
    } catch {
      // The kernel is gone: nobody answers.
    }
  }

  ask() {
    const choices = this.boxes.flatMap(({ checked, value }) => (checked ? [value] : []));
    this.late = setTimeout(() => this.status.replaceChildren(NOT_YET), SILENCE);
    this.status.replaceChildren("asking the kernel…");
    this.send({ name: this.pick.value, choices, device: this.view.times.device.name, at: this.at });
  }

  /** Show for which values of the size the cell runs. */
  find_condition() {
    const answer = this.ask_check({ name: this.pick.value });
    show_answer(this.status, `recording it with other values of ${this.pick.value}…`, answer, ({ text }) => [text.replaceAll("\n", " · ")]);
  }

  /** Show the kernel's answer, if it is a new one. */
  follow() {
    const answered = TRAITS.map((name) => this.model.get(name));
    if (answered.every((value, i) => value === this.seen[i])) return;
    clearTimeout(this.late);
    this.show();
  }

  /** Look at the size as it was recorded. */
  reset() {
    this.size = 0;
    this.view.show_lives();
    this.show();
  }

  /** Look at another size. @param {number} size */
  take(size) {
    const step = Number(this.slider.step);
    this.size = Math.max(step, Math.round(size / step) * step);
    const stretches = this.stretches;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      if (stretches) {
        const { recorded } = this.view;
        this.view.show_lives(resize_lives(recorded, stretches, this.size), ` with ${this.pick.value} = ${this.size}`);
      }
      this.show();
    });
  }

  /** Whether what the kernel worked out is of these numbers. */
  get is_own() {
    return JSON.stringify(this.model.get("fit_at") ?? {}) === JSON.stringify(this.at);
  }

  /** Of the size that is picked, if the program is one. */
  get stretches() {
    const found = this.is_own && this.model.get("stretches")[this.pick.value];
    return found && found.row.length ? found : null;
  }

  show() {
    const { model, pick, view: { fit, times } } = this;
    this.seen = TRAITS.map((name) => model.get(name));
    const { is_running = false, message = "" } = model.get("fit_state");
    /** @type {Growth[]} */
    const all = model.get("growths").filter(({ name }) => this.is_own && name === pick.value);
    const growths = all.filter(({ reason }) => !reason);
    const left = [this.start, this.stop].find(is_focused);
    this.check.disabled = is_running;
    this.start.disabled = is_running || !times.device.nbytes;
    this.stop.hidden = !is_running;
    if (left) (is_running ? this.stop : this.start).focus();
    this.status.replaceChildren(is_running ? `${message}…` : message && `not worked out: ${message}`);
    this.shown.hidden = !growths.length;
    this.notes.replaceChildren(...this.describe(all, growths).filter(Boolean).map((text) => make("p", {}, text)));
    fit.show(all.map((growth) => ({
      head: name_choices(growth.choices),
      title: growth.reason ?? "",
      write: (nbytes) => describe_size(find_largest(growth, nbytes)),
    })), `largest ${pick.value}`);
    if (growths.length) this.show_peaks(growths);
  }

  /** @param {Growth[]} growths */
  show_peaks(growths) {
    const { times } = this.view;
    const [{ current, name, step }] = growths;
    const end = choose_end(growths, times.device.nbytes);
    const size = Math.min(end, this.size || current);
    const peak = find_peak(growths[0], size);
    Object.assign(this.slider, { min: step, step, max: end });
    this.slider.value = String(size);
    this.slider.setAttribute("aria-valuetext", `${size}, ${format_bytes(peak)} at the peak`);
    this.label.textContent = `${name} = ${size}`;
    if (is_focused(this.back) && !this.size) this.slider.focus();
    this.back.hidden = !this.size;
    this.peaks.show({ growths, times, end, size });
  }

  /** The notes below the chart. @param {Growth[]} all @param {Growth[]} growths */
  describe(all, growths) {
    const { device } = this.view.times;
    if (!device.nbytes) return [`How much memory ${device.title} has varies: choose an accelerator.`];
    if (!growths.length) return [];
    const [plain] = growths;
    const words = describe_fit(growths, device.nbytes, format_bytes);
    const at = plain.recorded.map(([size]) => size.toLocaleString("en")).join(", ");
    return [
      words && `${device.title}: ${words}.`,
      plain.highest.length ? `By recordings with ${plain.name} = ${at}; ${describe_step(plain)} from them.` : NO_CURVE,
      plain.highest.length && !this.stretches ? OTHER_PROGRAM : "",
      ...all.flatMap(({ choices, reason }) => (reason ? [`With ${name_choices(choices)}: ${reason}.`] : [])),
    ];
  }
}

/**
 * Beside the table of what fits, have what a kernel works out; or why it cannot.
 * @param {import("./memory.js").MemoryView} view @param {FitModel} model @param {Record<string, number>} at
 */
export function add_work_out(view, model, at) {
  const place = make("div");
  view.fit.element.append(place);
  show_answer(place, "looking at the cell…", make_ask(model, "offer")({ at }), (/** @type {FitOffer} */ offer) => [offer.reason
    ? make("p", {}, `Other sizes and choices cannot be tried: ${offer.reason}.`)
    : new WorkOut(view, model, offer, at).element]);
}
