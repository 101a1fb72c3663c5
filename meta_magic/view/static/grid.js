// A table of any length: rows of one height, of which only those in sight are drawn.

import { fill, format_shape, make, save_file, shorten_dtype } from "./dom.js";

// In pixels, as in tables.css.
const GRID_ROW = 24;
// Rows drawn above and below.
const GRID_SPARE = 12;
const GRID_STEPS = {
  ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity,
};

/**
 * @typedef {import("./selection.js").Selected} Selected
 * @typedef {Record<string, string | number>} GridValues
 *   of a row, by column, in their order; an empty text for none
 * @typedef {{level: number, parent: number, is_open: boolean | null}} GridBranch
 *   a row of a tree. `parent`: its row or -1; `is_open`: null for a leaf
 * @typedef {{label: string, hint: string, formats: Record<string, (value: any) => string>,
 *   list: (filter: string, sort: (rows: any[]) => any[], wanted: Selected | null) => any[],
 *   read: (row: any) => GridValues, follows: (selected: Selected | null) => boolean,
 *   is_selected: (selected: Selected | null, row: any) => boolean,
 *   pick: (row: any) => Selected, toggle?: (row: any) => unknown}} GridView
 *   `formats`: of values that are not shown as they are; the columns' widths are in tables.css.
 *   `list`: the rows to show; what hides the wanted one is opened. `follows`: whether a
 *   selection is about any row, `is_selected`: about this one. `pick`: what a row selects. `toggle`: opens or closes a row
 */

const { compare: compare_texts } = new Intl.Collator("en", { numeric: true });

/** Tensors, as in `(2, 3) f32`. @param {import("./data.js").Geometry[]} tensors */
export const list_tensors = (tensors) =>
  tensors.map(({ shape, dtype }) => `${format_shape(shape)} ${shorten_dtype(dtype)}`).join(", ");

/**
 * Return the test of whether a text of small letters has each word of a filter.
 * @param {string} filter @returns {(text: string) => boolean}
 */
export function make_filter(filter) {
  // A number is found whole: `layers.1` is not in `layers.10`.
  const words = filter.toLowerCase().trim().split(/\s+/).map((word) =>
    new RegExp(word.replace(/\W/g, "\\$&") + (/\d$/.test(word) ? "(?!\\d)" : "")));
  return (text) => words.every((word) => word.test(text));
}

/**
 * Return rows in the order of a column, where equal as before; empty texts last.
 * @param {any[]} rows @param {(row: any) => any} read @param {number} direction 1 or -1
 */
export function sort_rows(rows, read, direction) {
  const values = rows.map(read);
  // Each text is compared once, not for each row that has it.
  const distinct = [...new Set(values)].sort((a, b) => a - b || compare_texts(a, b));
  const ranks = new Map(distinct.map((value, rank) => [value, rank * direction]));
  ranks.set("", Infinity);
  const ranked = rows.map((row, at) => [ranks.get(values[at]), row]);
  return ranked.sort(([a], [b]) => a - b).map(([, row]) => row);
}

/** Rows as CSV, quoted as RFC 4180 has it. @param {(string | number)[][]} rows */
export const format_csv = (rows) => rows
  .map((row) => row.map((value) => `"${String(value).replaceAll('"', '""')}"`).join())
  .join("\r\n");

/**
 * Show a table, and above it a filter.
 * @param {HTMLElement} parent @param {import("./selection.js").Selection} selection
 * @param {GridView} view
 */
export function mount_grid(parent, selection, view) {
  const { label, hint, formats, list, read, follows, is_selected, pick, toggle } = view;
  let sort = (some) => some;
  let rows = list("", sort, null);
  if (!rows.length) return parent.append(`${label}: none in this trace.`);
  // The row that the keys act on.
  let active = 0;
  // Where it was scrolled to when it was drawn.
  let drawn = 0;
  // Whether it was told to scroll while out of sight.
  let is_late = false;

  const names = Object.keys(read(rows[0]));
  const input = make("input", { type: "search", placeholder: hint, oninput: () => show(0) });
  const status = make("span", { role: "status" });
  const copier = make("button", { onclick: copy }, "Copy as CSV");
  const head = make("div", { role: "row" }, ...names.map((key) =>
    make("div", { role: "columnheader", onclick: sort_by }, make("button", {}, key))));
  const body = make("div", { role: "rowgroup" });
  const element = make("div", {
    class: "mm-grid", role: toggle ? "treegrid" : "grid", "aria-label": label, tabindex: 0,
    onkeydown: press, onscroll: () => Math.abs(element.scrollTop - drawn) > 150 && draw(),
  }, head, body);

  const is_marked = (row) => is_selected(selection.current, row);

  /** List the rows anew. */
  function show(at, wanted = null) {
    rows = list(input.value, sort, wanted);
    status.textContent = `${rows.length} rows`;
    body.style.height = `${rows.length * GRID_ROW}px`;
    go(wanted ? rows.findIndex(is_marked) : at);
  }

  /** Make a row the active one, in sight. */
  function go(at) {
    active = Math.max(0, Math.min(at, rows.length - 1));
    const top = active * GRID_ROW;
    const low = top - element.clientHeight + 2 * GRID_ROW;
    element.scrollTop = Math.min(top, Math.max(element.scrollTop, low));
    draw();
  }

  function draw(top = element.scrollTop) {
    element.scrollTop = drawn = top;
    const start = Math.max(0, Math.floor(drawn / GRID_ROW) - GRID_SPARE);
    const end = start + element.clientHeight / GRID_ROW + 2 * GRID_SPARE;
    body.replaceChildren(...rows.slice(start, end).map((row, i) => make_row(row, start + i)));
    body.style.paddingTop = `${start * GRID_ROW}px`;
    const focused = `${parent.id}-${active}`;
    fill(element, { "aria-rowcount": rows.length + 1, "aria-activedescendant": focused });
  }

  function make_row(row, at) {
    const cells = Object.entries(read(row)).map(([key, value]) => {
      const text = value === "" ? "" : (formats[key] ?? String)(value);
      const style = key === "FLOPs" && `--mm-share: ${text}`;
      return make("div", { role: "gridcell", title: value, style }, text);
    });
    if (row.level) cells[0].prepend(make("i", { style: `margin-left: ${Math.min(14 * row.level - 14, 98)}px` }));
    return make("div", {
      role: "row", id: `${parent.id}-${at}`, class: is_marked(row) && "mm-selected",
      "data-active": at === active, "aria-selected": `${is_marked(row)}`, "aria-rowindex": at + 2,
      "aria-level": row.level ?? false, "aria-expanded": row.is_open?.toString() ?? false,
      onclick: ({ target }) => {
        if (!getSelection().isCollapsed) return;
        active = at;
        choose(target.matches("i"));
      },
    }, ...cells);
  }

  /** Select the active row, or open or close it. */
  function choose(is_turn) {
    if (!is_turn) return selection.select(pick(rows[active]), element);
    toggle(rows[active]);
    show(active);
  }

  /** Sort one way, then the other, then not. */
  function sort_by({ currentTarget: cell }) {
    const key = cell.textContent;
    const direction = { ascending: -1, descending: 0 }[cell.ariaSort] ?? 1;
    for (const other of head.children) other.ariaSort = "none";
    if (direction) cell.ariaSort = direction > 0 ? "ascending" : "descending";
    sort = (some) => (direction ? sort_rows(some, (row) => read(row)[key], direction) : some);
    show(0);
  }

  function press(event) {
    const { key } = event;
    const row = rows[active];
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (key === "Escape") selection.select(null);
    else if (event.target !== element || !rows.length) return;
    else if (key in GRID_STEPS) go(active + GRID_STEPS[key]);
    else if (key === "Enter" || key === " ") choose(false);
    else if (!toggle || !key.startsWith("Arrow")) return;
    else if (row.is_open === (key === "ArrowLeft")) choose(true);
    else if (key === "ArrowLeft") go(row.parent < 0 ? active : row.parent);
    else if (row.is_open) go(active + 1);
    event.preventDefault();
  }

  /** Copy, or save where the browser lets nothing be copied. */
  async function copy() {
    const csv = format_csv([names, ...rows.map((row) => Object.values(read(row)))]);
    try {
      await navigator.clipboard.writeText(csv);
      status.textContent = "copied";
    } catch {
      save_file(new Blob([csv]), `${label}.csv`);
    }
  }

  selection.subscribe((selected, source) => {
    if (source === element || !follows(selected)) return draw();
    is_late = !element.clientHeight;
    show(0, selected);
    if (rows.some(is_marked)) return;
    const filter = input.value;
    input.value = "";
    show(0, selected);
    if (rows.some(is_marked)) return;
    input.value = filter;
    show(0);
  });
  // While out of sight it could not scroll to where it was told to.
  new ResizeObserver(() => {
    if (is_late) go(active);
    else draw(drawn);
    is_late &&= !element.clientHeight;
  }).observe(element);
  parent.append(make("div", { class: "mm-grid-bar" }, input, status, copier), element);
  show(0);
}
