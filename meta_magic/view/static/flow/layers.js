// Nodes in layers, and the wires between them. Touches no document.

import { APART, align } from "./align.js";
import { cut_columns } from "./columns.js";
import { LABEL_LINE, SMALL_LETTER, draw_route, spread } from "./routes.js";

const WIDE_LAYER = 1400; // a wider layer is broken
const LAYER_GAP = 26; // between layers
const GUTTER = 36; // between columns

/**
 * Give nodes their places, and route the wires between them. What is not connected stands
 * side by side.
 * @param {import("./layout.js").ViewNode[]} nodes @param {import("./layout.js").Wire[]} wires
 * @param {boolean} is_wide whether towers are cut into columns
 */
export function place(nodes, wires, is_wide = false) {
  nodes.forEach(prepare);
  for (const wire of wires) wire.from.leaving.push(wire);
  assign_layers(nodes);
  let [x, y, w, h] = [0, 0, 0, 0];
  for (const group of find_groups(nodes, wires)) {
    const layers = make_layers(group);
    align(layers);
    const heights = layers.map(measure);
    const { width } = find_sides(layers);
    const columns = is_wide ? cut_columns(layers, width, heights) : [layers];
    const sizes = columns.map(find_sides);
    const whole = sizes.reduce((sum, size) => sum + size.width, GUTTER * (columns.length - 1));
    if (x && x + whole > WIDE_LAYER) [x, y] = [0, h + LAYER_GAP];
    columns.forEach((column, i) => {
      h = Math.max(h, place_column(column, x - sizes[i].left, i ? y + LAYER_GAP : y, x - GUTTER / 2));
      x += sizes[i].width + GUTTER;
    });
    x -= GUTTER;
    w = Math.max(w, x);
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

/** The height of a layer, with the labels below it. */
const measure = (layer) =>
  Math.max(...layer.map((node) => node.h + LABEL_LINE * node.labels.length));

/** Where layers begin on the left, and how wide they are. */
function find_sides(layers) {
  const all = layers.flat();
  const left = Math.min(...all.map((node) => node.x - node.room / 2));
  return { left, width: Math.max(...all.map((node) => node.x + node.room / 2)) - left };
}

/** Give the nodes of a column their places; return where it ends. */
function place_column(layers, shift, y, gutter) {
  let floor = y - LAYER_GAP;
  for (const layer of layers) {
    const top = floor + LAYER_GAP;
    floor = top + measure(layer);
    for (const node of layer) Object.assign(node, { x: node.x + shift, y: top, floor, gutter });
  }
  return floor;
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
