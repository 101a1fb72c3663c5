// The elements of a table: its head, and a row of cells, as the columns say.

import { FORMATS, make } from "../dom.js";
import { explain_texts } from "../meanings.js";

const STEP = 16; // pixels by which a key widens a column

/**
 * @typedef {import("../data.js").Column} Column
 * @typedef {{sort: (column: Column) => void,
 *   resize: (column: Column, heading: HTMLElement, change: number) => void,
 *   reset: (column: Column) => void}} HeadActions
 *   `resize`: by how many pixels
 */

/** The CSS classes of a column. @param {Column} column */
const classify = ({ align, is_pinned }) =>
  `${align === "right" ? "mm-right" : ""} ${is_pinned ? "mm-pinned" : ""}`;

/**
 * The edge of a heading, to be dragged.
 * @param {Column} column @param {HeadActions} actions
 */
function make_grip(column, { resize, reset }) {
  const grip = make("span", {
    class: "mm-grip", "aria-hidden": "true", title: "drag to resize, double click to reset",
    onclick: (event) => event.stopPropagation(),
    ondblclick: () => reset(column),
    onpointerdown: (event) => {
      grip.setPointerCapture(event.pointerId);
      event.preventDefault();
    },
    onpointermove: ({ clientX, pointerId }) => {
      if (!grip.hasPointerCapture(pointerId)) return;
      const { right } = grip.parentElement.getBoundingClientRect();
      resize(column, grip.parentElement, clientX - right);
    },
  });
  return grip;
}

/**
 * The name of a column: to sort by it, and to resize it.
 * @param {Column} column @param {HeadActions} actions
 */
export function make_heading(column, actions) {
  const heading = make("div", {
    role: "columnheader", class: classify(column), title: column.help,
    onclick: () => actions.sort(column),
    onkeydown: (event) => {
      const step = { ArrowRight: STEP, ArrowLeft: -STEP }[event.key];
      if (!step) return;
      actions.resize(column, heading, step);
      event.preventDefault();
    },
  }, make("button", {}, column.name), make_grip(column, actions));
  return heading;
}

/**
 * The cells of a row; those of a tree are indented by its level.
 * @param {Column[]} columns
 * @param {import("./rows.js").GridValues} values @param {number | undefined} level
 * @param {import("./grid.js").GridView} view
 */
export function make_cells(columns, values, level, { titles = {}, makes = {} }) {
  const cells = columns.map((column) => {
    const value = values[column.name];
    const text = value === "" ? "" : (FORMATS[column.format] ?? String)(value);
    const style = column.format === "share" && `--mm-share: ${text}`;
    const describe = titles[column.name] ?? (column.format === "marks" ? explain_texts : String);
    const title = value === "" ? "" : describe(value);
    return make("div", { role: "gridcell", class: classify(column), title, style }, ...makes[column.name]?.(values) ?? [text]);
  });
  if (level) {
    const style = `margin-left: ${Math.min(11 * level - 11, 99)}px`;
    cells[0].prepend(make("i", { style }));
  }
  return cells;
}
