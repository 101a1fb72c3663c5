// Builds items, which are operators and boxes: folds repeats, splits long boxes into parts.

const MANY_ITEMS = 150; // items: a box with more is cut into parts
const PART_SIZE = 100; // items

/**
 * @typedef {{kind: "all" | "module" | "run" | "turn" | "part" | "steps" | "function" | "op", op: number, module: number,
 *   call: number, title: string, parent: Item | null, position: number, items: Item[],
 *   latest: Map<number, Item> | null, n_ops: number, last_op: number, is_open: boolean, is_sample: boolean, family: string | null,
 *   arranged: import("./layout.js").Arranged | null,
 *   connected: {key: string, nets: import("./boxes.js").Net[]} | null}} Item
 *   an operator, or a box of items; a `turn` is one of a pattern that repeats in a run; `title`: of a part, of steps, of the call of a function, or of its
 *   one operator, which stands for it; `position`: in its parent; `latest`: boxes by their key,
 *   while boxes are built; `is_sample`: of an open run, whether it shows the inside of its first block for all; `family`, `arranged`, `connected`: kept by families.js and layout.js
 */

/**
 * Make an item, the last one in its parent.
 * @param {Item["kind"]} kind @param {Item | null} parent @returns {Item}
 */
export function make_item(kind, parent = null, more = {}) {
  const item = {
    kind, op: -1, module: -1, call: -1, title: "", parent, position: parent?.items.length ?? 0,
    items: [], latest: null, n_ops: 0, last_op: -1, is_open: false, is_sample: false, family: null, arranged: null,
    connected: null, ...more,
  };
  parent?.items.push(item);
  return item;
}

/**
 * Fold runs, cut what is too long into parts, count; return what replaces the item.
 * @param {Item} item @param {import("./steps.js").Folder} folder of what is no module
 */
export function finish(item, folder) {
  if (item.kind === "op") return item;
  item.items = item.items.map((inner) => finish(inner, folder));
  if (item.kind === "module" || item.kind === "all") item.items = folder.fold(item.items, item.kind === "module");
  const [first, ...others] = item.items;
  if (["run", "turn"].includes(item.kind) && others.length === 0) return first;
  if (item.kind === "function" && others.length === 0) return Object.assign(first, { title: item.title });
  if (item.kind === "run" && others.length > 1) {
    item.items = [first, adopt(make_item("run", null, { items: others }))];
  }
  return adopt(item);
}

/** Set the parent of the items in a box; many items are put into parts first. */
export function adopt(box) {
  const n_items = box.items.length;
  for (let size = PART_SIZE; box.items.length > MANY_ITEMS; size *= PART_SIZE) {
    const all = box.items;
    box.items = [];
    for (let start = 0, first = 1; start < all.length; start += PART_SIZE, first += size) {
      const title = `${first}–${Math.min(n_items, first + size - 1)} of ${n_items}`;
      const items = all.slice(start, start + PART_SIZE);
      box.items.push(adopt(make_item("part", null, { title, items })));
    }
  }
  box.items.forEach((item, position) => {
    Object.assign(item, { parent: box, position });
    box.n_ops += item.n_ops;
    box.last_op = Math.max(box.last_op, item.last_op);
  });
  return box;
}

/** An item and all that is in it. @param {Item} item @param {Item[]} found */
export function walk(item, found = []) {
  found.push(item);
  for (const inner of item.items) walk(inner, found);
  return found;
}

/** Whether an item is a box or in it. */
export const has_inside = (box, item) => item === box || (item !== null && has_inside(box, item.parent));

/** Whether an item is one step: an operator, or a closed function. @param {Item} item */
export const is_leaf = ({ kind, is_open }) => kind === "op" || (kind === "function" && !is_open);
