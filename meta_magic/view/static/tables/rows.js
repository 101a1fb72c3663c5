// The rows of a table: found, sorted, written. Touches no document.

import { format_shape, shorten_dtype } from "../dom.js";

/**
 * @typedef {Record<string, string | number>} GridValues
 *   of a row, by column; an empty text for none
 * @typedef {import("../data.js").Column} Column
 */

const { compare: compare_texts } = new Intl.Collator("en", { numeric: true });

/** Tensors, as in `(2, 3) f32`. @param {import("../data.js").Geometry[]} tensors */
export const list_tensors = (tensors) =>
  tensors.map(({ shape, dtype }) => `${format_shape(shape)} ${shorten_dtype(dtype)}`).join(", ");

/** The value of a cell: numbers as one text, "" for an absent value. @param {any} value */
const to_cell = (value) => (Array.isArray(value) ? value.filter((n) => n !== null).join(" ") : value ?? "");

/**
 * Add to a row what was sent for its columns; the others are held already.
 * @param {Column[]} columns @param {GridValues} row
 * @param {(column: Column) => any} find the row's value among those that were sent
 */
export function add_sent(columns, row, find) {
  for (const column of columns) if (column.values) row[column.name] = to_cell(find(column));
  return row;
}

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
