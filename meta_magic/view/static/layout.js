// Layers from top to bottom for the inside of one box; what is inside its boxes was laid
// out before, alone. Touches no document.

export const BOX_HEADER = 24; // of an open box
export const BOX_INSET = 30; // from its top to what is in it
const BOX_PADDING = 12;
const LETTER = 6.7; // width of a letter of 11 px
const SMALL_LETTER = 6.1; // of 10 px
const MAX_CELLS = 42; // of a name; a wide letter takes two
const NODE_HEIGHTS = { op: 22, closed: 38 };
const PILL_HEIGHT = 18;
const WIDE_LAYER = 1400; // a wider layer is broken
const LAYER_GAP = 26; // between layers
const APART = 18; // between neighbours
const LABEL_LINE = 13; // for a label

/**
 * @typedef {import("./graph.js").Item} Item
 * @typedef {import("./graph.js").Value} Value
 * @typedef {{kind: "op" | "closed" | "open" | "in" | "out" | "source" | "", item: Item | null,
 *   values: Value[], text: string, detail: string, inner: Arranged | null, x: number, y: number,
 *   w: number, h: number, room: number, layer: number, floor: number, offset: number,
 *   up: ViewNode[], down: ViewNode[], leaving: Wire[], arriving: Port[],
 *   labels: Wire[]}} ViewNode
 *   a node that stands for an item, a pill that tells what comes in or goes out, or, without
 *   a kind, a wire on its way through a layer. While it is placed, `x` is its middle; `room` is
 *   its width with labels, `floor` where its layer ends
 * @typedef {{node: ViewNode, x: number | null, above?: ViewNode}} Port where a wire meets a
 *   node. `x`: from its middle, or null until it is placed; `above`: what it comes from
 * @typedef {{from: ViewNode, starts: Port[], ends: Port[], label: string, kind?: string,
 *   values?: Value[], trunk?: ViewNode[], path?: string, heads?: string, label_x?: number,
 *   label_y?: number, left?: number, top?: number, right?: number, bottom?: number}} Wire
 *   from a node to later ones; `trunk`: its way by layer
 * @typedef {{w: number, h: number, nodes: ViewNode[], wires: Wire[]}} Arranged
 */

const count_cells = (text) => text.replace(/[^\0-\u10ff]/gu, "--").length;

/** Cut a text to a width; wide letters, as emoji, count twice. @param {string} text */
export function ellipsize(text, n_cells = MAX_CELLS) {
  const line = text.replace(/\s+/g, " ");
  if (count_cells(line) <= n_cells) return line;
  const letters = [...line].slice(0, n_cells);
  while (count_cells(letters.join("")) >= n_cells) letters.pop();
  return `${letters.join("")}…`;
}

/**
 * Lay out the inside of a box, and of the open ones in it; what was laid out is kept.
 * @param {import("./graph.js").Boxes} boxes @param {Item} box @returns {Arranged}
 */
export function arrange(boxes, box) {
  if (box.arranged) return box.arranged;
  const items = box.items.map((item) => make_item_node(boxes, item));
  const [ins, outs] = [[], []];
  const add_pill = (pills, kind, { values, name }) =>
    pills[pills.push(make_node(kind, name, { values })) - 1];
  const wires = boxes.connect(box).map((net) => {
    const { values, to } = net;
    const is_flow = net.kind === "flow";
    const from = items[net.from] ?? add_pill(ins, is_flow ? "in" : "source", net);
    const ends = to.flatMap((position) => find_ports(items[position], "in", values));
    const is_told = !from.item || from.inner || (net.is_out && !to.length);
    if (net.is_out) ends.push({ node: add_pill(outs, "out", net), x: null });
    return {
      from, starts: find_ports(from, "out", values), ends, values, label: is_told ? "" : net.name,
      kind: is_flow ? values[0].kind : "source",
    };
  });
  const nodes = [...ins, ...items, ...outs];
  box.arranged = { ...place(nodes, wires), nodes, wires };
  return box.arranged;
}

/** Lay out anew what is in a box, and all that it is in. @param {Item | null} box */
export function forget_layout(box) {
  for (; box; box = box.parent) box.arranged = null;
}

/** Where a node is entered or left by values: an open box, at its pills. @returns {Port[]} */
function find_ports(node, kind, values) {
  const { inner } = node;
  if (!inner) return [{ node, x: null }];
  const pills = inner.nodes.filter((pill) => pill.kind === kind
    && pill.values.some((value) => values.includes(value)));
  return pills.map((pill) => ({ node, x: pill.x + pill.w / 2 - inner.w / 2 }));
}

function make_item_node(boxes, item) {
  const { error, error_line, n_ops } = boxes.trace;
  // The operator that failed is not recorded: the last one before it, if of the same line.
  const is_failed = error !== null && item.last_op === n_ops - 1
    && boxes.trace.place(item.last_op).line === error_line;
  const name = (is_failed ? "✗ " : "") + boxes.name(item);
  if (item.kind === "op") return make_node("op", name, { item });
  if (!item.is_open) return make_node("closed", name, { item, detail: boxes.describe(item) });
  const inner = arrange(boxes, item);
  const node = make_node("open", name, { item, inner, h: inner.h + BOX_INSET + BOX_PADDING });
  return { ...node, w: Math.max(node.w, inner.w + 2 * BOX_PADDING) };
}

/** @returns {ViewNode} */
function make_node(kind, name, more) {
  const text = ellipsize(name);
  const { item = null, detail = "" } = more;
  const w = Math.max(count_cells(text) * (item ? LETTER : SMALL_LETTER),
    detail.length * SMALL_LETTER) + (item && kind !== "op" ? 34 : 18);
  const h = NODE_HEIGHTS[kind] ?? PILL_HEIGHT;
  return { kind, item, values: [], text, detail, inner: null, w, h, ...more };
}

/**
 * Give nodes their places, and route the wires between them. What is not connected stands
 * side by side.
 * @param {ViewNode[]} nodes @param {Wire[]} wires
 */
export function place(nodes, wires) {
  nodes.forEach(prepare);
  for (const wire of wires) wire.from.leaving.push(wire);
  assign_layers(nodes);
  let [x, y, w, h] = [0, 0, 0, 0];
  for (const group of find_groups(nodes, wires)) {
    const layers = make_layers(group);
    align(layers);
    const all = layers.flat();
    const left = Math.min(...all.map((node) => node.x - node.room / 2));
    const width = Math.max(...all.map((node) => node.x + node.room / 2)) - left;
    if (x && x + width > WIDE_LAYER) [x, y] = [0, h + LAYER_GAP];
    let floor = y - LAYER_GAP;
    for (const layer of layers) {
      const top = floor + LAYER_GAP;
      floor = top + Math.max(...layer.map((node) => node.h + LABEL_LINE * node.labels.length));
      for (const node of layer) Object.assign(node, { x: node.x - left + x, y: top, floor });
    }
    x += width;
    [w, h] = [Math.max(w, x), Math.max(h, floor)];
    x += APART;
  }
  for (const node of nodes) {
    spread(node.leaving.flatMap(({ starts }) => starts));
    spread(node.arriving.sort((a, b) => a.above.x - b.above.x));
  }
  for (const wire of wires) draw_route(wire);
  for (const node of nodes) node.x -= node.w / 2;
  return { w, h };
}

const prepare = (node) => Object.assign(node, {
  x: 0, layer: 0, room: node.w, up: [], down: [], leaving: [], arriving: [], labels: [],
});

const list_readers = ({ ends }) => [...new Set(ends.map((end) => end.node))];

/** Below all that it reads; what reads nothing is next to its readers. */
function assign_layers(nodes) {
  const readers = nodes.map(({ leaving }) => leaving.flatMap(list_readers));
  nodes.forEach((node, i) => {
    for (const reader of readers[i]) reader.layer = Math.max(reader.layer, node.layer + 1);
    node.labels = node.leaving.filter(({ label }) => label);
    const widths = node.labels.map(({ label }) => label.length * SMALL_LETTER + 12);
    node.room = Math.max(node.w, ...widths);
  });
  for (let i = nodes.length - 1; i >= 0; i -= 1) {
    const below = readers[i].map(({ layer }) => layer);
    if (nodes[i].layer === 0 && nodes[i].kind !== "in" && below.length) {
      nodes[i].layer = Math.min(...below) - 1;
    }
  }
}

/** The nodes that wires connect, group by group. */
function find_groups(nodes, wires) {
  const groups = new Map(nodes.map((node) => [node, [node]]));
  for (const wire of wires) {
    for (const reader of list_readers(wire)) {
      const [mine, other] = [groups.get(wire.from), groups.get(reader)];
      if (mine !== other) mine.push(...other);
      for (const node of other) groups.set(node, mine);
    }
  }
  return new Set(groups.values());
}

/** Layers of connected nodes; those that are too wide are broken. */
function make_layers(group) {
  const last = Math.max(...group.map(({ kind, layer }) => (kind === "out" ? 0 : layer))) + 1;
  for (const node of group) if (node.kind === "out") node.layer = last;
  const layers = [];
  let [before, w] = [-1, 0];
  for (const node of group.toSorted((a, b) => a.layer - b.layer)) {
    w += node.room + APART;
    if (node.layer !== before || w > WIDE_LAYER) {
      w = node.room + APART;
      layers.push([]);
    }
    before = node.layer;
    node.layer = layers.length - 1;
    layers[node.layer].push(node);
  }
  for (const wire of group.flatMap((node) => node.leaving)) pass_layers(wire, layers);
  return layers;
}

/** Lead a wire through the layers on its way; all its ends share it. */
function pass_layers(wire, layers) {
  const { layer } = wire.from;
  const readers = list_readers(wire);
  const trunk = [wire.from];
  const link = (above, below) => {
    above.down.push(below);
    below.up.push(above);
  };
  for (let i = layer + 1; i < Math.max(...readers.map((node) => node.layer)); i += 1) {
    const passing = { ...prepare({ kind: "", w: 6, h: 0 }), layer: i };
    link(trunk.at(-1), passing);
    layers[i].splice(layers[i].length >> 1, 0, passing);
    trunk.push(passing);
  }
  for (const node of readers) link(trunk[node.layer - layer - 1], node);
  wire.trunk = trunk;
  for (const end of wire.ends) {
    end.above = trunk[end.node.layer - layer - 1];
    end.node.arriving.push(end);
  }
}

const find_mean = (nodes, otherwise) =>
  (nodes.length ? nodes.reduce((sum, { x }) => sum + x, 0) / nodes.length : otherwise);

/** Sort each layer by the middle of the neighbours; then move each vertex there. */
function align(layers) {
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

/** Put those ports of a node that have no place yet side by side. */
function spread(ports) {
  const free = ports.filter(({ x }) => x === null);
  const step = Math.min(24, (free[0]?.node.w - 16) / (free.length - 1 || 1));
  free.forEach((port, i) => { port.x = (i - (free.length - 1) / 2) * step; });
}

/** Draw a wire from its starts, through the layers on its way, to its ends. */
function draw_route(wire) {
  const { from, starts, trunk, ends, label } = wire;
  const top = from.y + from.h;
  const xs = starts.map(({ x }) => from.x + x);
  const all_x = [...xs];
  let path = xs.map((x) => `M${point(x, top)}V${point(from.floor)}`).join("");
  const bend = (above, y, x) => {
    const middle = (above.floor + y) / 2;
    for (const start of above === from ? xs : [above.x]) {
      path += `M${point(start, above.floor)}C${point(start, middle, x, middle, x, y)}`;
    }
    all_x.push(x);
  };
  trunk.slice(1).forEach((passing, i) => {
    bend(trunk[i], passing.y, passing.x);
    path += `V${point(passing.floor)}`;
  });
  for (const { node, x, above } of ends) bend(above, node.y, node.x + x);
  const heads = ends.map(({ node, x }) => `M${point(node.x + x - 3.5, node.y - 7)}h7l-3.5 7z`);
  const half = (label.length * SMALL_LETTER) / 2;
  Object.assign(wire, {
    path, heads: heads.join(""), label_x: xs[0],
    label_y: top + LABEL_LINE * (from.labels.indexOf(wire) + 1) - 1,
    top, bottom: Math.max(...ends.map(({ node }) => node.y)),
    left: Math.min(...all_x, xs[0] - half), right: Math.max(...all_x, xs[0] + half),
  });
}

const point = (...numbers) => numbers.map((n) => Math.round(n * 10) / 10).join(" ");
