// A table of any length: rows of one height, of which only those in sight are drawn.

import { copy_text, fill, make, save_file } from "../dom.js";
import { make_cells, make_heading } from "./cells.js";
import { make_chooser } from "./chooser.js";
import { ColumnChoice, style_columns } from "./chosen.js";
import { press_in_grid } from "./keys.js";
import { format_csv, sort_rows } from "./rows.js";

// In pixels, as in tables.css.
const GRID_ROW = 24;
// Rows drawn above and below.
const GRID_SPARE = 12;

/**
 * @typedef {import("../selection.js").Selected} Selected
 * @typedef {import("./rows.js").GridValues} GridValues
 * @typedef {{level: number, parent: number, is_open: boolean | null}} GridBranch
 *   a row of a tree. `parent`: its row or -1; `is_open`: null for a leaf
 * @typedef {{label: string, hint: string, columns: import("../data.js").Column[],
 *   list: (filter: string, sort: (rows: any[]) => any[], wanted: Selected | null) => any[],
 *   read: (row: any) => GridValues, follows: (selected: Selected | null) => boolean,
 *   is_selected: (selected: Selected | null, row: any) => boolean,
 *   is_bad?: (row: any) => boolean, find_mark?: (row: any) => string | false, is_main?: (row: any) => boolean,
 *   pick: (row: any) => Selected, toggle?: (row: any) => unknown,
 *   titles?: Record<string, (value: any) => string>, makes?: Record<string, (values: GridValues) => (Node | string)[]>, beside?: Record<string, HTMLElement>}} GridView
 *   `list`: the rows to show; what hides the wanted one is opened. `follows`: whether a
 *   selection is about any row, `is_selected`: about this one. `is_bad`: whether it is shown in red. `find_mark`: how it changed. `is_main`: whether it is the one to
 *   show of several that are selected. `pick`: what a row selects. `toggle`: opens or closes a row. By
 *   column, `titles`: what the hover over a value says, `makes`: what is drawn instead of its text, `beside`: what is in the bar with it
 */

/** Shows rows; owns which there are, their order, and the one that the keys act on. */
export class Grid {
  /** @type {any[]} */ rows = [];
  /** The row that the keys act on. */ active = 0;
  /** The scroll position at which it was drawn. */ drawn = 0;
  /** The horizontal scroll position. */ left = 0;
  /** Whether it had to scroll while out of sight. */ is_late = false;
  /** The column that it is sorted by, and how. */
  order = { name: "", direction: 0 };
  sort = (/** @type {any[]} */ some) => some;

  /**
   * @param {HTMLElement} parent @param {import("../selection.js").Selection} selection
   * @param {GridView} view
   */
  constructor(parent, selection, view) {
    const { label, hint, columns, toggle } = view;
    this.id = parent.id;
    this.selection = selection;
    this.view = view;
    this.choice = new ColumnChoice(label, columns.filter(({ is_hidden }) => !is_hidden));
    this.input = make("input", { type: "search", placeholder: hint, oninput: () => this.show(0) });
    this.status = make("span", { role: "status" });
    this.head = make("div", { role: "row" });
    this.body = make("div", { role: "rowgroup" });
    this.element = make("div", {
      class: "mm-grid", role: toggle ? "treegrid" : "grid", "aria-label": label, tabindex: 0,
      onkeydown: (event) => press_in_grid(this, event), onscroll: () => this.scroll(),
    }, this.head, this.body);
    this.further = make("button", { type: "button", onclick: () => this.go_further() });
    const chooser = make_chooser(this.choice, () => this.show_columns());
    this.bar = this.make_bar(chooser.button);
    parent.append(this.bar, chooser.panel, this.element);
    chooser.change();
  }

  make_bar(/** @type {HTMLElement} */ chooser) {
    const copier = make("button", {
      type: "button", title: "rows and columns that are shown", onclick: () => this.copy(),
    }, "Copy as CSV");
    return make("div", { class: "mm-grid-bar" },
      this.input, ...Object.values(this.view.beside ?? {}), this.status, chooser, copier, this.further);
  }

  /** Draw the columns that were chosen. */
  show_columns() {
    this.columns = this.choice.shown;
    for (const [name, element] of Object.entries(this.view.beside ?? {})) {
      element.hidden = !this.columns.some((column) => column.name === name);
    }
    this.head.replaceChildren(...this.columns.map((column) => make_heading(column, {
      sort: this.sort_by, resize: this.resize_column,
      reset: () => {
        this.choice.resize(column);
        this.style();
      },
    })));
    this.show_order();
    this.style();
    this.draw();
  }

  /** Lay out the columns. */
  style() {
    const { element, choice, head } = this;
    const styles = style_columns(this.columns, choice.width_of, element.clientWidth);
    for (const [name, value] of Object.entries(styles)) element.style.setProperty(name, value);
    const widths = this.columns.map(({ is_pinned }, i) =>
      (is_pinned ? head.children[i].getBoundingClientRect().width : 0));
    element.style.setProperty("--mm-pin", `${widths[0]}px`);
    // The cell with the focus is not below the names.
    element.style.scrollPaddingLeft = `${widths.reduce((sum, width) => sum + width)}px`;
    this.show_further();
  }

  /** Widen a column; what is left of it stays as it is. */
  resize_column = (column, heading, change) => {
    const { columns, choice, head } = this;
    columns.slice(0, columns.indexOf(column) + 1).forEach((one, i) => {
      choice.resize(one, head.children[i].getBoundingClientRect().width);
    });
    choice.resize(column, heading.getBoundingClientRect().width + change);
    this.style();
  };

  /** Say how many columns lie out of sight at the right. */
  show_further() {
    const { element, head } = this;
    const end = element.getBoundingClientRect().left + element.clientWidth + 2;
    const n = [...head.children].filter((one) => one.getBoundingClientRect().right > end).length;
    this.left = element.scrollLeft;
    this.further.hidden = !n && !this.left;
    this.further.textContent = n ? `${n} more to the right` : "back to the left";
    element.classList.toggle("mm-cut", n > 0);
  }

  go_further() {
    const { element } = this;
    const is_end = !element.classList.contains("mm-cut");
    element.scrollBy({ left: is_end ? -element.scrollLeft : 0.5 * element.clientWidth });
  }

  scroll() {
    const { scrollTop, scrollLeft } = this.element;
    if (Math.abs(scrollTop - this.drawn) > 150) this.draw();
    if (scrollLeft !== this.left) this.show_further();
  }

  is_marked = (/** @type {any} */ row) => this.view.is_selected(this.selection.current, row);

  /** List the rows anew. @param {number} at the active one @param {Selected | null} wanted */
  show(at, wanted = null) {
    this.rows = this.view.list(this.input.value, this.sort, wanted);
    this.status.textContent = `${this.rows.length} row${this.rows.length === 1 ? "" : "s"}`;
    this.body.style.height = `${this.rows.length * GRID_ROW}px`;
    this.go(wanted ? this.find_marked() : at);
  }

  /** The row to show of those that are selected. */
  find_marked() {
    const { rows, is_marked, view } = this;
    const main = view.is_main ? rows.findIndex((row) => is_marked(row) && view.is_main(row)) : -1;
    return main < 0 ? rows.findIndex(is_marked) : main;
  }

  /** Make a row the active one, at the top. @param {number} at */
  go_to_top(at) {
    this.element.scrollTop = at * GRID_ROW;
    this.go(at);
  }

  /** Make a row the active one, in sight. @param {number} at */
  go(at) {
    const { element } = this;
    this.active = Math.max(0, Math.min(at, this.rows.length - 1));
    const top = this.active * GRID_ROW;
    const low = top - element.clientHeight + 2 * GRID_ROW;
    element.scrollTop = Math.min(top, Math.max(element.scrollTop, low));
    this.draw();
  }

  /** Draw the rows in sight. */
  draw(top = this.element.scrollTop) {
    const { element, body, rows } = this;
    element.scrollTop = this.drawn = top;
    const start = Math.max(0, Math.floor(top / GRID_ROW) - GRID_SPARE);
    const end = start + element.clientHeight / GRID_ROW + 2 * GRID_SPARE;
    body.replaceChildren(...rows.slice(start, end).map((row, i) => this.make_row(row, start + i)));
    body.style.paddingTop = `${start * GRID_ROW}px`;
    const focused = `${this.id}-${this.active}`;
    fill(element, { "aria-rowcount": rows.length + 1, "aria-activedescendant": focused });
  }

  make_row(row, at) {
    const is_marked = this.is_marked(row);
    return make("div", {
      role: "row", id: `${this.id}-${at}`, class: is_marked && "mm-selected",
      "data-bad": this.view.is_bad?.(row) ?? false, "data-mark": this.view.find_mark?.(row) ?? false,
      "data-active": at === this.active, "aria-selected": `${is_marked}`, "aria-rowindex": at + 2,
      "aria-level": row.level ?? false, "aria-expanded": row.is_open?.toString() ?? false,
      onclick: ({ target }) => {
        if (!getSelection().isCollapsed) return;
        this.active = at;
        this.choose(target.matches("i"));
      },
    }, ...make_cells(this.columns, this.view.read(row), row.level, this.view));
  }

  /** Select the active row, or open or close it. @param {boolean} is_turn */
  choose(is_turn) {
    const { rows, active, view } = this;
    if (!is_turn) return this.selection.select(view.pick(rows[active]), this.element);
    view.toggle(rows[active]);
    this.show(active);
  }

  /** Sort one way, then the other, then not; numbers with the largest first. */
  sort_by = (/** @type {import("../data.js").Column} */ { name, align }) => {
    const first = align === "right" ? -1 : 1;
    const { direction } = this.order.name === name ? this.order : { direction: 0 };
    const next = direction === 0 ? first : (direction === first ? -first : 0);
    this.order = { name, direction: next };
    const read = (row) => this.view.read(row)[name];
    this.sort = (some) => (next ? sort_rows(some, read, next) : some);
    this.show_order();
    this.show(0);
  };

  /** Show the values as they are now. */
  renew = () => {
    this.rows = this.view.list(this.input.value, this.sort, null);
    this.draw(this.drawn);
  };

  show_order() {
    const { name, direction } = this.order;
    this.columns.forEach((column, i) => {
      const is_it = column.name === name && direction;
      this.head.children[i].ariaSort = is_it ? (direction > 0 ? "ascending" : "descending") : "none";
    });
  }

  /** Copy, or save where the browser lets nothing be copied. */
  async copy() {
    const { read, label } = this.view;
    const names = this.columns.map(({ name }) => name);
    const cells = this.rows.map(read).map((values) => names.map((name) => values[name]));
    const csv = format_csv([names, ...cells]);
    if (await copy_text(csv)) this.status.textContent = "copied";
    else save_file(new Blob([csv]), `${label}.csv`);
  }

  /** Show what was selected elsewhere; without the filter, where that hides it. */
  follow = (/** @type {Selected | null} */ selected, /** @type {object | null} */ source) => {
    const { element, input, view } = this;
    if (source === element || !view.follows(selected)) return this.draw();
    this.is_late = !element.clientHeight;
    this.show(0, selected);
    if (this.rows.some(this.is_marked)) return;
    const filter = input.value;
    input.value = "";
    this.show(0, selected);
    if (this.rows.some(this.is_marked)) return;
    input.value = filter;
    this.show(0);
  };

  /** Scroll now, if that was not possible while out of sight. */
  resize = () => {
    if (this.is_late) this.go(this.active);
    else this.draw(this.drawn);
    this.style();
    this.is_late &&= !this.element.clientHeight;
  };
}

/**
 * Show a table, and above it a filter.
 * @param {HTMLElement} parent @param {import("../selection.js").Selection} selection
 * @param {GridView} view
 */
export function mount_grid(parent, selection, view) {
  if (!view.list("", (some) => some, null).length) {
    parent.append(`${view.label}: none in this trace.`);
    return;
  }
  const grid = new Grid(parent, selection, view);
  selection.subscribe(grid.follow);
  new ResizeObserver(grid.resize).observe(grid.element);
  grid.show(0);
  return grid;
}
