// The ways of wires between nodes that have their positions.

const TURN = 8; // pixels below a column, in which a wire turns to the next
const ROUND = 7; // radius of corners
const SLOT = 12; // pixels for a wire without a label

/** Pixels between layers. */
export const LAYER_GAP = 22;
/** Pixels for a wire beside a column. */
export const LANE = 5;
/** Pixels for a label. */
export const LABEL_LINE = 15;

/** Put those ports of a node that have no position yet side by side. */
export function spread(ports) {
  const free = ports.filter(({ x }) => x === null);
  const step = Math.min(24, (free[0]?.node.w - 16) / (free.length - 1 || 1));
  free.forEach((port, i) => { port.x = (i - (free.length - 1) / 2) * step; });
}

/** The positions of wires that leave a node side by side, each below its label. */
export function find_slots(leaving) {
  let length = 0;
  const middles = leaving.map(({ label_w }) => {
    const slot = Math.max(label_w, SLOT);
    length += slot;
    return length - slot / 2;
  });
  return { length, middles };
}

/**
 * Draw a wire from its starts, through the layers on its way, to its ends. A skip is the way through
 * layers of a value that is read next, too.
 */
export function draw_route(wire) {
  const { from, starts, trunk, ends, label_w, label_h } = wire;
  const foot = from.is_up ? from.y : from.y + from.h;
  const top = foot + (from.is_up ? -label_h : label_h);
  const xs = starts.map(({ x }) => from.x + x);
  const [all_x, all_y] = [[...xs], [foot, from.floor]];
  let path = xs.map((x) => `M${point(x, top)}V${point(from.floor)}`).join("");
  const lead = (above, node, x) => {
    const way = lead_on(above, node, x, wire.lane ?? 0);
    for (const start of above === from ? xs : [above.x]) path += way(start);
    all_x.push(x);
    all_y.push(find_head(node));
  };
  const start = path.length;
  trunk.slice(1).forEach((passing, i) => {
    lead(trunk[i], passing, passing.x);
    path += `V${point(passing.floor)}`;
  });
  const skip = ends.some(({ above }) => above === from) ? path.slice(start) : "";
  for (const { node, x, above, side } of ends) {
    if (side) {
      for (const start of above === from ? xs : [above.x]) path += turn_in(start, above.floor, node, side);
      all_x.push(above.x);
    } else lead(above, node, node.x + x);
  }
  const heads = ends.filter(({ node }) => !node.is_port).map(({ node, x, side }) => (side
    ? `M${point(node.x - side * (node.w / 2 + 7), node.y + node.h / 2 - 3.5)}v7l${7 * side} -3.5z` : node.is_up
    ? `M${point(node.x + x - 3.5, node.y + node.h + 7)}h7l-3.5 -7z`
    : `M${point(node.x + x - 3.5, node.y - 7)}h7l-3.5 7z`));
  const half = label_w / 2;
  Object.assign(wire, {
    path, skip, heads: heads.join(""), label_x: xs[0], label_y: (foot + top) / 2 + 1,
    top: Math.min(...all_y) - LAYER_GAP, bottom: Math.max(...all_y) + LAYER_GAP,
    left: Math.min(...all_x, xs[0] - half), right: Math.max(...all_x, xs[0] + half),
  });
}

/** Straight down, then round into the side of a node. */
function turn_in(start, floor, { x, y, w, h }, side) {
  const middle = y + h / 2;
  const before = middle - ROUND * Math.sign(middle - floor);
  return `M${point(start, floor)}V${point(before)}C${point(start, middle, start, middle, start + side * ROUND, middle)}H${point(x - side * w / 2)}`;
}

/** Where wires reach a node: its top, or its bottom if its box leads up. */
const find_head = ({ is_up, y, h }) => (is_up ? y + h : y);

/**
 * The way from below one node to another: straight in a column, else round what is between,
 * in a lane beside its column.
 */
function lead_on(above, node, x, lane) {
  const [{ floor, gutter }, head] = [above, find_head(node)];
  const middle = (floor + head) / 2;
  if (gutter === node.gutter && !(above.kind && node.kind)) return (start) => bend_off(start, floor, x, head, !node.kind);
  if (gutter === node.gutter) return (start) => `M${point(start, floor)}C${point(start, middle, x, middle, x, head)}`;
  const away = TURN + (lane % 3) * 4;
  const leave = floor + (above.is_up ? -away : away);
  const reach = head + (node.is_up ? away : -away);
  const round = Math.abs(leave - reach) < 1 ? "" : `H${point(gutter + lane * LANE)}V${point(reach)}`;
  return (start) => `M${point(start, floor)}V${point(leave)}${round}H${point(x)}V${point(head)}`;
}

/** From a node into a way through layers, or out of one: aside, with round corners, near to the node. */
function bend_off(start, floor, x, head, is_leaving) {
  const radius = Math.min(ROUND, Math.abs(x - start) / 2);
  const down = Math.sign(head - floor) * radius;
  const side = Math.sign(x - start) * radius;
  const y = is_leaving ? floor + down : head - 9 * Math.sign(head - floor) - down;
  return `M${point(start, floor)}V${point(y - down)}C${point(start, y, start, y, start + side, y)}H${point(x - side)}`
    + `C${point(x, y, x, y, x, y + down)}V${point(head)}`;
}

const TURNED = { M: "M", C: "C", l: "l", z: "z", H: "V", V: "H", h: "v", v: "h" };

/** A path of which x and y are exchanged. @param {string} path */
const turn_path = (path) => path.replace(/([A-Za-z])([^A-Za-z]*)/g, (_, letter, numbers) =>
  TURNED[letter] + numbers.trim().replace(/(\S+) (\S+)/g, "$2 $1"));

/** Exchange x and y of a wire that was drawn. */
export function turn_route(wire) {
  const { path, heads, label_x, label_y, left, right, top, bottom } = wire;
  Object.assign(wire, {
    path: turn_path(path), skip: "", heads: turn_path(heads), label_x: label_y, label_y: label_x,
    left: top, right: bottom, top: left, bottom: right,
  });
}

/** A path mirrored in a box of a height. */
const flip_path = (path, h) => path.replace(/([MCVvl])([^A-Za-z]*)/g, (_, letter, numbers) =>
  letter + numbers.replace(/(\S+ )?(\S+)/g, (_, x = "", y) => x + point((letter < "a" ? h : 0) - y)));

/** Mirror a wire in a box of a height, so that it leads up. */
export function flip_route(wire, h) {
  const { path, heads, label_y, top, bottom } = wire;
  Object.assign(wire, {
    path: flip_path(path, h), skip: "", heads: flip_path(heads, h), label_y: h - label_y,
    top: h - bottom, bottom: h - top,
  });
}

const point = (...numbers) => numbers.map((n) => Math.round(n * 10) / 10).join(" ");
