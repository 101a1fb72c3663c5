// Layers from top to bottom for the inside of one box; what is inside its boxes was laid
// out before, alone. Touches no document.

import { shorten_op } from "./dom.js";
import { is_box } from "./graph.js";

export const BOX_HEADER = 24; // of an open box
export const BOX_INSET = 30; // from its top to what is in it
const BOX_PADDING = 12;
const LETTER = 6.7; // width of a letter of 11 px
const SMALL_LETTER = 6.1; // of 10 px
const MAX_LETTERS = 42;
const WIDE_LAYER = 1400; // a wider layer is broken
const LAYER_GAP = 26; // between layers
const APART = 18; // between neighbours
const LABEL_LINE = 13; // for a label
const SWEEPS = 4;

/**
 * @typedef {{w: number, h: number, side?: "in" | "out"}} Spot a node; the nodes come in an
 *   order in which every wire leads forward
 * @typedef {{node: number, x: number | null}} End `x`: from the middle, or null: anywhere
 * @typedef {{from: number, starts: (number | null)[], to: End[], label: number}} Wire
 *   `label`: the width of its text, or 0
 * @typedef {{path: string, heads: string, label: {x: number, y: number}, left: number,
 *   top: number, right: number, bottom: number}} Route
 * @typedef {{w: number, h: number, at: {x: number, y: number}[], routes: Route[]}} Placed
 * @typedef {{w: number, layer: number, up: Vertex[], down: Vertex[], x: number,
 *   wish: number, is_node: boolean}} Vertex a node, or a wire that passes a layer
 */

/**
 * @typedef {import("./graph.js").Box} Box
 * @typedef {{kind: "op" | "closed" | "open" | "in" | "out" | "source",
 *   item: Box | number | null, values: number[], text: string, detail: string, x: number,
 *   y: number, w: number, h: number, inner: Arranged | null, side?: "in" | "out"}} ViewNode
 *   a node that stands for an item, or a pill that tells what comes in or goes out
 * @typedef {{values: number[], kind: string, label: string, route: Route}} ViewWire
 * @typedef {{w: number, h: number, nodes: ViewNode[], wires: ViewWire[]}} Arranged
 */

/** Cut a text to a number of letters; wide ones, as in emoji, count twice. */
export function ellipsize(/** @type {string} */ text, n_cells = MAX_LETTERS) {
  let cut = "";
  for (const letter of text.replace(/\s+/g, " ")) {
    n_cells -= count_cells(letter);
    if (n_cells < 1 && cut.length + letter.length < text.length) return `${cut}…`;
    cut += letter;
  }
  return cut;
}

/** @param {string} text */
function count_cells(text) {
  let n_cells = 0;
  for (const letter of text) n_cells += (letter.codePointAt(0) ?? 0) > 0x10ff ? 2 : 1;
  return n_cells;
}

/**
 * Lay out the inside of a box, and of the open ones in it; what was laid out is kept.
 * @param {import("./graph.js").Boxes} boxes @param {Box} box @returns {Arranged}
 */
export function arrange(boxes, box) {
  if (box.arranged) return box.arranged;
  const { nets, sources } = boxes.connect(box);
  const label = (/** @type {number[]} */ values) => boxes.values.label(values);
  /** @type {ViewNode[]} */ const nodes = [];
  /** @type {(kind: "in" | "out" | "source", values: number[], text?: string) => number} */
  const add_pill = (kind, values, text = label(values)) => {
    const side = kind === "source" ? undefined : kind;
    return nodes.push({ ...make_node(kind, null, text), side, values }) - 1;
  };
  const ins = nets.map((net) => (net.from < 0 ? add_pill("in", net.values) : -1));
  const starts = sources.map((source) =>
    add_pill("source", source.values, boxes.name_source(source)));
  const first = nodes.length;
  for (const item of box.items) nodes.push(make_item(boxes, item));
  const outs = nets.map((net) => (net.is_out ? add_pill("out", net.values) : -1));
  const texts = nets.map(({ from, to, is_out, values }) => {
    const is_told = from < 0 || nodes[first + from].inner || (is_out && !to.length);
    return is_told ? "" : label(values);
  });
  /** @type {Wire[]} */
  const wires = nets.map(({ from, to, values }, i) => ({
    from: from < 0 ? ins[i] : first + from, label: texts[i].length * SMALL_LETTER,
    starts: from < 0 ? [null] : find_pills(nodes[first + from], "out", values),
    to: [...to.flatMap((item) => find_pills(nodes[first + item], "in", values)
      .map((x) => ({ node: first + item, x }))),
    ...(outs[i] < 0 ? [] : [{ node: outs[i], x: null }])],
  }));
  sources.forEach(({ to }, i) => wires.push({
    from: starts[i], label: 0, starts: [null],
    to: to.map((item) => ({ node: first + item, x: null })),
  }));
  const placed = place(nodes, wires);
  nodes.forEach((node, i) => Object.assign(node, placed.at[i]));
  box.arranged = {
    w: placed.w, h: placed.h, nodes,
    wires: placed.routes.map((route, i) => {
      const { values } = nets[i] ?? sources[i - nets.length];
      const kind = nets[i] ? boxes.values.tensor(values[0]).kind : "source";
      return { values, route, label: texts[i] ?? "", kind };
    }),
  };
  return box.arranged;
}

/** Lay out anew what is in a box, and all that it is in. @param {Box | null} box */
export function forget_layout(box) {
  for (; box; box = box.parent) box.arranged = null;
}

/**
 * Where an open box is entered or left by values, from its middle.
 * @param {ViewNode} node @param {string} kind @param {number[]} values
 * @returns {(number | null)[]}
 */
function find_pills({ inner }, kind, values) {
  if (!inner) return [null];
  const pills = inner.nodes.filter((pill) => pill.kind === kind
    && pill.values.some((value) => values.includes(value)));
  return pills.map((pill) => pill.x + pill.w / 2 - inner.w / 2);
}

/** @param {import("./graph.js").Boxes} boxes @param {Box | number} item */
function make_item(boxes, item) {
  const { n_ops, error, signatures, op_signature } = boxes.trace;
  const is_last = n_ops - 1 === (is_box(item) ? item.last_op : item);
  const mark = error !== null && is_last ? "✗ " : "";
  if (!is_box(item)) {
    return make_node("op", item, mark + shorten_op(signatures[op_signature[item]].op));
  }
  const name = mark + boxes.name(item);
  return item.is_open ? make_node("open", item, name, "", arrange(boxes, item))
    : make_node("closed", item, name, boxes.describe(item));
}

/** @returns {ViewNode} */
function make_node(
  /** @type {ViewNode["kind"]} */ kind, /** @type {Box | number | null} */ item,
  /** @type {string} */ name, detail = "", /** @type {Arranged | null} */ inner = null,
) {
  const text = ellipsize(name);
  const is_box = kind === "open" || kind === "closed";
  const w = Math.max(count_cells(text) * (item === null ? SMALL_LETTER : LETTER),
    detail.length * SMALL_LETTER) + (is_box ? 34 : 18);
  const h = { op: 22, closed: 38, in: 18, out: 18, source: 18, open: 0 }[kind];
  const node = { kind, item, values: [], text, detail, inner, x: 0, y: 0, w, h };
  if (!inner) return node;
  const inner_w = inner.w + 2 * BOX_PADDING;
  return { ...node, w: Math.max(w, inner_w), h: inner.h + BOX_INSET + BOX_PADDING };
}

/**
 * Place nodes, and route the wires between them. What is not connected stands side by side.
 * @param {Spot[]} spots @param {Wire[]} wires @returns {Placed}
 */
export function place(spots, wires) {
  /** @type {Placed} */
  const placed = { w: 0, h: 0, at: [], routes: [] };
  let [x, y, shelf] = [0, 0, 0];
  for (const nodes of find_groups(spots.length, wires)) {
    const number = new Map(nodes.map((node, i) => [node, i]));
    const index = (/** @type {number} */ node) => number.get(node) ?? -1;
    const own = [...wires.keys()].filter((i) => number.has(wires[i].from));
    const layers = new Layers(nodes.map((node) => spots[node]), own.map((i) => ({
      ...wires[i], from: index(wires[i].from),
      to: wires[i].to.map((end) => ({ ...end, node: index(end.node) })),
    })));
    if (x && x + layers.w > WIDE_LAYER) [x, y, shelf] = [0, y + shelf + LAYER_GAP, 0];
    nodes.forEach((node, i) => { placed.at[node] = layers.locate(i, x, y); });
    own.forEach((wire, i) => { placed.routes[wire] = layers.draw(i, x, y); });
    shelf = Math.max(shelf, layers.h);
    placed.w = Math.max(placed.w, x + layers.w);
    placed.h = y + shelf;
    x += layers.w + APART;
  }
  return placed;
}

/**
 * Return the nodes that wires connect, group by group.
 * @param {number} n_nodes @param {Wire[]} wires
 */
function find_groups(n_nodes, wires) {
  const first = Array.from({ length: n_nodes }, (_, i) => i);
  const find = (/** @type {number} */ i) => {
    while (first[i] !== i) i = first[i] = first[first[i]];
    return i;
  };
  for (const { from, to } of wires) {
    for (const { node } of to) {
      const [a, b] = [find(from), find(node)];
      first[Math.max(a, b)] = Math.min(a, b);
    }
  }
  /** @type {Map<number, number[]>} */
  const groups = new Map();
  first.forEach((_, i) => groups.set(find(i), [...(groups.get(find(i)) ?? []), i]));
  return groups.values();
}

/** The layered layout of connected nodes. */
class Layers {
  /** @type {Vertex[][]} */ #layers = [];
  /** @type {Vertex[][]} the way of a wire by layer, without its ends */ #trunks = [];
  /** @type {number[]} */ #tops = [];
  /** @type {number[]} */ #floors = [];

  /** @param {Spot[]} spots @param {Wire[]} wires */
  constructor(spots, wires) {
    this.spots = spots;
    this.wires = wires;
    const labels = spots.map(() => ({ n: 0, w: 0 }));
    for (const { from, label } of wires) {
      if (label) labels[from] = { n: labels[from].n + 1, w: Math.max(labels[from].w, label) };
    }
    /** @type {Vertex[]} */
    this.nodes = spots.map(({ w }, i) => make_vertex(
      Math.max(w, labels[i].w + labels[i].n * 12), 0, true));
    this.#assign();
    for (const vertex of this.nodes) (this.#layers[vertex.layer] ??= []).push(vertex);
    this.#trunks = wires.map((wire) => this.#pass(wire));
    this.#order();
    this.#align();
    const all = this.#layers.flat();
    const left = Math.min(...all.map((v) => v.x - v.w / 2));
    for (const vertex of all) vertex.x -= left;
    this.w = Math.max(...all.map((v) => v.x + v.w / 2));
    let y = 0;
    this.#layers.forEach((_, layer) => {
      const own = [...spots.keys()].filter((i) => this.nodes[i].layer === layer);
      this.#tops[layer] = y;
      y += Math.max(0, ...own.map((i) => spots[i].h + LABEL_LINE * labels[i].n));
      this.#floors[layer] = y;
      y += LAYER_GAP;
    });
    this.h = y - LAYER_GAP;
  }

  /** Give each node a layer: below all that it reads, and next to what reads it. */
  #assign() {
    const { nodes, spots, wires } = this;
    /** @type {Set<number>[]} */
    const down = nodes.map(() => new Set());
    const is_late = nodes.map(() => false);
    for (const { from, to } of wires) {
      for (const { node } of to) {
        down[from].add(node);
        is_late[node] ||= spots[from].side !== "in";
      }
    }
    const base = spots.some((spot) => spot.side === "in") ? 1 : 0;
    nodes.forEach((vertex, i) => {
      vertex.layer = Math.max(vertex.layer, spots[i].side === "in" ? 0 : base);
      for (const node of down[i]) {
        nodes[node].layer = Math.max(nodes[node].layer, vertex.layer + 1);
      }
    });
    for (let i = nodes.length - 1; i >= 0; i -= 1) {
      if (is_late[i] || spots[i].side || !down[i].size) continue;
      nodes[i].layer = Math.min(...[...down[i]].map((node) => nodes[node].layer)) - 1;
    }
    const last = Math.max(...nodes.map((v, i) => (spots[i].side === "out" ? 0 : v.layer))) + 1;
    spots.forEach((spot, i) => { if (spot.side === "out") nodes[i].layer = last; });
    this.#break_wide();
  }

  #break_wide() {
    const order = [...this.nodes].sort((a, b) => a.layer - b.layer);
    let [layer, before, w] = [-1, -1, 0];
    for (const vertex of order) {
      w += vertex.w + APART;
      if (vertex.layer !== before || w > WIDE_LAYER) [layer, w] = [layer + 1, vertex.w + APART];
      before = vertex.layer;
      vertex.layer = layer;
    }
  }

  /** Lead a wire through the layers on its way; all its ends share it. @param {Wire} wire */
  #pass({ from, to }) {
    const ends = [...new Set(to.map((end) => this.nodes[end.node]))];
    const trunk = [this.nodes[from]];
    const start = trunk[0].layer;
    const link = (/** @type {Vertex} */ above, /** @type {Vertex} */ below) => {
      above.down.push(below);
      below.up.push(above);
    };
    for (let layer = start + 1; layer < Math.max(...ends.map((end) => end.layer)); layer += 1) {
      const vertex = make_vertex(6, layer, false);
      link(trunk[trunk.length - 1], vertex);
      this.#layers[layer].splice(this.#layers[layer].length >> 1, 0, vertex);
      trunk.push(vertex);
    }
    for (const end of ends) link(trunk[end.layer - start - 1], end);
    return trunk;
  }

  /** Sort the layers by the middle of their neighbours; the sweep with least crossings wins. */
  #order() {
    const number = () => this.#layers.forEach((layer) => layer.forEach((v, i) => { v.x = i; }));
    number();
    let best = this.#layers.map((layer) => [...layer]);
    let least = this.#count_crossings();
    for (let sweep = 0; sweep < SWEEPS && least; sweep += 1) {
      const is_down = sweep % 2 === 0;
      for (const layer of is_down ? this.#layers : [...this.#layers].reverse()) {
        for (const v of layer) v.wish = find_mean(is_down ? v.up : v.down, v.x);
        layer.sort((a, b) => a.wish - b.wish || a.x - b.x).forEach((v, i) => { v.x = i; });
      }
      const n_crossings = this.#count_crossings();
      if (n_crossings >= least) continue;
      least = n_crossings;
      best = this.#layers.map((layer) => [...layer]);
    }
    this.#layers = best;
    number();
  }

  #count_crossings() {
    let n_crossings = 0;
    for (const layer of this.#layers) {
      const ends = layer.flatMap((v) => v.up.map((above) => above.x).sort((a, b) => a - b));
      if (ends.length > 300) continue; // The count is quadratic, and such a layer a tangle.
      ends.forEach((end, i) => {
        for (let j = 0; j < i; j += 1) if (ends[j] > end) n_crossings += 1;
      });
    }
    return n_crossings;
  }

  /** Move each vertex to the middle of its neighbours, as far as there is room. */
  #align() {
    for (const layer of this.#layers) {
      let x = 0;
      layer.forEach((v, i) => { v.x = x += i ? find_distance(layer[i - 1], v) : 0; });
      for (const v of layer) v.x -= x / 2;
    }
    const upward = [...this.#layers].reverse();
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
      for (const layer of this.#layers) settle(layer, (v) => v.up);
      for (const layer of upward) settle(layer, (v) => v.down);
    }
    for (const layer of this.#layers) settle(layer, (v) => [...v.up, ...v.down]);
  }

  /** @param {number} node @param {number} x @param {number} y */
  locate(node, x, y) {
    const vertex = this.nodes[node];
    return { x: x + vertex.x - this.spots[node].w / 2, y: y + this.#tops[vertex.layer] };
  }

  /** Draw a wire from an origin. @returns {Route} */
  draw(/** @type {number} */ index, /** @type {number} */ x0, /** @type {number} */ y0) {
    const { from, starts, to, label } = this.wires[index];
    const trunk = this.#trunks[index];
    const { layer } = trunk[0];
    const top = y0 + this.#tops[layer] + this.spots[from].h;
    const outs = [...this.wires.keys()].filter((i) => this.wires[i].from === from);
    const free = this.#spread(outs.indexOf(index), outs.length, from);
    const tops = starts.map((start) => x0 + trunk[0].x + (start ?? free));
    // Where the wire is at the floor of each layer on its way; at first it may be in parts.
    const ways = [tops, ...trunk.slice(1).map((vertex) => [x0 + vertex.x])];
    const xs = [...ways.flat()];
    const floor = to_tenth(y0 + this.#floors[layer]);
    let path = tops.map((x) => `M${to_tenth(x)} ${to_tenth(top)}V${floor}`).join("");
    let [heads, bottom] = ["", top];
    const lead = (/** @type {number} */ i, /** @type {number} */ x) => {
      const [start, end] = [y0 + this.#floors[layer + i], y0 + this.#tops[layer + i + 1]];
      for (const way of ways[i]) path += draw_bend(way, start, x, end);
      xs.push(x);
      bottom = Math.max(bottom, end);
      return end;
    };
    for (let i = 1; i < trunk.length; i += 1) {
      lead(i - 1, ways[i][0]);
      path += `V${to_tenth(y0 + this.#floors[layer + i])}`;
    }
    for (const end of to) {
      const vertex = this.nodes[end.node];
      const x = x0 + vertex.x + (end.x ?? this.#find_end(index, end.node));
      const tip = lead(vertex.layer - layer - 1, x);
      heads += `M${to_tenth(x - 3.5)} ${to_tenth(tip - 7)}h7l-3.5 7z`;
    }
    const line = 1 + outs.filter((i) => this.wires[i].label).indexOf(index);
    return {
      path, heads, label: { x: tops[0], y: top + LABEL_LINE * line - 1 }, top, bottom,
      left: Math.min(...xs, tops[0] - label / 2), right: Math.max(...xs, tops[0] + label / 2),
    };
  }

  /** Where at the top of a node a wire ends: in the order in which wires arrive. */
  #find_end(/** @type {number} */ index, /** @type {number} */ node) {
    const { layer } = this.nodes[node];
    const from = (/** @type {number} */ i) =>
      this.#trunks[i][layer - this.#trunks[i][0].layer - 1].x;
    const ins = [...this.wires.keys()]
      .filter((i) => this.wires[i].to.some((end) => end.node === node))
      .sort((a, b) => from(a) - from(b) || a - b);
    return this.#spread(ins.indexOf(index), ins.length, node);
  }

  /** The place of one of several wires at a node, from its middle. */
  #spread(/** @type {number} */ i, /** @type {number} */ n, /** @type {number} */ node) {
    return n > 1 ? (i - (n - 1) / 2) * Math.min(24, (this.spots[node].w - 16) / (n - 1)) : 0;
  }
}

/** @returns {Vertex} */
function make_vertex(
  /** @type {number} */ w, /** @type {number} */ layer, /** @type {boolean} */ is_node,
) {
  return { w, layer, up: [], down: [], x: 0, wish: 0, is_node };
}

const find_mean = (/** @type {Vertex[]} */ vertices, /** @type {number} */ otherwise) =>
  (vertices.length ? vertices.reduce((sum, v) => sum + v.x, 0) / vertices.length : otherwise);

const find_distance = (/** @type {Vertex} */ a, /** @type {Vertex} */ b) =>
  (a.w + b.w) / 2 + (a.is_node || b.is_node ? APART : 6);

/**
 * Bring each vertex of a layer as near to the mean of its neighbours as the others allow:
 * least squares under "keep apart", solved exactly by pooling those that touch.
 * @param {Vertex[]} layer @param {(v: Vertex) => Vertex[]} list_neighbours
 */
function settle(layer, list_neighbours) {
  /** @type {{mean: number, weight: number, vertices: Vertex[]}[]} */
  const pools = [];
  let offset = 0;
  layer.forEach((v, i) => {
    offset += i ? find_distance(layer[i - 1], v) : 0;
    // A node follows nodes, and a passing wire itself: else, each pushes the other aside.
    const all = list_neighbours(v);
    const alike = all.filter((neighbour) => neighbour.is_node === v.is_node);
    const neighbours = alike.length ? alike : all;
    v.wish = offset;
    // A long way is kept straight; a wire that passes one layer gives way to the nodes there.
    const stiffness = v.is_node ? 1 : alike.length && 4;
    const weight = neighbours.length * stiffness || 0.05;
    let pool = { mean: find_mean(neighbours, v.x) - offset, weight, vertices: [v] };
    for (let last = pools.at(-1); last && last.mean > pool.mean; last = pools.at(-1)) {
      pools.pop();
      const sum = last.weight + pool.weight;
      pool = {
        mean: (last.mean * last.weight + pool.mean * pool.weight) / sum, weight: sum,
        vertices: [...last.vertices, ...pool.vertices],
      };
    }
    pools.push(pool);
  });
  for (const pool of pools) for (const v of pool.vertices) v.x = pool.mean + v.wish;
}

const to_tenth = (/** @type {number} */ n) => Math.round(n * 10) / 10;

/** @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
function draw_bend(x0, y0, x1, y1) {
  const start = `M${to_tenth(x0)} ${to_tenth(y0)}`;
  if (Math.abs(x0 - x1) < 1) return `${start}V${to_tenth(y1)}`;
  const y = to_tenth((y0 + y1) / 2);
  return `${start}C${to_tenth(x0)} ${y} ${to_tenth(x1)} ${y} ${to_tenth(x1)} ${to_tenth(y1)}`;
}
