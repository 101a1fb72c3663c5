// A table of any length: rows of one height, of which only those in sight are drawn.

import { fill, make, save_file } from "../dom.js";
import { make_cells, make_head, style_columns } from "./cells.js";
import { format_csv, sort_rows } from "./rows.js";

// In pixels, as in tables.css.
const GRID_ROW = 24;
// Rows drawn above and below.
const GRID_SPARE = 12;
const GRID_STEPS = {
  ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity,
};

/**
 * @typedef {import("../selection.js").Selected} Selected
 * @typedef {import("./rows.js").GridValues} GridValues
 * @typedef {{level: number, parent: number, is_open: boolean | null}} GridBranch
 *   a row of a tree. `parent`: its row or -1; `is_open`: null for a leaf
 * @typedef {{label: string, hint: string, columns: import("../data.js").Column[],
 *   list: (filter: string, sort: (rows: any[]) => any[], wanted: Selected | null) => any[],
 *   read: (row: any) => GridValues, follows: (selected: Selected | null) => boolean,
 *   is_selected: (selected: Selected | null, row: any) => boolean,
 *   is_bad?: (row: any) => boolean, pick: (row: any) => Selected, toggle?: (row: any) => unknown}} GridView
 *   `list`: the rows to show; what hides the wanted one is opened. `follows`: whether a
 *   selection is about any row, `is_selected`: about this one. `is_bad`: whether it is shown in red. `pick`: what a row selects. `toggle`: opens or closes a row
 */

/** Shows rows; owns which there are, their order, and the one that the keys act on. */
class Grid {
  /** @type {any[]} */ rows = [];
  /** The row that the keys act on. */ active = 0;
  /** Where it was scrolled to when it was drawn. */ drawn = 0;
  /** Whether it was told to scroll while out of sight. */ is_late = false;
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
    this.input = make("input", { type: "search", placeholder: hint, oninput: () => this.show(0) });
    this.status = make("span", { role: "status" });
    this.head = make_head(columns, ({ currentTarget }) => this.sort_by(currentTarget));
    this.body = make("div", { role: "rowgroup" });
    this.element = make("div", {
      class: "mm-grid", role: toggle ? "treegrid" : "grid", "aria-label": label, tabindex: 0,
      style: style_columns(columns), onkeydown: (event) => press_in_grid(this, event),
      onscroll: () => Math.abs(this.element.scrollTop - this.drawn) > 150 && this.draw(),
    }, this.head, this.body);
    const copier = make("button", { onclick: () => this.copy() }, "Copy as CSV");
    const bar = make("div", { class: "mm-grid-bar" }, this.input, this.status, copier);
    parent.append(bar, this.element);
  }

  is_marked = (/** @type {any} */ row) => this.view.is_selected(this.selection.current, row);

  /** List the rows anew. @param {number} at the active one @param {Selected | null} wanted */
  show(at, wanted = null) {
    this.rows = this.view.list(this.input.value, this.sort, wanted);
    this.status.textContent = `${this.rows.length} rows`;
    this.body.style.height = `${this.rows.length * GRID_ROW}px`;
    this.go(wanted ? this.rows.findIndex(this.is_marked) : at);
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
      "data-bad": this.view.is_bad?.(row) ?? false,
      "data-active": at === this.active, "aria-selected": `${is_marked}`, "aria-rowindex": at + 2,
      "aria-level": row.level ?? false, "aria-expanded": row.is_open?.toString() ?? false,
      onclick: ({ target }) => {
        if (!getSelection().isCollapsed) return;
        this.active = at;
        this.choose(target.matches("i"));
      },
    }, ...make_cells(this.view.columns, this.view.read(row), row.level));
  }

  /** Select the active row, or open or close it. @param {boolean} is_turn */
  choose(is_turn) {
    const { rows, active, view } = this;
    if (!is_turn) return this.selection.select(view.pick(rows[active]), this.element);
    view.toggle(rows[active]);
    this.show(active);
  }

  /** Sort one way, then the other, then not. @param {any} cell of the head */
  sort_by(cell) {
    const key = cell.textContent;
    const direction = { ascending: -1, descending: 0 }[cell.ariaSort] ?? 1;
    for (const other of this.head.children) other.ariaSort = "none";
    if (direction) cell.ariaSort = direction > 0 ? "ascending" : "descending";
    const read = (row) => this.view.read(row)[key];
    this.sort = (some) => (direction ? sort_rows(some, read, direction) : some);
    this.show(0);
  }

  /** Copy, or save where the browser lets nothing be copied. */
  async copy() {
    const { columns, read, label } = this.view;
    const names = columns.map(({ name }) => name);
    const cells = this.rows.map(read).map((values) => names.map((name) => values[name]));
    const csv = format_csv([names, ...cells]);
    try {
      await navigator.clipboard.writeText(csv);
      this.status.textContent = "copied";
    } catch {
      save_file(new Blob([csv]), `${label}.csv`);
    }
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

  /** While out of sight it could not scroll to where it was told to. */
  resize = () => {
    if (this.is_late) this.go(this.active);
    else this.draw(this.drawn);
    this.is_late &&= !this.element.clientHeight;
  };
}

/** Do what a key stands for. @param {Grid} grid @param {KeyboardEvent} event */
function press_in_grid(grid, event) {
  const { key } = event;
  const { rows, active, selection, element, view } = grid;
  const row = rows[active];
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  if (key === "Escape") selection.select(null);
  else if (event.target !== element || !rows.length) return;
  else if (key in GRID_STEPS) grid.go(active + GRID_STEPS[key]);
  else if (key === "Enter" || key === " ") grid.choose(false);
  else if (!view.toggle || !key.startsWith("Arrow")) return;
  else if (row.is_open === (key === "ArrowLeft")) grid.choose(true);
  else if (key === "ArrowLeft") grid.go(row.parent < 0 ? active : row.parent);
  else if (row.is_open) grid.go(active + 1);
  event.preventDefault();
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
  const columns = view.columns.filter(({ is_hidden }) => !is_hidden);
  const grid = new Grid(parent, selection, { ...view, columns });
  selection.subscribe(grid.follow);
  new ResizeObserver(grid.resize).observe(grid.element);
  grid.show(0);
}
