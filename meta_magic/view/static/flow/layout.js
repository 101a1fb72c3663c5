// Lays out the inside of one box in layers from top to bottom; its inner boxes are laid out
// before. No DOM.

import { is_leaf } from "./items.js";
import { arrange_nodes, flip } from "./layers.js";
import { LARGE_TEXT, measure_text } from "./letters.js";

export const BOX_HEADER = 24; // of an open box
const BOX_INSET = 30; // from its top to what is in it
const BOX_PADDING = 12;
const PORT = 6; // the size of a dot on the frame of a box
const MAX_CELLS = 42; // of a name; a wide letter takes two
const NODE_HEIGHTS = { op: 24, function: 24, closed: 40, removed: 24 };
const CIRCLE = 24;
/** By how much the boxes that a run is drawn on stick out of it. */
export const STACKED = 6;
/** Of operators that join two tensors, as figures have them. @type {Record<string, string>} */
export const SIGNS = { add: "+", iadd: "+", add_: "+", sub: "−", mul: "×", imul: "×", mul_: "×", div: "÷", truediv: "÷" };
const PILL_HEIGHT = 18;

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("./values.js").Value} Value
 * @typedef {{kind: "op" | "function" | "closed" | "open" | "in" | "out" | "source" | "removed" | "", item: Item | null,
 *   values: Value[], is_port: boolean, text: string, sizes: string, detail: string, sign: string, inner: Arranged | null, x: number, y: number,
 *   w: number, h: number, room: number, layer: number, is_up: boolean, floor: number, gutter: number,
 *   up: ViewNode[], down: ViewNode[], leaving: Wire[], arriving: Port[],
 *   labels: Wire[]}} ViewNode
 *   a node of an item, a pill for what comes in or goes out, a removed module, or, without a kind, a wire on
 *   its way through a layer. `is_port`: a pill is a dot on the frame; `sizes`: beside its name; `sign`: instead of it. While it is placed, `x` is its middle; `room` is its width with labels,
 *   `floor` where its layer ends, `gutter` what is right of its column, `is_up` whether wires
 *   enter it from below
 * @typedef {{node: ViewNode, x: number | null, above?: ViewNode, side?: number}} Port where a wire reaches a
 *   node. `x`: from its middle, or null until it is placed; `above`: what it comes from; `side`: 1 if it enters from the left, -1 from the right
 * @typedef {{from: ViewNode, starts: Port[], ends: Port[], label: string, kind?: string,
 *   values?: Value[], trunk?: ViewNode[], lane?: number, path?: string, heads?: string, label_x?: number,
 *   label_y?: number, label_w?: number, label_h?: number, left?: number, top?: number, right?: number, bottom?: number}} Wire
 *   from a node to later ones; `trunk`: its way by layer; `lane`: its number between columns; `label_x`, `label_y`: the middle of
 *   its label
 * @typedef {{w: number, h: number, nodes: ViewNode[], wires: Wire[], ports: boolean[], headroom: number, is_up: boolean}} Arranged
 *   `ports`: whether what comes in is a dot on the frame, and what goes out; `headroom`: pixels between the first dot and all else; `is_up`: whether wires lead from the bottom to the top, or from right to left
 */

const count_cells = (text) => text.replace(/[^\0-\u10ff]/gu, "--").length;

/** Cut a text to a width; wide letters, such as emoji, count twice. @param {string} text */
export function ellipsize(text, n_cells = MAX_CELLS) {
  const line = text.replace(/\s+/g, " ");
  if (count_cells(line) <= n_cells) return line;
  if (n_cells < 1) return "";
  const letters = [...line].slice(0, n_cells);
  while (count_cells(letters.join("")) >= n_cells) letters.pop();
  return `${letters.join("")}…`;
}

/**
 * Lay out the inside of a box, and of the open ones in it; what was laid out is kept.
 * @param {import("./boxes.js").Boxes} boxes @param {Item} box @returns {Arranged}
 */
export function arrange(boxes, box) {
  if (box.arranged) return box.arranged;
  const items = box.items.map((item) => make_item_node(boxes, item));
  const [ins, outs, labelled] = [[], [], new Set()];
  const add_pill = (pills, kind, { values, name }) =>
    pills[pills.push(make_node(kind, name, { values })) - 1];
  const wires = connect(boxes, box).map((net) => {
    const { values, to } = net;
    const is_flow = net.kind === "flow";
    const from = items[net.from] ?? add_pill(ins, is_flow ? "in" : "source", net);
    const find = (node, side) => find_ports(node, side, values, boxes.is_across);
    const ends = to.flatMap((position) => find(items[position], "in"));
    const is_unlabelled = !from.item || (net.is_out && !to.length)
      || (from.inner && (!from.inner.ports[1] || labelled.has(from)));
    labelled.add(from);
    if (net.is_out) ends.push({ node: add_pill(outs, "out", net), x: null });
    return {
      from, starts: find(from, "out"), ends, values, label: is_unlabelled ? "" : net.name,
      kind: is_flow ? boxes.find_effect(from.item, values[0]) : "source",
    };
  });
  // The wire outside says what comes in or goes out, if it is one thing.
  const ports = [ins.filter(({ kind }) => kind === "in"), outs].map(([pill, ...more]) => {
    const is_port = Boolean(box.parent && pill && !more.length);
    return is_port && Object.assign(pill, { is_port, text: "", w: PORT, h: PORT }).is_port;
  });
  const nodes = [...ins, ...items, ...outs];
  for (const { text, from, to } of boxes.removed.filter((one) => one.box === box)) {
    const node = make_node("removed", text, {});
    const [above, below] = [from, to].map((item) => item && items[item.position]);
    nodes.splice(above ? nodes.indexOf(above) + 1 : ins.length, 0, node);
    for (const [one, other] of [[above, node], [node, below]]) {
      if (one && other) wires.push({ from: one, starts: [{ node: one, x: null }], ends: [{ node: other, x: null }], values: [], label: "", kind: "removed" });
    }
  }
  box.arranged = {
    ...arrange_nodes(nodes, wires, boxes.is_across, box.parent?.kind === "run" ? 0 : boxes.wide),
    nodes, wires, ports, is_up: false,
  };
  for (const { inner, is_up } of nodes) if (inner) flip(inner, is_up, boxes.is_across);
  return box.arranged;
}

/** The nets in a box, found again only where others are shown. */
function connect(boxes, box) {
  const key = `${boxes.has_parameters} ${box.items.map(is_leaf)}`;
  if (box.connected?.key !== key) box.connected = { key, nets: boxes.connect(box) };
  return box.connected.nets;
}

/** Lay out anew what is in a box, and all that it is in. @param {Item | null} box */
export function forget_layout(box) {
  for (; box; box = box.parent) box.arranged = null;
}

/** Where values enter or leave a node: an open box, at its pills. @returns {Port[]} */
function find_ports(node, kind, values, is_across) {
  const { inner, item } = node;
  if (!inner) return [{ node, x: null }];
  const all = inner.nodes.filter((pill) => pill.kind === kind);
  const found = all.filter((pill) => pill.values.some((value) => values.includes(value)));
  // What the last block of a run makes leaves the one that is shown for it.
  const pills = item.is_sample && !found.length ? all.slice(0, 1) : found;
  return pills.map((pill) => ({
    node, x: is_across ? BOX_INSET + pill.y + pill.h / 2 - node.h / 2 : pill.x + pill.w / 2 - inner.w / 2,
  }));
}

/**
 * The pixels between the frame of a box and what is in it, from the left on; a dot stands on the frame.
 * @param {Arranged} inner @returns {number[]}
 */
export function find_insets({ ports: [has_in, has_out], headroom, is_up }, is_across) {
  const ends = [has_in ? headroom - PORT / 2 : BOX_PADDING, has_out ? -PORT / 2 : BOX_PADDING];
  const [before, after] = is_up ? ends.toReversed() : ends;
  return is_across ? [before, BOX_INSET, after, BOX_PADDING]
    : [BOX_PADDING, before === BOX_PADDING ? BOX_INSET : BOX_HEADER + before, BOX_PADDING, after];
}

/** Whether an item is drawn as several boxes, on each other. @param {Item} item */
export const is_stacked = ({ kind, is_open, is_sample }) => is_sample || (!is_open && ["run", "part"].includes(kind));

function make_item_node(boxes, item) {
  const name = (boxes.trace.is_raised(item.last_op) ? "✗ " : "") + boxes.name(item);
  if (is_leaf(item)) {
    const sign = boxes.values.reads[item.last_op].length > 1 && SIGNS[name];
    return make_node(item.kind, name, { item, ...sign && { sign, w: CIRCLE } });
  }
  const { sizes } = boxes.read_facts(item);
  const more = is_stacked(item) ? STACKED : 0;
  if (!item.is_open) {
    const node = make_node("closed", name, { item, sizes, detail: (boxes.heat ?? boxes).describe(item) });
    return { ...node, w: node.w + more, h: node.h + more };
  }
  const inner = arrange(boxes, item.is_sample ? item.items[0] : item);
  const [left, top, right, bottom] = find_insets(inner, boxes.is_across);
  const node = make_node("open", name, { item, inner, sizes, h: inner.h + top + bottom + more });
  return { ...node, w: Math.max(node.w, inner.w + left + right) + more };
}

/** The title of a node in two parts: a name, and what has it. @returns {string[]} */
export function split_title({ item, text, sizes }) {
  const [name, rest = ""] = item.title ? ["", text] : text.split(/: (.*)/);
  return [name, `${name && rest && " "}${rest} ${sizes}`.trimEnd()];
}

/** The width of a title. */
export function measure_title(/** @type {any} */ node) {
  const [name, rest] = split_title(node);
  return measure_text(name, LARGE_TEXT, 600) + measure_text(rest, LARGE_TEXT);
}

/** @returns {ViewNode} */
function make_node(kind, name, more) {
  const { item = null, detail = "", sizes: all = "" } = more;
  const text = ellipsize(name);
  const sizes = ellipsize(all, MAX_CELLS - text.length);
  const node = { kind, item, values: [], is_port: false, text, detail, sign: "", inner: null, sizes };
  const title = item ? measure_title(node) : measure_text(text);
  const w = Math.ceil(Math.max(title, measure_text(detail)) + (item && kind !== "op" ? 36 : 20));
  const h = NODE_HEIGHTS[kind] ?? PILL_HEIGHT;
  return { ...node, w, h, ...more, sizes };
}
