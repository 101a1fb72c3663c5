// The cell as written, and the earlier cells and functions of files that it ran: each line
// beside the shapes that it made, each expression with its tensors. Text is only ever set as
// text.

import { fill, make } from "../dom.js";
import { source_describe, source_nest, source_paint, source_rows, source_shapes } from "./lines.js";

/**
 * @typedef {import("./lines.js").SourceRow} SourceRow
 * @typedef {import("./lines.js").SourceSpan} SourceSpan
 * @typedef {import("./lines.js").SourceItem} SourceItem
 */

/**
 * @typedef {{read: (line: number, column: number) => number | false, pick: (line: number, column: number) => void}} Vary
 *   `read`: the number that is shown in place of the one that is written at a position, if it is
 *   another; `pick` gives it a slider
 */

const SOURCE_SHAPES = 3; // that a line shows, as in source.css
const NUMBER = 3; // the kind of a token, as `view/source_payload.py` writes it

/** Shows lines; owns which pass of each is shown, and the record of each element. */
class Source {
  /** The row or span of each element. @type {Map<HTMLElement, any>} */
  parts = new Map();
  tip = make("div", { class: "mm-source-tip", role: "tooltip", popover: "manual" });
  /** The expression under the pointer, or with the focus. @type {SourceSpan | undefined} */ near;

  /**
   * @param {import("../data.js").TraceView} trace
   * @param {import("../selection.js").Selection} selection
   * @param {Vary | null} vary
   */
  constructor(trace, selection, vary) {
    const { rows, items } = source_rows(trace);
    this.vary = vary;
    this.trace = trace;
    this.selection = selection;
    this.rows = rows;
    this.items = items;
    this.stop = { text: `stopped here: ${trace.error}`, line: trace.error_line };
    const leave = () => this.show_tip(this.box);
    const show = ({ target }) => this.show_tip(target);
    this.box = make("div", {
      class: "mm-source", tabindex: 0, role: "group", "aria-label": "Source",
      onclick: ({ target }) => this.choose(target),
      onpointerover: show, onfocusin: show, onpointerleave: leave, onfocusout: leave,
      onkeydown: ({ key, target }) => {
        if (key === "Escape") leave();
        if (key === "Enter" && target.matches("span")) this.choose(target);
      },
    }, ...rows.flatMap((row) => this.make_line(row)), this.tip);
  }

  /** The elements of a line: what is above it, the line, and what is noted below it. */
  make_line(row) {
    const { index, passes, kind, heading } = row;
    row.label = make("output");
    row.shapes = make("span");
    this.show_pass(row, passes.length - 1);
    const notes = [...this.trace.notes, this.stop].filter((note) => kind && note.line === index);
    const part = make("div", { class: "mm-source-line" },
      make("button", {}, index), make("code", {}, ...this.make_code(row)),
      make("div", { class: "mm-source-shapes" }, ...this.make_stepper(row), row.shapes));
    return [heading ? make("h2", {}, heading) : "", this.add_part(row, part), ...notes.map((note) =>
      make("div", { class: `mm-source-note ${note === this.stop && "mm-source-error"}` }, note.text))];
  }

  /** The text of a line, its expressions in each other. */
  make_code(row) {
    const { line, tokens, pieces } = row;
    const paint = (kind, text, at) => (this.vary && row.kind && kind === NUMBER && /^[1-9][\d_]*$/.test(text)
      ? this.make_number(row, text, at) : kind ? make("span", { class: `mm-token-${kind}` }, text) : text);
    const cut = (from, to) => source_paint(line, tokens, paint, from, to);
    return source_nest(cut, [...pieces], ({ span }, inner) =>
      this.add_part(span, make("span", {
        class: "mm-source-expression", tabindex: span.row === row ? 0 : -1,
        "data-bad": this.is_bad(span),
      }, ...inner)), 0, line.length);
  }

  /** A number that a click gives a slider; beside it what it is now, if it was moved. */
  make_number({ index, line }, text, at) {
    /** @type {[number, number]} */
    const place = [index, new TextEncoder().encode(line.slice(0, at)).length];
    const pick = (event) => {
      if (event.key && event.key !== "Enter") return;
      event.stopPropagation();
      this.vary.pick(...place);
    };
    return make("span", {
      class: `mm-token-${NUMBER} mm-source-number`, role: "button", tabindex: 0, "data-now": this.vary.read(...place),
      "aria-label": `vary ${text}`, title: "vary this number", onclick: pick, onkeydown: pick,
    }, text);
  }

  is_bad = ({ items }) => items.some(({ kind, index }) => kind === "op" && this.trace.is_raised(index));

  /** The buttons that lead from pass to pass, if there are several. */
  make_stepper(row) {
    const step = (by, text, name) => make("button", {
      "aria-label": `${name} pass of line ${row.index}`,
      onclick: () => this.show_all(row, row.shown + by),
    }, text);
    if (row.passes.length < 2) return [];
    return [step(-1, "‹", "Previous"), row.label, step(1, "›", "Next")];
  }

  add_part(of, part) {
    this.parts.set(part, of);
    return part;
  }

  show_pass(row, shown) {
    row.shown = shown;
    row.label.textContent = `pass ${shown + 1} of ${row.passes.length}`;
    const shapes = source_shapes(row.passes[shown] ?? []);
    fill(row.shapes, { title: shapes.join("\n"), "data-more": `${shapes.length - SOURCE_SHAPES} more` });
    row.shapes.replaceChildren(...shapes.map((shape) => make("span", {}, shape)));
  }

  /** Show a pass of a line, and of all lines that ran as often. */
  show_all({ passes }, shown) {
    if (!passes[shown]) return;
    for (const row of this.rows) {
      if (row.passes.length === passes.length) this.show_pass(row, shown);
    }
  }

  /** The items of an expression in the pass that is shown, or else the last one. */
  find_shown(span) {
    const here = span.row.passes[span.row.shown]?.filter((item) => item.span === span);
    return here?.length ? here : span.items.slice(-1);
  }

  show_tip(target) {
    const span = this.parts.get(target.closest(".mm-source-expression"));
    if (span !== this.near) {
      for (const [part, of] of this.parts) part.classList.toggle("mm-near", of === span);
    }
    this.near = span;
    this.tip.togglePopover(Boolean(span));
    if (!span) return;
    const words = source_describe(this.trace, this.find_shown(span));
    target.ariaDescription = words.join(", ");
    this.tip.replaceChildren(...words.map((line) => make("div", {}, line)));
  }

  /** Select the expression or the line that was clicked. */
  choose(target) {
    const part = this.parts.get(target.closest("[class^=mm-source-]"));
    const { kind, index } = part?.row ? this.find_shown(part).at(-1) : part ?? {};
    if (kind && index >= 0) this.selection.select({ kind, index }, this.box);
  }

  /** Mark what is selected; follow what was selected elsewhere. */
  mark = (selected, source) => {
    const is_it = ({ kind, index }) => kind === selected?.kind && index === selected.index;
    /** @type {Set<any>} */
    const marked = new Set(this.rows.filter(is_it));
    for (const { row, caller, span, first } of this.items.filter(is_it)) {
      marked.add(row).add(caller).add(span);
      for (const on of source === this.box ? [] : [row, caller]) {
        if (on) this.show_all(on, on.passes.findLastIndex(([begin]) => begin.first <= first));
      }
    }
    for (const [part, of] of this.parts) part.classList.toggle("mm-selected", marked.has(of));
    if (source !== this.box) this.reveal();
  };

  /** Scroll the box, and not the notebook, to what is selected. */
  reveal = () => {
    const { box, parts } = this;
    const chosen = [...parts.keys()].findLast((part) => part.matches(".mm-selected"));
    const top = chosen?.offsetTop - box.scrollTop;
    if (top < 0 || top > box.clientHeight - 24) box.scrollTop += top - box.clientHeight / 3;
  };
}

/**
 * Show the source of a trace.
 * @param {HTMLElement} element @param {import("../data.js").TraceView} trace
 * @param {import("../selection.js").Selection} selection @param {any} _ @param {any} __
 * @param {import("../report.js").Live} live
 */
export function mount_source(element, trace, selection, _, __, { vary }) {
  const source = new Source(trace, selection, vary);
  element.append(source.box);
  selection.subscribe(source.mark);
  // Nothing can be scrolled to while the view is hidden.
  new ResizeObserver(source.reveal).observe(source.box);
}
