// The positions of things in the whole picture, and which of them are in sight.

import { find_insets } from "./layout.js";

/**
 * @typedef {{thing: any, x: number, y: number, level: number}} Spot
 *   `thing`: a node or a wire of `layout.js`; `level`: how many boxes it is in
 */

/**
 * What is laid out, with its position in the whole; what is in a box comes after it.
 * @returns {Spot[]}
 */
export function list_spots({ nodes, wires }, is_across, x = 0, y = 0, level = 1, spots = []) {
  for (const thing of wires) spots.push({ thing, x, y, level });
  for (const thing of nodes) {
    const [left, top, inner] = [x + thing.x, y + thing.y, thing.inner];
    spots.push({ thing, x: left, y: top, level });
    if (!inner) continue;
    const [before, above, after] = find_insets(inner, is_across);
    list_spots(inner, is_across, left + (thing.w - inner.w + before - after) / 2, top + above, level + 1, spots);
  }
  return spots;
}

/** Whether a part of a node or wire is in sight. */
export function is_in_sight({ thing, x, y }, view) {
  const { left = 0, top = 0, right = thing.w, bottom = thing.h } = thing;
  return x + left < view.x + view.w && x + right > view.x
    && y + top < view.y + view.h && y + bottom > view.y;
}
