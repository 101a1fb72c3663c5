// The ways of wires between nodes that have their places.

const TURN = 8; // pixels below a column, in which a wire turns to the next

/** Width of a letter of 10 px. */
export const SMALL_LETTER = 6.1;
/** Pixels for a label. */
export const LABEL_LINE = 13;

/** Put those ports of a node that have no place yet side by side. */
export function spread(ports) {
  const free = ports.filter(({ x }) => x === null);
  const step = Math.min(24, (free[0]?.node.w - 16) / (free.length - 1 || 1));
  free.forEach((port, i) => { port.x = (i - (free.length - 1) / 2) * step; });
}

/** Draw a wire from its starts, through the layers on its way, to its ends. */
export function draw_route(wire) {
  const { from, starts, trunk, ends, label } = wire;
  const top = from.y + from.h;
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
  const half = (label.length * SMALL_LETTER) / 2;
  Object.assign(wire, {
    path, heads: heads.join(""), label_x: xs[0],
    label_y: top + LABEL_LINE * (from.labels.indexOf(wire) + 1) - 1,
    top: Math.min(top, ...ends.map(({ node }) => node.y - 2 * TURN)),
    bottom: Math.max(from.floor + TURN, ...ends.map(({ node }) => node.y)),
    left: Math.min(...all_x, xs[0] - half), right: Math.max(...all_x, xs[0] + half),
  });
}

const point = (...numbers) => numbers.map((n) => Math.round(n * 10) / 10).join(" ");
