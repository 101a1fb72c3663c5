// The elements of a table: its head, and a row of cells, as the columns say.

import { FORMATS, make } from "../dom.js";

/** What a column is beside its text. @param {import("../data.js").Column} column */
const classify = ({ align, is_pinned }) =>
  `${align === "right" ? "mm-right" : ""} ${is_pinned ? "mm-pinned" : ""}`;

/**
 * How the columns share the room; a second one that is pinned lies beside the first.
 * @param {import("../data.js").Column[]} columns
 */
export function style_columns(columns) {
  const width = columns.reduce((sum, column) => sum + column.width, 0);
  const first = columns[0].width;
  return `--mm-tracks: ${columns.map((column) => `${column.width}fr`).join(" ")};`
    + ` --mm-width: ${width}px; --mm-pin: max(${100 * first / width}%, ${first}px)`;
}

/**
 * The names of the columns, to sort by.
 * @param {import("../data.js").Column[]} columns @param {(event: MouseEvent) => void} onclick
 */
export const make_head = (columns, onclick) =>
  make("div", { role: "row" }, ...columns.map((column) => make("div", {
    role: "columnheader", class: classify(column), title: column.help, onclick,
  }, make("button", {}, column.name))));

/**
 * The cells of a row; those of a tree are indented by its level.
 * @param {import("../data.js").Column[]} columns
 * @param {import("./rows.js").GridValues} values @param {number} [level]
 */
export function make_cells(columns, values, level) {
  const cells = columns.map((column) => {
    const value = values[column.name];
    const text = value === "" ? "" : (FORMATS[column.format] ?? String)(value);
    const style = column.format === "share" && `--mm-share: ${text}`;
    return make("div", { role: "gridcell", class: classify(column), title: value, style }, text);
  });
  if (level) {
    const style = `margin-left: ${Math.min(14 * level - 14, 98)}px`;
    cells[0].prepend(make("i", { style }));
  }
  return cells;
}
