// What differs from another design: a sentence, a list of changes, and marks of modules.

import { list_path } from "./data.js";
import { make } from "./dom.js";

/**
 * @typedef {{text: string, above: string, previous: string, next: string}} Removed as `designs/differences.py` writes it
 * @typedef {{text: string, changes: string[], marks: Record<string, string>, removed: Removed[]}} Difference
 *   the same; `marks`: the kind of change by the name of a module
 */

/** Mark the modules of a trace that changed, and where some were. @param {import("./data.js").TraceView} trace @param {Difference} difference */
export function mark_modules(trace, { marks, removed }) {
  const index_by_name = new Map(trace.modules.map(({ index }) => {
    const path = list_path(trace, index).map((i) => trace.modules[i].name).filter(Boolean);
    return [path.reverse().join("."), index];
  }));
  const find = (/** @type {string} */ name) => index_by_name.get(name) ?? -1;
  trace.marks = new Map(Object.entries(marks).map(([name, kind]) => [find(name), kind]));
  trace.removed = removed.map(({ text, ...places }) => ({ text, places: ["above", "previous", "next"].map((one) => find(places[one])) }));
  for (const index of [...trace.marks.keys(), ...trace.removed.map(({ places }) => places[0])]) {
    for (const above of index < 0 ? [] : list_path(trace, index)) {
      if (!trace.marks.has(above)) trace.marks.set(above, "below");
    }
  }
}

/**
 * The kind of change of some modules, as "added" or "changed"; of closed ones also "below", for a
 * change in them; false for none.
 * @param {import("./data.js").TraceView} trace @param {number[]} modules @param {boolean} is_closed
 */
export function find_mark(trace, modules, is_closed) {
  const kinds = modules.map((i) => trace.marks.get(i));
  const kind = kinds.every((one) => one === kinds[0]) ? kinds[0] : "below";
  if (!kind || (kind === "below" && !is_closed)) return false;
  return ["added", "below"].includes(kind) ? kind : "changed";
}

/** The changes as a list that opens. @param {string[]} changes @param {boolean} is_open */
export const list_changes = (changes, is_open) => changes.length > 0 && make("details", { class: "mm-changes", open: is_open },
  make("summary", {}, changes.length === 1 ? "1 change" : `${changes.length} changes`),
  make("ul", {}, ...changes.map((line) => make("li", {}, line))));

/** The sentence and the changes. @param {Difference} difference */
export const make_difference = ({ text, changes }) => make("div", { class: "mm-difference" },
  make("p", {}, "compared: ", text), list_changes(changes, false));
