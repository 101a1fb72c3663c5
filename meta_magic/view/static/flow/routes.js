// The ways of wires between nodes that have their places.

const TURN = 8; // pixels below a column, in which a wire turns to the next
const SLOT = 12; // pixels for a wire without a label

/** Width of a letter of 10 px. */
export const SMALL_LETTER = 6.1;
/** Pixels for a label. */
export const LABEL_LINE = 15;

/** Put those ports of a node that have no place yet side by side. */
export function spread(ports) {
  const free = ports.filter(({ x }) => x === null);
  const step = Math.min(24, (free[0]?.node.w - 16) / (free.length - 1 || 1));
  free.forEach((port, i) => { port.x = (i - (free.length - 1) / 2) * step; });
}

/** Where wires leave a node side by side: each below its label. */
export function find_slots(leaving) {
  let length = 0;
  const middles = leaving.map(({ label_w }) => {
    const slot = Math.max(label_w, SLOT);
    length += slot;
    return length - slot / 2;
  });
  return { length, middles };
}

/** Draw a wire from its starts, through the layers on its way, to its ends. */
export function draw_route(wire) {
  const { from, starts, trunk, ends, label_w, label_h } = wire;
  const foot = from.y + from.h;
  const top = foot + label_h;
  const xs = starts.map(({ x }) => from.x + x);
  const all_x = [...xs];
  let path = xs.map((x) => `M${point(x, top)}V${point(from.floor)}`).join("");
  const bend = (above, { y, gutter }, x) => {
    const middle = (above.floor + y) / 2;
    for (const start of above === from ? xs : [above.x]) {
      path += `M${point(start, above.floor)}`;
      path += gutter === above.gutter ? `C${point(start, middle, x, middle, x, y)}`
        : `v${TURN}H${point(gutter)}V${point(y - 2 * TURN)}H${point(x)}V${point(y)}`;
    }
    all_x.push(x);
  };
  trunk.slice(1).forEach((passing, i) => {
    bend(trunk[i], passing, passing.x);
    path += `V${point(passing.floor)}`;
  });
  for (const { node, x, above } of ends) bend(above, node, node.x + x);
  const heads = ends.map(({ node, x }) => `M${point(node.x + x - 3.5, node.y - 7)}h7l-3.5 7z`);
  const half = label_w / 2;
  Object.assign(wire, {
    path, heads: heads.join(""), label_x: xs[0],
    label_y: foot + label_h / 2 + 1,
    top: Math.min(foot, ...ends.map(({ node }) => node.y - 2 * TURN)),
    bottom: Math.max(from.floor + TURN, ...ends.map(({ node }) => node.y)),
    left: Math.min(...all_x, xs[0] - half), right: Math.max(...all_x, xs[0] + half),
  });
}

const TURNED = { M: "M", C: "C", l: "l", z: "z", H: "V", V: "H", h: "v", v: "h" };

/** A path of which x and y are exchanged. @param {string} path */
const turn_path = (path) => path.replace(/([A-Za-z])([^A-Za-z]*)/g, (_, letter, numbers) =>
  TURNED[letter] + numbers.trim().replace(/(\S+) (\S+)/g, "$2 $1"));

/** Exchange x and y of a wire that was drawn. */
export function turn_route(wire) {
  const { path, heads, label_x, label_y, left, right, top, bottom } = wire;
  Object.assign(wire, {
    path: turn_path(path), heads: turn_path(heads), label_x: label_y, label_y: label_x,
    left: top, right: bottom, top: left, bottom: right,
  });
}

const point = (...numbers) => numbers.map((n) => Math.round(n * 10) / 10).join(" ");
