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
