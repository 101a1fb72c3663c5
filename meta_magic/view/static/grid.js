// A table of any length: rows of one height, of which only those in sight are drawn.

import { make } from "./dom.js";

const GRID_ROW = 24; // pixels, as in tables.css
const GRID_HEAD = 28;
const GRID_SPARE = 8; // rows drawn above and below

/**
 * @typedef {{key: string, width: number, kind?: string, help?: string,
 *   is_fixed?: boolean}} GridColumn `kind`: class of its cells; `is_fixed`: not to be sorted by
 * @typedef {{key: string, direction: number} | null} GridSort `direction`: 1 or -1
 * @typedef {[text: string, title?: string, share?: number]} GridCell `share`: of a bar, 0 to 1
 * @typedef {{level: number, parent: number, is_open: boolean | null}} GridBranch
 *   `parent`: row or -1; `is_open`: null for a leaf
 * @typedef {{label: string, columns: GridColumn[], read: (row: number) => GridCell[],
 *   is_marked: (row: number) => boolean, choose: (row: number) => void, leave: () => void,
 *   sort: (by: GridSort) => void, branch?: (row: number) => GridBranch,
 *   toggle?: (row: number) => void}} GridSource
 *   `leave`: on Escape; `branch` and `toggle`: of a tree
 */

let n_grids = 0;

/** A whole number, as in `1,024`. @param {number} n */
export const format_whole = (n) => `${n}`.replace(/\B(?=(\d{3})+$)/g, ",");

export const { compare: compare_texts } = new Intl.Collator("en", { numeric: true });

/**
 * Return the next of a column's three orders: one way, the other, none.
 * @param {GridSort} by @param {string} key @param {number} first @returns {GridSort}
 */
export function next_sort(by, key, first) {
  if (by?.key !== key) return { key, direction: first };
  return by.direction === first ? { key, direction: -first } : null;
}

/**
 * Make the line above a grid: a filter, and room for words.
 * @param {string} hint @param {() => void} filter
 */
export function make_grid_bar(hint, filter) {
  const names = { placeholder: hint, "aria-label": hint, title: hint };
  const input = make("input", { type: "search", ...names });
  const status = make("span", { role: "status" });
  input.addEventListener("input", filter);
  return { input, status, bar: make("div", { class: "mm-grid-bar" }, input, status) };
}

/** @param {GridSource} source */
export function make_grid(source) {
  const { label, columns, read, is_marked, choose, leave, branch, toggle } = source;
  const id = `mm-grid-${(n_grids += 1)}`;
  const cells = columns.map(make_header);
  const head = make("div", { role: "row", class: "mm-grid-row", "aria-rowindex": 1 }, ...cells);
  const body = make("div", { role: "rowgroup" });
  const element = make("div", {
    class: "mm-grid", role: branch ? "treegrid" : "grid", tabindex: 0, "aria-label": label,
    "aria-multiselectable": "true",
  }, make("div", { role: "rowgroup", class: "mm-grid-head" }, head), body);
  let n_rows = 0;
  let active = 0; // the row that the keys act on; -1 is the header
  let column = 0; // of the header
  /** @type {Map<number, HTMLElement>} */
  let lines = new Map(); // by row
  let height = 0;
  /** @type {GridSort} */
  let by = null;

  /** Draw anew: other rows, or other marks. */
  function show(/** @type {number} */ n) {
    n_rows = n;
    active = Math.min(active, n - 1);
    body.style.height = `${n * GRID_ROW}px`;
    element.setAttribute("aria-rowcount", `${n + 1}`);
    lines.clear();
    paint();
  }

  /** Make a row the active one, in sight. */
  function go(/** @type {number} */ row) {
    active = Math.max(-1, Math.min(row, n_rows - 1));
    const top = Math.max(0, active) * GRID_ROW;
    const room = Math.max(0, element.clientHeight - GRID_HEAD - GRID_ROW);
    element.scrollTop = Math.min(top, Math.max(element.scrollTop, top - room));
    paint();
  }

  function paint() {
    const { scrollTop, clientHeight } = element;
    const start = Math.max(0, Math.floor(scrollTop / GRID_ROW) - GRID_SPARE);
    const end = Math.min(n_rows, Math.ceil((scrollTop + clientHeight) / GRID_ROW) + GRID_SPARE);
    if (end - start !== lines.size || !lines.has(start) || !lines.has(end - 1)) {
      const before = lines;
      lines = new Map();
      for (let row = start; row < end; row += 1) lines.set(row, before.get(row) ?? make_row(row));
      body.replaceChildren(...lines.values());
    }
    element.querySelector(".mm-active")?.classList.remove("mm-active");
    const target = active < 0 ? cells[column] : lines.get(active);
    target?.classList.add("mm-active");
    element.setAttribute("aria-activedescendant", target?.id ?? "");
  }

  function make_row(/** @type {number} */ row) {
    const line = make("div", {
      role: "row", id: `${id}-${row}`, class: "mm-grid-row", "aria-rowindex": row + 2,
      "aria-selected": `${is_marked(row)}`, style: `top: ${row * GRID_ROW}px`,
    }, ...read(row).map(([text, title = text, share], i) => {
      const { kind = "" } = columns[i];
      const cell = make("div", { role: "gridcell", class: kind, dir: "auto", title }, text);
      if (share) cell.classList.add("mm-share");
      if (share) cell.style.setProperty("--mm-share", `${100 * share}%`);
      return cell;
    }));
    if (is_marked(row)) line.classList.add("mm-selected");
    if (branch) {
      const { level, is_open } = branch(row);
      line.setAttribute("aria-level", `${level}`);
      line.style.setProperty("--mm-level", `${level}`);
      if (is_open !== null) line.setAttribute("aria-expanded", `${is_open}`);
      const [name] = line.children;
      name.setAttribute("dir", "ltr"); // the twist stays on the left of any name
      name.replaceChildren(make("i"), make("bdi", {}, name.textContent ?? ""));
    }
    return line;
  }

  /** @param {GridColumn} column @param {number} i */
  function make_header({ key, kind = "", help = key, is_fixed }, i) {
    const edge = make("span", { class: "mm-grid-edge" });
    const cell = make("div", {
      role: "columnheader", id: `${id}-head-${i}`, class: kind, title: help,
    }, make("span", {}, key), edge);
    if (!is_fixed) cell.setAttribute("aria-sort", "none");
    cell.addEventListener("click", () => sort(i));
    edge.addEventListener("click", (event) => event.stopPropagation());
    edge.addEventListener("pointerdown", (event) => {
      const start = event.clientX - cell.offsetWidth;
      edge.setPointerCapture(event.pointerId);
      edge.onpointermove = ({ clientX }) => resize(i, clientX - start);
      edge.onlostpointercapture = () => { edge.onpointermove = null; };
    });
    return cell;
  }

  /** Set a column's width in pixels; the last one takes what room is left. */
  function resize(/** @type {number} */ i, /** @type {number} */ width) {
    const widths = cells.map((cell) => cell.offsetWidth);
    widths[i] = Math.max(GRID_HEAD, width);
    const room = element.clientWidth - widths.reduce((a, b) => a + b);
    widths[widths.length - 1] += Math.max(0, room);
    set_widths(widths);
  }

  /** Share the room by fractions; where there is less, the grid scrolls sideways. */
  function set_widths(/** @type {number[]} */ widths) {
    const tracks = widths.map((width) => `minmax(0, ${width}fr)`);
    // The second column stays in sight of a table, too, and so must know its place.
    if (!branch) tracks[0] = `${widths[0]}px`;
    element.style.setProperty("--mm-first", `${widths[0]}px`);
    element.style.setProperty("--mm-columns", tracks.join(" "));
    element.style.setProperty("--mm-width", `${widths.reduce((a, b) => a + b)}px`);
  }

  function sort(/** @type {number} */ i) {
    const { key, kind, is_fixed } = columns[i];
    if (is_fixed) return;
    // In a tree one looks for what is largest.
    by = next_sort(by, key, branch && kind === "mm-number" ? -1 : 1);
    head.querySelectorAll("[aria-sort]").forEach((cell) => cell.setAttribute("aria-sort", "none"));
    const words = ["descending", "none", "ascending"];
    cells[i].setAttribute("aria-sort", words[1 + (by?.direction ?? 0)]);
    source.sort(by);
  }

  const page = () => Math.max(1, Math.floor(element.clientHeight / GRID_ROW) - 2);
  const is_open = () => branch?.(active).is_open;
  const step = (/** @type {number} */ n) => {
    column = Math.max(0, Math.min(columns.length - 1, column + n));
    cells[column].scrollIntoView({ block: "nearest", inline: "nearest" });
    paint();
  };
  /** @type {Record<string, () => void>} */
  const head_keys = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowDown: () => go(0),
    Enter: () => sort(column), " ": () => sort(column), Escape: leave,
  };
  /** @type {Record<string, () => void>} */
  const row_keys = {
    ArrowDown: () => go(active + 1), ArrowUp: () => go(active - 1),
    PageDown: () => go(active + page()), PageUp: () => go(Math.max(0, active - page())),
    Home: () => go(0), End: () => go(n_rows - 1),
    Enter: () => choose(active), " ": () => choose(active), Escape: leave,
  };
  if (branch) { // Else Left and Right scroll sideways, by themselves.
    row_keys.ArrowRight = () => {
      if (is_open()) go(active + 1);
      else if (is_open() === false) toggle?.(active);
    };
    row_keys.ArrowLeft = () => {
      const { parent } = branch(active);
      if (is_open()) toggle?.(active);
      else if (parent >= 0) go(parent);
    };
  }

  element.addEventListener("keydown", (event) => {
    const act = (active < 0 ? head_keys : row_keys)[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    act();
  });
  body.addEventListener("click", ({ target }) => {
    const at = /** @type {Element} */ (target);
    const line = at.closest("[aria-rowindex]");
    if (!line) return;
    go(Number(line.getAttribute("aria-rowindex")) - 2);
    if (at.matches("[aria-expanded] i")) toggle?.(active);
    else choose(active);
  });
  element.addEventListener("scroll", paint);
  new ResizeObserver(() => {
    // While out of sight it could not scroll to where it was told to.
    if (height) paint();
    else go(active);
    height = element.clientHeight;
  }).observe(element);
  set_widths(columns.map(({ width }) => width));
  return { element, show, go };
}
