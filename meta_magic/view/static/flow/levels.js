// How deep boxes are open: level by level, as deep as can be read at once. Touches no
// document, so that node can test it.

import { walk } from "./items.js";
import { arrange, forget_layout } from "./layout.js";

const FEW_MODULES = 3; // so many show what a model is made of, even if they do not fit
const MOST_SHOWN = 200; // more do not fit any view
const FEW_SHOWN = 10; // items: where fewer are in sight, a box is opened for a smaller share
const LEAST_BLOCKS = 3; // a run of fewer blocks stays closed
const [MAIN_SHARE, SOME_SHARE] = [0.75, 0.2]; // of all parameters: a box that holds more is opened

/** @typedef {import("./items.js").Item} Item */

const is_box = ({ kind }) => kind === "module" || kind === "run" || kind === "turn";

/** Whether a box opens with its level; parts and rests of runs do not. */
const is_opened = ({ kind, parent }) => kind !== "part" && !(kind === "run" && parent.kind === "run");

/** The number of levels of boxes in a box. @param {Item} box @returns {number} */
const count_nested = (box) => box.items.reduce((most, item) =>
  (is_box(item) && is_opened(item) ? Math.max(most, 1 + count_nested(item)) : most), 0);

/** By their root. @type {WeakMap<Item, number>} */
const counted_levels = new WeakMap();

/**
 * How many levels of boxes hold others. One level more opens those that hold operators or
 * functions alone, as leaf modules do, and another one the functions.
 * @param {Item} root
 */
export function count_levels(root) {
  if (!counted_levels.has(root)) counted_levels.set(root, Math.max(0, count_nested(root) - 1));
  return counted_levels.get(root);
}

/** The least level, with all closed, and the most, with all open. @param {Item} root */
export function find_bounds(root) {
  const last = count_levels(root);
  const has_functions = walk(root).some(({ kind }) => kind === "function");
  return [root.items.some(is_box) ? 0 : last + 1, last + 1 + Number(has_functions)];
}

/**
 * Open the boxes in a box down to a level, and close all others. Of a module's calls the
 * first is opened: the steps of a loop look alike.
 * @param {Item} root @param {number} n_levels
 * @param {boolean} has_runs whether runs are opened, too
 */
export function open_levels(root, n_levels, has_runs = true) {
  const last = count_levels(root);
  const called = new Set();
  const visit = (box, level) => {
    const own = box.kind === "function" ? last + 2 : box.items.some(is_box) ? level : last + 1;
    const is_again = called.has(box.module);
    if (box.call >= 0) called.add(box.module);
    const is_open = is_opened(box) && !is_again && own <= n_levels && (has_runs || box.kind !== "run");
    if (box.is_open !== is_open || box.is_sample) forget_layout(box.parent);
    box.is_open = is_open;
    box.is_sample = false;
    for (const item of box.items) if (item.kind !== "op") visit(item, level + 1);
  };
  for (const item of root.items) if (item.kind !== "op") visit(item, 1);
}

/** The items in sight. @param {Item} box @returns {Item[]} */
const list_shown = (box) => (box.is_sample ? box.items[0] : box).items
  .flatMap((item) => (item.is_open ? list_shown(item) : [item]));

/** How many items are in sight. @param {Item} root */
export const count_shown = (root) => list_shown(root).length;

const count_modules = (items) => {
  const modules = new Set(items.map(({ module }) => module));
  modules.delete(-1); // of operators
  return modules.size;
};

/**
 * Open as many levels as fit, and at least so many that there is something to be seen. Unless
 * all fit, runs stay closed.
 * @param {import("./boxes.js").Boxes} boxes
 * @param {(size: {w: number, h: number}) => boolean} fits whether a picture can be read whole
 * @returns {number} the levels that are open
 */
export function open_what_fits(boxes, fits) {
  const { root } = boxes;
  const last = count_levels(root);
  const has_room = () => list_shown(root).length <= MOST_SHOWN && fits(arrange(boxes, root));
  open_levels(root, last);
  if (has_room()) return last;
  let level = 0;
  open_levels(root, level);
  while (level < last) {
    const shown = list_shown(root);
    // Of several models their connections matter more than their insides.
    const is_one = level || count_modules(root.items.filter(({ items }) => items.some(is_box))) < 2;
    const has_few = is_one && count_modules(shown) < FEW_MODULES;
    open_levels(root, level + 1, false);
    if (shown.every(({ is_open }) => !is_open) || !has_few && !has_room()) break;
    level += 1;
  }
  open_levels(root, level, false);
  return level;
}

/** How many blocks a run has, by its operators. @param {Item} run */
const count_blocks = ({ n_ops, items }) => n_ops / items[0].n_ops;

/** Whether a run has so many blocks that one of them is shown for all. @param {Item} item */
const has_blocks = (item) => item.kind === "run" && count_blocks(item) >= LEAST_BLOCKS;

/** Open a box, or the first block of a run; or close it. @param {Item} box */
function set_open(box, is_open = true) {
  const block = box.kind === "run" ? box.items[0] : box;
  box.is_open = block.is_open = is_open;
  box.is_sample = is_open && block !== box;
  forget_layout(block);
}

/** How many boxes one stands for: the blocks of all runs that it is in. @param {Item} box @returns {number} */
const count_repeats = (box) => (box ? (box.kind === "run" ? count_blocks(box) : 1) * count_repeats(box.parent) : 1);

/** Returns how many parameters all that a box stands for has. @param {import("./boxes.js").Boxes} boxes */
const count_params = ({ trace: { modules } }) => (/** @type {Item} */ item) =>
  (modules[item.module]?.n_params ?? 0) * count_repeats(item);

/**
 * Open nothing but what leads to a block of a run: of the run with most parameters of which a
 * block can be shown.
 * @param {import("./boxes.js").Boxes} boxes
 * @param {(size: {w: number, h: number}) => boolean} fits
 * @returns {number} the levels that are open
 */
export function open_block(boxes, fits) {
  const { root } = boxes;
  const count = count_params(boxes);
  const runs = walk(root).filter((item) => has_blocks(item) && is_opened(item));
  for (const run of runs.sort((a, b) => count(b) - count(a))) {
    open_levels(root, 0);
    for (let box = run.parent; box !== root; box = box.parent) box.is_open = true;
    set_open(run);
    if (fits(arrange(boxes, root))) return 1;
  }
  open_levels(root, 1, false);
  return 1;
}

/**
 * Open the boxes that hold most parameters, and show the inside of one block of runs, the largest
 * first, each as long as all fits.
 * @param {import("./boxes.js").Boxes} boxes
 * @param {(size: {w: number, h: number}) => boolean} fits
 * @returns {boolean} whether a block of a run is open
 */
export function open_main(boxes, fits) {
  const { root, trace: { modules, roots } } = boxes;
  const all = roots.reduce((sum, index) => sum + modules[index].n_params, 0);
  const count = count_params(boxes);
  const tried = new Set();
  let has_block = walk(root).some((item) => item.is_open && has_blocks(item));
  const is_main = (item) => !tried.has(item) && item.module >= 0 && (item.kind === "run"
    ? has_blocks(item)
    : item.items.some(is_box) && count(item) > (count_shown(root) < FEW_SHOWN ? SOME_SHARE : MAIN_SHARE) * all);
  for (let item; ([item] = list_shown(root).filter(is_main).sort((a, b) => count(b) - count(a))).length;) {
    tried.add(item);
    set_open(item);
    if (!fits(arrange(boxes, root))) set_open(item, false);
    else has_block ||= item.is_sample;
  }
  return has_block;
}
