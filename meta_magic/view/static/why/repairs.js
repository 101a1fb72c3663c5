// Repairs of a failed cell, each to be copied or put into a new cell.

import { copy_text, make } from "../dom.js";
import { make_line_link } from "./chain.js";

/**
 * @typedef {{diff: string, cell: string, source: string, consequence: string}} Repair
 *   `diff`: a row for each line that is there before or after, headed by `@@ -7`; `cell`: the
 *   earlier cell or the file that is changed, or ""; `source`: the whole cell, repaired; "" if
 *   it is none
 * @typedef {((source: string) => boolean) | null} MakeCell
 *   makes a new cell below that of the report, and says whether it could
 */

const KINDS_OF_ROWS = { "-": "mm-less", "+": "mm-more" };

async function copy_repair(/** @type {string} */ source) {
  return await copy_text(source) ? "copied: paste it into a new cell" : "this browser lets nothing be copied";
}

/**
 * A diff with no more indentation than it needs, each change with its line.
 * @param {string} diff @param {string} cell @param {import("./chain.js").ShowLine} show_line
 */
function make_diff(diff, cell, show_line) {
  const rows = diff.split("\n");
  const texts = rows.filter((row) => KINDS_OF_ROWS[row[0]] && row.slice(1).trim());
  const indent = Math.min(...texts.map((row) => row.slice(1).search(/\S/)));
  return make("pre", {}, ...rows.flatMap((row) => {
    const line = Number(row.match(/^@@ -(\d+)/)?.[1]);
    const where = cell ? `${cell}, line ${line}` : make_line_link(line, show_line);
    return [line ? where : make("span", { class: KINDS_OF_ROWS[row[0]] ?? false },
      `${row[0]} ${row.slice(1 + indent)}`), "\n"];
  }));
}

/** @param {Repair} repair @param {number} i @param {import("./chain.js").ShowLine} show_line @param {MakeCell} make_cell */
function make_repair({ diff, cell, source, consequence }, i, show_line, make_cell) {
  const said = make("span", { role: "status" });
  const press = (text, act) => make("button", {
    type: "button", class: "mm-button", title: `%meta repair ${i + 1} puts it into a new cell`,
    onclick: async () => { said.textContent = await act(); },
  }, text);
  const put = () => (make_cell(source) ? "it is in a new cell below" : copy_repair(source));
  return make("li", {}, consequence, make_diff(diff, cell, show_line),
    ...make_cell && source ? [press("New cell below", put)] : [],
    ...source ? [press("Copy", () => copy_repair(source)), said] : []);
}

/**
 * The repairs that ran; there are some.
 * @param {Repair[]} repairs @param {import("./chain.js").ShowLine} show_line
 * @param {MakeCell} make_cell
 */
export function make_repairs(repairs, show_line, make_cell) {
  return make("div", {}, "Repairs that ran",
    make("ol", { class: "mm-repairs" }, ...repairs.map((repair, i) => make_repair(repair, i, show_line, make_cell))));
}
