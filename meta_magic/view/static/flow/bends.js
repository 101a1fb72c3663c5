// Where a graph bends back, as a U-Net does: wires from its first half to its second half
// that nest like brackets, so that both halves can stand side by side. Touches no document.

const UNEVEN = 3; // times that one half may be longer than the other

/** @typedef {import("./layout.js").ViewNode} ViewNode */
/**
 * @typedef {{starts: number[], rows: number[][]}} Bend
 *   `starts`: the first layers of what leads down, up again, and on; `rows`: layers of both
 *   halves that a wire connects side by side, from the bend up
 */

/** The layer of a wire, and the only one that it reaches beyond the next one, if it does. */
function list_skips({ from: { layer }, ends }) {
  const far = new Set(ends.map(({ node }) => node)
    .filter((node) => node.kind !== "out" && node.layer > layer + 1));
  return far.size === 1 ? [[layer, [...far][0].layer]] : [];
}

/**
 * Where connected nodes in layers bend, if they do: what nests begins and ends at nodes
 * that are alone in their layers, as those of a chain are.
 * @param {ViewNode[]} group @returns {Bend | null}
 */
export function find_bend(group) {
  const is_alone = (layer) => group.filter((node) => node.layer === layer).length === 1;
  const skips = group.flatMap(({ leaving }) => leaving.flatMap(list_skips))
    .filter((skip) => skip.every(is_alone));
  let crossing = [];
  for (const [at] of skips) {
    const passing = skips.filter(([from, to]) => from <= at && at < to);
    if (passing.length > crossing.length) crossing = passing;
  }
  crossing.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const rows = [];
  for (const skip of crossing) {
    const [from, to] = rows.at(-1) ?? [Infinity, 0];
    if (skip[0] < from && skip[1] > to) rows.push(skip);
  }
  const is_nested = crossing.every(([, to], i) => !i || to >= crossing[i - 1][1]);
  if (!is_nested || rows.length < 2 || 2 * crossing.length <= skips.length && rows.length < 3) return null;
  const [[inner, begin], [outer, end]] = [rows[0], rows.at(-1)];
  const [down, up] = [inner - outer, end - begin];
  if (Math.max(down, up) > UNEVEN * Math.min(down, up)) return null;
  const outs = group.filter(({ kind }) => kind === "out").map(({ layer }) => layer);
  return { starts: [0, begin, Math.min(end + outer + 1, ...outs)], rows };
}

/** The column in which a node is. @param {Bend | null} bend @param {ViewNode} node */
export const find_column = (bend, { layer }) =>
  (bend ? bend.starts.findLastIndex((first) => first <= layer) : 0);

/**
 * Where layers end at the bottom, if those of the second half stand beside the first one:
 * a row on both sides is as high as the higher of them. The highest begins at 0.
 * @param {number[]} heights of layers, up to where the second half ends
 * @param {Bend} bend @param {number} gap between layers
 */
export function stack_halves(heights, { starts: [, begin], rows }, gap) {
  const floors = [];
  let [down, up, y] = [begin - 1, begin, 0];
  for (const [from, to] of [...rows, [-1, heights.length]]) {
    let [left, right] = [y, y];
    for (; down > from; down -= 1) {
      floors[down] = left;
      left -= heights[down] + gap;
    }
    for (; up < to; up += 1) {
      floors[up] = right;
      right -= heights[up] + gap;
    }
    y = Math.min(left, right);
  }
  return floors.map((floor) => floor - y - gap);
}
