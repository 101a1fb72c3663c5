// Columns side by side, where layers from top to bottom would make a tower. Touches no
// document.

import { LAYER_GAP } from "./routes.js";

const WIDE = 2.2; // width of a picture by its height, as views have it
const TALL = 400; // pixels: what is lower stays one column
const LONG = 1000; // from left to right: what is shorter stays one row
const LOW = 100; // pixels: a column is higher, and so has more than one box
const WORTH = 0.9; // of the room that fewer columns take: more columns take less

/** @typedef {import("./layout.js").ViewNode} ViewNode */

/**
 * Cut layers into the columns that take least room in a view, only where one value alone leads
 * on to the next layer.
 * @param {ViewNode[][]} layers
 * @param {(layers: ViewNode[][]) => number} measure_width of a column
 * @param {number[]} heights of each layer
 * @param {boolean} is_across
 *   whether the columns will be turned to rows
 * @returns {number[]} where the columns begin
 */
export function cut_columns(layers, measure_width, heights, is_across = false) {
  const add_up = (first, end = heights.length) =>
    heights.slice(first, end).reduce((sum, h) => sum + h + LAYER_GAP, 0);
  const cuts = layers.flatMap((layer, i) => (is_cut_after(layer, layers[i + 1]) ? [i + 1] : []));
  const ratio = is_across ? 1 / WIDE : WIDE;
  const is_short = add_up(0) < (is_across ? LONG : TALL);
  let [best, least] = [[0], Infinity];
  for (let [limit, tallest] = [add_up(0), 0]; ; limit = tallest - 1) {
    const starts = [0];
    cuts.forEach((cut, i) => { if (add_up(starts.at(-1), cuts[i + 1]) > limit) starts.push(cut); });
    const columns = starts.map((first, i) => [first, starts[i + 1] ?? layers.length]);
    const sums = columns.map(([first, end]) => add_up(first, end));
    tallest = Math.max(...sums);
    const width = columns.reduce((sum, [first, end]) => sum + measure_width(layers.slice(first, end)), 0);
    const room = Math.max(tallest, width / ratio);
    if (room < WORTH * least && (starts.length < 2 || Math.min(...sums) > LOW)) [best, least] = [starts, room];
    if (is_short || tallest > limit) break;
  }
  return best;
}

/** Whether a single value leaves a layer, and is read in the next one. */
function is_cut_after(layer, below) {
  const leading = layer.filter(({ down }) => down.length);
  return Boolean(below) && leading.length === 1 && leading[0].kind !== ""
    && below.every(({ kind, up }) => kind !== "" || up[0] === leading[0]) && leading[0].leaving.length === 1;
}
