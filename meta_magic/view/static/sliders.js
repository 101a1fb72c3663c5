// Sliders for numbers of the cell: each move shows the cell as recorded with that number.

import { NOT_YET, SILENCE } from "./asking.js";
import { decode } from "./data.js";
import { list_changes } from "./difference.js";
import { copy_text, make, make_id } from "./dom.js";
import { mount_report } from "./report.js";

/**
 * @typedef {Record<string, number>} Sizes
 * @typedef {{name: string, values: number[], value: number, spots: [line: number, column: number][],
 *   error: string, n_values?: number}} Offer as `view/sliders.py` writes it; `n_values`: how many
 *   there are besides those that a saved report has
 * @typedef {{ask: (asked: object) => Promise<any>, set_cell?: ((source: string) => boolean) | null}} Kernel
 *   answers; it has `set_cell` where it is more than the memory of a saved report
 * @typedef {{trace?: import("./data.js").TraceView, text?: string, changes?: string[],
 *   marks?: Record<string, string>, removed?: import("./difference.js").Removed[], printed?: string, error?: string, is_rule?: boolean}} Answer
 */

const GIVE_UP = 40_000; // milliseconds after which the report says that there is no answer
const MOST_ANSWERS = 40; // answers
const N_AHEAD = 100; // values that the kernel may record while nothing is asked
const BETWEEN_TURNS = 3_000; // milliseconds after which it is asked again, N_TURNS times in all
const N_TURNS = 4;

const key_of_sizes = (/** @type {Sizes} */ sizes) => JSON.stringify(sizes);
/** The name of a number of the code, without its position in the text. */
const label = (/** @type {string} */ name) => name.split("=")[0];
export const write_sizes = (/** @type {Sizes} */ sizes) =>
  Object.entries(sizes).map(([name, size]) => `${label(name)} = ${size.toLocaleString("en")}`).join(", ");

/** Asks for recordings one at a time; a picture is shown only beside the numbers that it has. */
class Sliders {
  /** The answers by their numbers, and by those of the pinned design. @type {Map<string, Answer>} */ known = new Map();
  turn = 0; // the timer of `prepare`
  asked = 0; // when the question was asked that has no answer yet; 0 for none
  status = make("p", { role: "status" });
  changes = make("div");

  /** @type {ReturnType<Sliders["make_row"]>[]} */ rows = [];
  /** The numbers that the cell has. @type {Sizes} */ own = {};
  /** @type {Sizes} */ sizes = {};
  /** @type {Sizes} */ pinned = {};

  /**
   * @param {Kernel} kernel @param {Offer[]} offers
   * @param {(trace: import("./data.js").TraceView | null, difference: import("./difference.js").Difference, sizes: Sizes) => void} show
   *   draws the report of a trace; of null, that of the cell
   * @param {(is_waiting: boolean) => void} dim @param {() => void} insert puts the element into the page
   */
  constructor({ ask, set_cell }, offers, show, dim, insert) {
    this.ask = ask;
    this.set_cell = set_cell;
    this.show = show;
    this.dim = dim;
    this.insert = insert;
    const button = (text, title, onclick) => make("button", { type: "button", class: "mm-button", title, onclick }, text);
    this.pin = button("Pin", "compare with this design from now on", () => {
      this.pinned = { ...this.sizes };
      this.follow();
    });
    this.reset = button("Reset", "show the cell as it is written", () => this.go(this.own));
    this.back = button("Show pinned", "show the design that is compared with", () => this.go(this.pinned));
    this.put = button("Put into the cell", "write these numbers into the text of the cell", () => this.write());
    this.near = button("Nearest that runs", "find the nearest number with which the cell runs", () => this.find_near());
    const of_kernel = set_cell === undefined ? [] : [this.pin, this.back, this.put, this.near];
    this.box = make("div", { class: "mm-slider-rows" });
    this.element = make("section", { class: "mm-live mm-sliders", "aria-label": "Sliders" },
      this.box, make("div", { class: "mm-slider-bar" }, this.reset, ...of_kernel, this.status), this.changes);
    offers.forEach((offer) => this.add(offer));
    this.follow();
  }

  /** Add a slider. @param {Offer} offer */
  add(offer) {
    const { name, value, error } = offer;
    const row = this.make_row(offer);
    if (!error) this.own[name] = this.sizes[name] = this.pinned[name] = value;
    this.rows.push(row);
    this.box.append(row.element);
    row.show();
    return row;
  }

  /** The slider of the number at a position of the text. @param {number} line @param {number} column */
  find = (line, column) => this.rows.find(({ spots }) => spots.some((at) => at[0] === line && at[1] === column));

  /** The number that a position of the text has in what is shown, if it was moved. @param {number} line @param {number} column */
  read(line, column) {
    const { name } = this.find(line, column) ?? {};
    return this.sizes[name] !== this.own[name] && this.sizes[name];
  }

  /** Give the number at a position of the text a slider, and the focus. @param {number} line @param {number} column */
  async pick(line, column) {
    this.insert();
    if (!this.find(line, column)) {
      this.status.textContent = "asking the kernel for this number";
      const late = setTimeout(() => { this.status.textContent = NOT_YET; }, SILENCE);
      const offer = await this.ask({ line, column });
      clearTimeout(late);
      if (offer.error) {
        this.status.textContent = offer.error;
        return;
      }
      if (!this.find(line, column)) this.add(offer);
      this.follow();
    }
    this.find(line, column).input.focus();
  }

  /** @param {Offer} offer */
  make_row({ name, values, value, spots, error, n_values = 0 }) {
    const id = make_id();
    const number = make("output", { for: id });
    const input = make("input", {
      type: "range", id, min: 0, max: Math.max(0, values.length - 1), step: 1, disabled: Boolean(error),
      onpointerenter: () => this.prepare(name), onfocus: () => this.prepare(name),
      oninput: () => {
        this.moved = name;
        this.sizes = { ...this.sizes, [name]: values[input.valueAsNumber] };
        this.follow();
      },
    });
    const show = () => {
      const size = this.sizes[name] ?? value;
      input.value = String(values.indexOf(size));
      input.setAttribute("aria-valuetext", `${label(name)} = ${size}`);
      number.textContent = error ? "" : size.toLocaleString("en");
    };
    const element = make("div", { class: "mm-slider", title: error }, make("label", { for: id }, label(name)), input, number,
      error ? make("span", { class: "mm-danger" }, error)
        : n_values > values.length && make("span", {}, `${values.length} of ${n_values} values are recorded`));
    return { name, values, spots, show, input, element };
  }

  /** Move all sliders. @param {Sizes} sizes */
  go(sizes) {
    this.sizes = { ...sizes };
    this.follow();
  }

  get key() {
    return key_of_sizes(this.sizes) + key_of_sizes(this.pinned);
  }

  /** Show what belongs to the sliders as they are, or ask for it. */
  follow() {
    for (const { show } of this.rows) show();
    const is = (/** @type {Sizes} */ sizes) => key_of_sizes(sizes) === key_of_sizes(this.sizes);
    this.near.hidden = true;
    this.pin.disabled = this.back.disabled = is(this.pinned);
    this.reset.disabled = this.put.disabled = is(this.own);
    if (is(this.own) && is(this.pinned)) return this.paint({ text: "" });
    const answer = this.known.get(this.key);
    return answer ? this.paint(answer) : this.request();
  }

  /** What may be asked for next: as the slider moves on, then near it, then a finer and finer grid of all values. */
  look_ahead(moved = this.moved) {
    const { sizes, last = this.own } = this;
    const values = this.rows.find(({ name }) => name === moved)?.values ?? [];
    const [now, before] = [sizes, last].map((one) => values.indexOf(one[moved]));
    const step = now - before || 1;
    const ahead = [step, 2 * step, -1, 1, -2, 2].map((n) => now + n);
    for (let part = 1; part < 2 * values.length && ahead.length < 2 * N_AHEAD; part *= 2)
      ahead.push(...Array.from({ length: part + 1 }, (_, n) => Math.round((n / part) * (values.length - 1))));
    const next = [...new Set(ahead)].filter((at) => at !== now).map((at) => ({ ...sizes, [moved]: values[at] }));
    return next.filter((one) => one[moved] && !this.known.has(key_of_sizes(one) + key_of_sizes(this.pinned))).slice(0, N_AHEAD);
  }

  /** Let the kernel record values of a slider that may be moved next, a few seconds in each turn. */
  prepare(name = this.moved, n_turns = N_TURNS) {
    clearTimeout(this.turn);
    if (this.asked || !n_turns || this.set_cell === undefined) return;
    const ahead = this.look_ahead(name);
    if (!ahead.length) return;
    this.ask({ with: ahead }).catch(() => {}); // a move says why there is no answer
    this.turn = setTimeout(() => this.prepare(name, n_turns - 1), BETWEEN_TURNS);
  }

  async request() {
    this.dim(true);
    this.status.className = "";
    this.status.textContent = `recording ${write_sizes(this.sizes)}…`;
    if (this.asked) return; // follow() comes again after its answer
    clearTimeout(this.turn);
    const { key, sizes, pinned } = this;
    const now = this.asked = Date.now();
    const give_up = setTimeout(() => this.end(now, key, { error: NOT_YET }), GIVE_UP);
    const late = setTimeout(() => { if (this.asked === now) this.status.textContent = NOT_YET; }, SILENCE);
    try {
      const ahead = this.look_ahead();
      this.last = sizes;
      const answer = await this.ask({ sizes, pinned, with: ahead });
      if (answer.buffers?.length) answer.trace = await decode(answer.buffers[0]);
      this.end(now, key, answer);
    } catch (error) {
      this.end(now, key, { error: `the kernel is gone, or was restarted: run the cell again (${error})` });
    }
    clearTimeout(late);
    clearTimeout(give_up);
  }

  /** Take the answer to the question that was asked at a time. @param {number} at @param {string} key @param {Answer} answer */
  end(at, key, answer) {
    if (answer.trace || answer.is_rule) {
      this.known.set(key, answer);
      if (this.known.size > MOST_ANSWERS) this.known.delete(this.known.keys().next().value);
    }
    if (this.asked && this.asked !== at) return; // another question was asked meanwhile
    this.asked = 0;
    if (key !== this.key) return this.follow();
    this.paint(answer);
    this.turn = setTimeout(() => this.prepare(), BETWEEN_TURNS);
  }

  /** Show an answer to the numbers that the sliders have. @param {Answer} answer */
  paint({ trace, text, changes = [], marks = {}, removed = [], printed, error, is_rule }) {
    this.status.className = error ? "mm-danger" : "";
    this.status.textContent = error ?? text;
    this.near.hidden = !is_rule || !this.moved;
    const listed = list_changes(changes, this.changes.querySelector("details")?.open ?? false);
    const output = printed && make("pre", { class: "mm-printed", tabindex: 0, "aria-label": "Printed with these numbers" }, printed);
    this.changes.replaceChildren(...[listed, output].filter(Boolean));
    this.dim(Boolean(error));
    if (!error) this.show(trace ?? null, { text: "", changes: [], marks, removed }, this.sizes);
  }

  async find_near() {
    const { moved: near, sizes, key } = this;
    const { values } = this.rows.find(({ name }) => name === near);
    this.status.textContent = `looking for a number of ${label(near)} that runs…`;
    const answer = await this.ask({ sizes, near, values });
    if (key !== this.key) return; // a slider was moved meanwhile
    if (answer.error) this.status.textContent = answer.error;
    else this.go(answer.sizes);
  }

  async write() {
    const changed = Object.entries(this.sizes).filter(([name, size]) => size !== this.own[name]);
    const sizes = Object.fromEntries(changed);
    const { error, source } = await this.ask({ sizes, is_written: true });
    const is_written = !error && this.set_cell?.(source);
    const is_copied = !error && !is_written && await copy_text(source);
    this.status.textContent = error ?? (is_written
      ? `the cell now has ${write_sizes(sizes)}: run it`
      : is_copied ? "the cell's text with these numbers is copied: paste it over the cell" : source);
  }
}

/**
 * Draw the report of another trace of the same code in the place of one; the tab stays.
 * @param {HTMLElement} element @param {import("./data.js").TraceView} trace
 * @param {import("./report.js").Settings} settings @param {import("./report.js").Live} live
 */
export function redraw_report(element, trace, settings, live) {
  const tabs = [...element.querySelectorAll("[role=tab]")];
  const tab = Math.max(0, tabs.findIndex((one) => one.getAttribute("aria-selected") === "true"));
  element.style.minHeight = `${element.offsetHeight}px`;
  mount_report(element, trace, { ...settings, tab }, live);
  requestAnimationFrame(() => requestAnimationFrame(() => element.style.removeProperty("min-height")));
}

/**
 * Put sliders above a report.
 * @param {HTMLElement} report @param {import("./data.js").TraceView} trace @param {import("./report.js").Settings} settings
 * @param {import("./report.js").Live[]} lives of the cell's own report, and of one with other numbers
 * @param {Offer[]} offers @param {Kernel} kernel @param {(other: import("./data.js").TraceView | null) => void} follow hears what is shown
 */
export function add_sliders(report, trace, settings, [own, varied], offers, kernel, follow = () => {}) {
  let shown = trace;
  const sliders = new Sliders(kernel, offers, (other, difference, sizes) => {
    const next = other ?? trace;
    const marked = { ...settings, difference };
    const live = other ? { ...varied, vary: own.vary, make_fit: (/** @type {any} */ view) => own.make_fit(view, sizes) } : own;
    if (next !== shown) redraw_report(report, next, other ? marked : settings, live);
    shown = next;
    follow(other);
  }, (is_waiting) => report.classList.toggle("mm-waiting", is_waiting),
  () => sliders.element.isConnected || report.before(sliders.element));
  if (offers.length) sliders.insert();
  return sliders;
}
