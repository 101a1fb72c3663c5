// Nodes in layers, and the wires between them. Touches no document.

import { APART, align } from "./align.js";
import { find_bend, find_column, stack_halves } from "./bends.js";
import { WIDE, cut_columns } from "./columns.js";
import { measure_text } from "./letters.js";
import { LABEL_LINE, LANE, LAYER_GAP, draw_route, find_slots, flip_route, spread, turn_route } from "./routes.js";

const WIDE_LAYER = 1400; // a wider layer is broken
const HIGH_LAYER = 700; // from left to right, a higher one
const FEW_LABELS = 4; // below a node, each shown alone
const GUTTER = 36; // between columns
const TURNS = 16; // pixels above and below columns, in which wires lead from one to the next

/**
 * Give nodes their positions, and route the wires between them. What is not connected is
 * side by side. A dot on the frame stands `headroom` pixels before all else.
 * @param {import("./layout.js").ViewNode[]} nodes @param {import("./layout.js").Wire[]} wires
 * @param {boolean} is_across whether layers go from left to right: all is laid out from top
 *   to bottom, with heights for widths, and turned
 */
export function arrange_nodes(nodes, wires, is_across = false, wide = WIDE) {
  if (is_across) nodes.forEach(turn);
  nodes.forEach(prepare);
  for (const wire of wires) wire.from.leaving.push(wire);
  for (const node of nodes) make_labels(node, is_across);
  assign_layers(nodes);
  const { w, h, headroom } = arrange_groups(find_groups(nodes, wires), is_across, wide);
  for (const node of nodes.filter(({ is_port }) => is_port)) node.y = (node.kind === "in") === node.is_up ? h - node.h : -headroom;
  for (const node of nodes) {
    spread_starts(node);
    node.arriving.sort((a, b) => a.above.x - b.above.x).forEach((end, i, { length }) => find_side(end, nodes, i && i < length - 1));
    spread(node.arriving.filter(({ side }) => !side));
  }
  for (const wire of wires) draw_route(wire);
  for (const node of nodes) node.x -= node.w / 2;
  if (!is_across) return { w, h, headroom };
  nodes.forEach(turn);
  wires.forEach(turn_route);
  return { w: h, h: w, headroom };
}

/**
 * Have what was laid out lead up, or from right to left, with all that is in it; or back.
 * @param {import("./layout.js").Arranged} arranged @param {boolean} is_up
 */
export function flip(arranged, is_up, is_across = false) {
  const { nodes, wires, w, h } = arranged;
  if (arranged.is_up === is_up) return;
  arranged.is_up = is_up;
  const turn_all = () => {
    if (is_across) [nodes, wires].forEach((things, i) => things.forEach(i ? turn_route : turn));
  };
  turn_all();
  for (const node of nodes) node.y = (is_across ? w : h) - node.y - node.h;
  for (const wire of wires) flip_route(wire, is_across ? w : h);
  turn_all();
  for (const { inner } of nodes) if (inner) flip(inner, !inner.is_up, is_across);
}

/** Put groups of connected nodes side by side, as far as there is room. */
function arrange_groups(groups, is_across, wide) {
  const limit = is_across ? HIGH_LAYER : WIDE_LAYER;
  let [x, y, w, h, headroom] = [0, 0, 0, 0, 0];
  for (const group of groups) {
    const { layers, bend } = make_layers(group, limit);
    align(layers);
    const heights = layers.map(measure);
    const starts = bend?.starts.filter((first) => first < layers.length)
      ?? cut_columns(layers, (column) => find_sides(column).width + GUTTER, heights, is_across, wide);
    const columns = starts.map((first, i) => layers.slice(first, starts[i + 1]));
    const sizes = columns.map(find_sides);
    const gutter = GUTTER + LANE * (number_lanes(group, starts) - 1);
    const whole = sizes.reduce((sum, size) => sum + size.width, gutter * (columns.length - 1));
    if (x && x + whole > limit) [x, y] = [0, h + LAYER_GAP];
    const floors = find_floors(heights, starts, bend);
    columns.forEach((column, i) => {
      const end = x + sizes[i].width;
      arrange_column(column, {
        is_up: bend !== null && i === 1, shift: x - sizes[i].left, gutter: end + GUTTER / 2, y,
        floors: floors.slice(starts[i]), heights: heights.slice(starts[i]),
      });
      x = end + gutter;
    });
    const is_cut = columns.length > 1;
    if (is_cut || layers[0].length > 1) headroom = TURNS;
    h = Math.max(h, y + Math.max(...floors) + (bend ? LAYER_GAP : is_cut ? TURNS : 0));
    x -= gutter;
    w = Math.max(w, x);
    x += APART;
  }
  return { w, h, headroom };
}

/**
 * Let the outermost wires that a sum joins enter its circle at their side, if nothing stands between.
 * @param {import("./layout.js").Port} end
 */
function find_side(end, nodes, is_inner) {
  const { node, above } = end;
  const away = node.x - above.x;
  const is_between = (other) => other !== node && other.layer === node.layer
    && Math.abs(2 * other.x - node.x - above.x) < Math.abs(away) + other.room;
  end.side = Number(node.sign && !is_inner && above.gutter === node.gutter && Math.abs(away) > node.w && !nodes.some(is_between))
    && Math.sign(away);
}

/** Number the wires that lead side by side into a column; return how many there are at most. */
function number_lanes(group, starts) {
  const wires = group.flatMap(({ leaving }) => leaving);
  return Math.max(1, ...starts.slice(1).map((start) => {
    const between = wires.filter(({ from, ends }) => from.layer < start && ends.some(({ node }) => node.layer >= start));
    for (const wire of between) wire.lane ??= between.findIndex((_, lane) => between.every((other) => other.lane !== lane));
    return between.length;
  }));
}

/** The bottom of each layer: the layers of a column are below each other. */
function find_floors(heights, starts, bend) {
  if (!bend) return starts.flatMap((first, i) => stack(heights.slice(first, starts[i + 1]), i && LAYER_GAP));
  const [, , tail] = bend.starts;
  const halves = stack_halves(heights.slice(0, tail), bend, LAYER_GAP);
  const top = halves[tail - 1] - heights[tail - 1]; // where the second half ends, and is left
  const shift = Math.max(0, LAYER_GAP - top);
  return [...halves.map((floor) => floor + shift), ...stack(heights.slice(tail), top + shift)];
}

const stack = (heights, y) => heights.map((height) => (y += height + LAYER_GAP) - LAYER_GAP);

const turn = (node) => Object.assign(node, { x: node.y, y: node.x, w: node.h, h: node.w });

/** Make room for the labels of what leaves a node; of many that are alike, one is shown. */
function make_labels(node, is_across) {
  const labelled = node.leaving.filter(({ label }) => label);
  for (const label of labelled.length > FEW_LABELS ? new Set(labelled.map((wire) => wire.label)) : []) {
    const [first, ...others] = labelled.filter((wire) => wire.label === label);
    if (others.length) first.label = `${others.length + 1} × ${label}`;
    for (const wire of others) wire.label = "";
  }
  node.labels = labelled.filter(({ label }) => label);
  for (const wire of node.leaving) {
    const [length, line] = wire.label ? [measure_text(wire.label) + 12, LABEL_LINE] : [0, 0];
    [wire.label_w, wire.label_h] = is_across ? [line, length] : [length, line];
  }
  node.room = node.w;
  if (!node.labels.length) return;
  const { length } = find_slots(node.leaving);
  node.room = Math.max(node.w, length);
  if (node.leaving.length > 1) node.w = node.room;
}

/** Put the beginnings of wires side by side, in the order in which they lead on. */
function spread_starts({ leaving, labels }) {
  leaving.sort((a, b) => (a.trunk[1] ?? a.ends[0]?.node).x - (b.trunk[1] ?? b.ends[0]?.node).x);
  if (!labels.length) return spread(leaving.flatMap(({ starts }) => starts));
  const { length, middles } = find_slots(leaving);
  leaving.forEach(({ starts }, i) => {
    for (const start of starts) start.x ??= middles[i] - length / 2;
  });
}

/** The height of a layer, with the labels below it. */
const measure = (layer) =>
  Math.max(...layer.map((node) => node.h + Math.max(0, ...node.labels.map(({ label_h }) => label_h))));

/** The left edge of layers, and their width. */
function find_sides(layers) {
  const all = layers.flat();
  const left = Math.min(...all.map((node) => node.x - node.room / 2));
  return { left, width: Math.max(...all.map((node) => node.x + node.room / 2)) - left };
}

/** Give the nodes of a column their positions. */
function arrange_column(layers, { is_up, shift, gutter, y, floors, heights }) {
  layers.forEach((layer, i) => {
    const [top, bottom] = [y + floors[i] - heights[i], y + floors[i]];
    for (const node of layer) {
      Object.assign(node, {
        x: node.x + shift, y: is_up ? bottom - node.h : top, floor: is_up ? top : bottom, gutter, is_up,
      });
    }
  });
}

const prepare = (node) => Object.assign(node, {
  x: 0, layer: 0, is_up: false, room: node.w, up: [], down: [], leaving: [], arriving: [], labels: [],
});

const list_readers = ({ ends }) => [...new Set(ends.map((end) => end.node))];

/** Put each node below all nodes that it reads, or, if it reads none, next to its readers. */
function assign_layers(nodes) {
  const readers = nodes.map(({ leaving }) => leaving.flatMap(list_readers));
  nodes.forEach((node, i) => {
    for (const reader of readers[i]) reader.layer = Math.max(reader.layer, node.layer + 1);
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
function make_layers(group, limit) {
  const last = Math.max(...group.map(({ kind, layer }) => (kind === "out" ? 0 : layer))) + 1;
  for (const node of group) if (node.kind === "out") node.layer = last;
  const layers = [];
  let [before, w] = [-1, 0];
  for (const node of group.toSorted((a, b) => a.layer - b.layer)) {
    w += node.room + APART;
    if (node.layer !== before || w > limit) {
      w = node.room + APART;
      layers.push([]);
    }
    before = node.layer;
    node.layer = layers.length - 1;
    layers[node.layer].push(node);
  }
  const bend = find_bend(group);
  for (const wire of group.flatMap((node) => node.leaving)) pass_layers(wire, layers, bend);
  return { layers, bend };
}

/** Lead a wire through the layers on its way; all its ends in its column share it. */
function pass_layers(wire, layers, bend) {
  const { layer } = wire.from;
  const column = find_column(bend, wire.from);
  const readers = list_readers(wire).filter((node) => find_column(bend, node) === column);
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
    end.above = readers.includes(end.node) ? trunk[end.node.layer - layer - 1] : wire.from;
    end.node.arriving.push(end);
  }
}
