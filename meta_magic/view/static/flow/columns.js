// Columns side by side, where layers from top to bottom would make a tower. Touches no
// document.

import { LAYER_GAP } from "./routes.js";

/** Width of a picture by its height, as most views have it. */
export const WIDE = 2.2;
const TALL = 400; // pixels: what is lower stays one column
const LONG = 1000; // from left to right: what is shorter stays one row
const LOW = 100; // pixels: a column is higher, and so has more than one box
const WORTH = 0.9; // of the room that fewer columns take: more columns take less
const FEW_WIRES = 3; // that lead from a column to the next
const MUCH_WORTH = 0.8; // of the room: columns that several wires connect take less

/** @typedef {import("./layout.js").ViewNode} ViewNode */

/**
 * Cut layers into the columns that take least room in a view: where one value alone leads on to
 * the next layer, and where a few do, if that saves much.
 * @param {ViewNode[][]} layers
 * @param {(layers: ViewNode[][]) => number} measure_width of a column
 * @param {number[]} heights of each layer
 * @param {boolean} is_across
 *   whether the columns will be turned to rows
 * @param {number} [wide] width of a picture by its height; 0 for one column
 * @returns {number[]} where the columns begin
 */
export function cut_columns(layers, measure_width, heights, is_across = false, wide = WIDE) {
  const add_up = (first, end = heights.length) =>
    heights.slice(first, end).reduce((sum, h) => sum + h + LAYER_GAP, 0);
  const ratio = is_across ? 1 / wide : wide;
  if (!wide || add_up(0) < (is_across ? LONG : TALL)) return [0];
  const counts = layers.slice(0, -1).map(count_leading);
  const find_best = (n_wires) => {
    const cuts = counts.flatMap((n, i) => (n && n <= n_wires ? [i + 1] : []));
    let [best, least] = [[0], Infinity];
    for (let limit = add_up(0); ;) {
      const starts = [0];
      cuts.forEach((cut, i) => { if (add_up(starts.at(-1), cuts[i + 1]) > limit) starts.push(cut); });
      const columns = starts.map((first, i) => [first, starts[i + 1] ?? layers.length]);
      const sums = columns.map(([first, end]) => add_up(first, end));
      const tallest = Math.max(...sums);
      if (tallest > limit) return { best, least };
      const width = columns.reduce((sum, [first, end]) => sum + measure_width(layers.slice(first, end)), 0);
      const room = Math.max(tallest, width / ratio);
      if (room < WORTH * least && (starts.length < 2 || Math.min(...sums) > LOW)) [best, least] = [starts, room];
      limit = tallest - 1;
    }
  };
  const [one, few] = [1, FEW_WIRES].map(find_best);
  return few.least < MUCH_WORTH * one.least ? few.best : one.best;
}

/** How many wires lead on from a layer. */
const count_leading = (layer) => layer.filter(({ down }) => down.length)
  .reduce((sum, { kind, leaving }) => sum + (kind ? leaving.length : 1), 0);
