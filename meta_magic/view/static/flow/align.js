// The order and the positions of nodes within their layers.

/** Pixels between neighbours. */
export const APART = 18;

const BESIDE = 12; // pixels from a passing wire to what is beside it

/** @typedef {import("./layout.js").ViewNode} ViewNode */

const find_mean = (numbers, otherwise) =>
  (numbers.length ? numbers.reduce((sum, x) => sum + x, 0) / numbers.length : otherwise);

/** Where wires leave a node, from its middle. @param {ViewNode} node */
const find_outlet = ({ leaving }) => find_mean(leaving.flatMap(({ starts }) => starts.flatMap(({ x }) => x ?? [])), 0);

/** Of positions at neighbours those at nodes that are no parameters, if there are any. */
const choose = (found) => {
  const main = found.filter(([{ kind }]) => kind && kind !== "source");
  return (main.length ? main : found).map(([, x]) => x);
};

/** Where a node would stand so that the wires from above, or to below, are straight. @param {ViewNode} node */
const list_from_above = ({ up, arriving }) => choose(arriving.filter(({ above }) => up.includes(above))
  .map(({ above, x }) => [above, above.x + (above.kind ? find_outlet(above) : 0) - x]));
function list_from_below(node) {
  const ends = node.leaving.flatMap((wire) => wire.ends).filter(({ node: below, above }) => above === node && node.down.includes(below));
  const ports = [...ends, ...node.down.filter(({ kind }) => !kind).map((passing) => ({ node: passing, x: 0 }))];
  return choose(ports.map(({ node: below, x }) => [below, below.x + x - find_outlet(node)]));
}

/** Sort each layer by the middle of the neighbours; then move each vertex there. @param {ViewNode[][]} layers */
export function align(layers) {
  const number = (layer) => layer.forEach((node, i) => { node.x = i; });
  const sort = (layer, _, near) => {
    const wishes = new Map(layer.map((node) => [node, find_mean(node[near].map(({ x }) => x), node.x)]));
    const find_port = ({ leaving }) => find_mean(leaving.flatMap(({ ends }) => ends.map(({ x }) => x)), 0);
    number(layer.sort((a, b) => wishes.get(a) - wishes.get(b) || find_port(a) - find_port(b)));
  };
  layers.forEach(number);
  for (const visit of [sort, sort, sort, settle, settle, settle]) {
    for (const layer of layers) visit(layer, list_from_above, "up");
    for (const layer of layers.toReversed()) visit(layer, list_from_below, "down");
  }
  for (const layer of layers) settle(layer, (node) => (node.up.length ? list_from_above : list_from_below)(node));
  const placed = new Set(layers.flat().filter(({ kind }) => kind));
  for (const node of layers.flat()) if (!node.kind && node.up[0].kind) pass_nodes(node, layers, placed);
}

/**
 * Lead a wire through layers: straight if there is room, as near as can be to what it connects.
 * @param {ViewNode} first @param {ViewNode[][]} layers @param {Set<ViewNode>} placed
 */
function pass_nodes(first, layers, placed) {
  const passing = [first];
  while (!passing.at(-1).down[0].kind) passing.push(passing.at(-1).down[0]);
  const rooms = passing.map((node) => {
    const layer = layers[node.layer];
    const at = layer.indexOf(node);
    return [-1, 1].map((side) => {
      let [i, room] = [at + side, 0];
      for (; layer[i] && !placed.has(layer[i]); i += side) room += BESIDE;
      return layer[i] ? layer[i].x - side * ((layer[i].kind ? layer[i].room / 2 : 0) + BESIDE + room) : side * Infinity;
    });
  });
  const wish = (first.up[0].x + passing.at(-1).down[0].x) / 2;
  const [least, most] = [Math.max(...rooms.map(([low]) => low)), Math.min(...rooms.map(([, high]) => high))];
  passing.forEach((node, i) => {
    const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
    node.x = clamp(clamp(wish, least, most), ...rooms[i]);
    placed.add(node);
  });
}

/**
 * Bring each node of a layer near to where it wants to be: pushed to the right where there is
 * no room, pushed to the left, and the middle of both, which keeps them apart, too. Wires that
 * pass have room between them.
 */
function settle(layer, list_wishes) {
  const push = (nodes, sign) => {
    let [before, x, gap] = [null, 0, APART];
    return nodes.map((node) => {
      if (!node.kind) {
        gap += BESIDE;
        return node.x;
      }
      const wish = sign * find_mean(list_wishes(node), node.x);
      x = before ? Math.max(wish, x + (before.room + node.room) / 2 + gap) : wish;
      [before, gap] = [node, APART];
      return x;
    });
  };
  const rights = push(layer, 1);
  const lefts = push(layer.toReversed(), -1).reverse();
  layer.forEach((node, i) => { if (node.kind) node.x = (rights[i] - lefts[i]) / 2; });
}
