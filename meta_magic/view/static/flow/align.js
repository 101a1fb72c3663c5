// The order and the positions of nodes within their layers.

/** Pixels between neighbours. */
export const APART = 18;

const find_mean = (nodes, otherwise) =>
  (nodes.length ? nodes.reduce((sum, { x }) => sum + x, 0) / nodes.length : otherwise);

/** Sort each layer by the middle of the neighbours; then move each vertex there. */
export function align(layers) {
  const number = (layer) => layer.forEach((node, i) => { node.x = i; });
  const sort = (layer, list_near) => {
    const wishes = new Map(layer.map((node) => [node, find_mean(list_near(node), node.x)]));
    number(layer.sort((a, b) => wishes.get(a) - wishes.get(b)));
  };
  layers.forEach(number);
  for (const visit of [sort, sort, sort, settle, settle, settle]) {
    for (const layer of layers) visit(layer, ({ up }) => up);
    for (const layer of layers.toReversed()) visit(layer, ({ down }) => down);
  }
  for (const layer of layers) settle(layer, ({ up, down }) => [...up, ...down]);
  for (const layer of layers) for (const node of layer) if (!node.kind && node.up[0].kind) straighten(node, layers);
}

/** Lead a wire straight through layers, as far out as it is in one of them, if there is room. */
function straighten(first, layers) {
  const passing = [first];
  while (!passing.at(-1).down[0].kind) passing.push(passing.at(-1).down[0]);
  const has_room = (x) => passing.every((node) => {
    const layer = layers[node.layer];
    const at = layer.indexOf(node);
    return [layer[at - 1], layer[at + 1]].every((other, side) => !other
      || (other.x - x) * (side ? 1 : -1) >= (other.room + node.room) / 2 + (other.kind ? APART : 6));
  });
  const xs = passing.map(({ x }) => x);
  const x = [Math.min(...xs), Math.max(...xs)].find(has_room);
  if (x !== undefined) for (const node of passing) node.x = x;
}

/**
 * Bring each node of a layer near to the mean of its neighbours: pushed to the right where
 * there is no room, pushed to the left, and the middle of both, which keeps them apart, too.
 */
function settle(layer, list_near) {
  const push = (nodes, sign) => {
    let [before, x] = [null, 0];
    return nodes.map((node) => {
      // A node follows nodes, and a passing wire itself: else, each pushes the other aside.
      const alike = list_near(node).filter((other) => !other.kind === !node.kind);
      const wish = sign * find_mean(alike.length ? alike : list_near(node), node.x);
      const gap = before?.kind || node.kind ? APART : 6;
      x = before ? Math.max(wish, x + (before.room + node.room) / 2 + gap) : wish;
      before = node;
      return x;
    });
  };
  const rights = push(layer, 1);
  const lefts = push(layer.toReversed(), -1).reverse();
  layer.forEach((node, i) => { node.x = (rights[i] - lefts[i]) / 2; });
}
