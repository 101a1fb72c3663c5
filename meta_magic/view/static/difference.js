// What differs from another design: a sentence, a list of changes, and marks of modules.

import { list_path } from "./data.js";
import { make } from "./dom.js";

/**
 * @typedef {{text: string, changes: string[], marks: Record<string, string>}} Difference
 *   as `designs/differences.py` writes it; `marks`: the kind of change by the name of a module
 */

/** Mark the modules of a trace that changed. @param {import("./data.js").TraceView} trace @param {Record<string, string>} marks */
export function mark_modules(trace, marks) {
  trace.marks = new Map(trace.modules.flatMap(({ index }) => {
    const path = list_path(trace, index).map((i) => trace.modules[i].name).filter(Boolean);
    const kind = marks[path.reverse().join(".")];
    return kind ? [[index, kind]] : [];
  }));
  for (const index of [...trace.marks.keys()]) {
    for (const above of list_path(trace, index).slice(1)) {
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
