// Columns side by side, where layers from top to bottom would make a tower. Touches no
// document.

const WIDE = 2.2; // width of a picture by its height, as views have it
const TALL = 300; // pixels: what is lower stays one column
const LONG = 900; // from left to right: what is shorter stays one row
const LEAST = 0.4; // of a column's height: no column is lower

/** @typedef {import("./layout.js").ViewNode} ViewNode */

/**
 * Cut layers into columns where one wire alone leads on, straight to the next layer.
 * @param {ViewNode[][]} layers
 * @param {number} width of all @param {number[]} heights of each
 * @param {boolean} is_across
 *   whether the columns will be turned to rows
 * @returns {number[]} where the columns begin
 */
export function cut_columns(layers, width, heights, is_across = false) {
  const add_up = (first, end = heights.length) =>
    heights.slice(first, end).reduce((sum, h) => sum + h, 0);
  const height = add_up(0);
  const [least, ratio] = is_across ? [LONG, 1 / WIDE] : [TALL, WIDE];
  const limit = height / (height < least ? 1 : Math.round(Math.sqrt((ratio * height) / width)));
  const starts = [0];
  let cut = 0;
  layers.forEach((layer, i) => {
    const start = starts.at(-1);
    if (cut > start && add_up(start, i + 1) > limit) starts.push(cut);
    const parts = [add_up(starts.at(-1), i + 1), add_up(i + 1)];
    const is_worth = parts.every((part) => part > limit * LEAST);
    if (is_worth && is_cut_after(layer, layers[i + 1])) cut = i + 1;
  });
  return starts;
}

/** Whether a single wire leaves a layer, and leads to the next one. */
function is_cut_after(layer, below) {
  const leading = layer.filter(({ down }) => down.length);
  return Boolean(below) && leading.length === 1 && leading[0].kind !== ""
    && below.every(({ kind }) => kind !== "") && leading[0].leaving.length === 1;
}
