// Finding operators, functions and modules in the flow by their names.

import { walk } from "./items.js";

/** The items whose names contain a text. @param {import("./boxes.js").Boxes} boxes @param {string} query */
function find_items({ root, trace }, query) {
  return walk(root).filter(({ kind, op, module, title }) => {
    if (op >= 0 && trace.signature(op).op.toLowerCase().includes(query)) return true;
    if (["op", "function"].includes(kind)) return title.toLowerCase().includes(query);
    const { fqn, class_name } = trace.modules[module] ?? {};
    return kind === "module" && `${fqn} ${class_name}`.toLowerCase().includes(query);
  });
}

/**
 * Go to the next item whose name contains the text of the search box.
 * @param {import("./flow.js").Flow} flow @param {KeyboardEvent} event in the search box
 */
export function search_flow(flow, { key, shiftKey, target }) {
  const { value } = /** @type {HTMLInputElement} */ (target);
  const query = value.trim().toLowerCase();
  if (key !== "Enter" || !query) return;
  const found = find_items(flow.boxes, query);
  const n = found.length;
  const at = found.indexOf(flow.active);
  const next = (shiftKey ? Math.max(at, 0) + n - 1 : at + 1) % n;
  if (n) {
    flow.reveal(found[next]);
    flow.select(found[next]);
  }
  flow.bar.status.textContent = n ? `${next + 1} of ${n} found` : "nothing found";
}
