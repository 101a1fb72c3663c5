// The Flow view: draws what layout.js placed, as far as it is in sight.

import { PHASES } from "./data.js";
import { draw, format_bytes, format_shape, make } from "./dom.js";
import { Boxes, Values, choose_phase, is_box, list_phases } from "./graph.js";
import { BOX_HEADER, BOX_INSET, arrange, forget_layout } from "./layout.js";

const PAINT_MARGIN = 400; // pixels around the viewport that are painted, too
const MAP_SIDE = 100; // pixels
const DRAG_SLOP = 4; // pixels that a click may move
const IN_SIGHT = 60; // pixels that cannot be moved out of sight
const PNG_SIDE = 8000; // pixels
const MANY_OPEN = 50; // boxes in one box, opened at first
const NOWHERE_PAINTED = { left: 0, top: 0, right: 0, bottom: 0 };
const EXPORT_STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family",
  "font-size", "font-weight", "text-anchor", "paint-order", "stroke-linejoin",
];
const FLOW_LEGEND = [
  ["mm-new", "new tensor"], ["mm-view", "view of its base"], ["mm-write", "written in place"],
];

let n_flows = 0;

/**
 * @typedef {import("./graph.js").Box} Box
 * @typedef {import("./graph.js").Item} Item
 * @typedef {import("./layout.js").ViewNode} ViewNode
 * @typedef {import("./layout.js").ViewWire} ViewWire
 * @typedef {ViewNode | ViewWire} Thing what is painted
 * @typedef {import("./layout.js").Arranged} Arranged
 * @typedef {import("./selection.js").Selected} Selected
 * @typedef {{left: number, top: number, right: number, bottom: number}} Limits
 */

/**
 * Show how tensors flow through the operators of a trace.
 * @param {HTMLElement} element empty
 * @param {import("./data.js").TraceView} trace
 * @param {import("./selection.js").Selection} selection
 * @param {{depth?: number, hide?: string[]}} settings
 */
export function mount_flow(element, trace, selection, settings = {}) {
  element.classList.add("mm-flow");
  if (!trace.n_ops) {
    element.append(make("p", {}, "No operator ran."));
    return null;
  }
  return new FlowView(element, trace, selection, settings);
}

class FlowView {
  #id = `mm-flow-${(n_flows += 1)}`;
  #x = 0;
  #y = 0;
  #zoom = 1;
  #is_placed = false;
  /** @type {Map<Thing, SVGGElement>} */ #painted = new Map();
  /** @type {Limits} */ #limits = NOWHERE_PAINTED;
  /** @type {Item | null} where the keyboard is */ #active = null;
  /** @type {Selected | null} */ #selected = null;
  /** @type {Item[]} */ #found = [];
  #found_at = 0;
  #all = make("canvas");
  /** @type {Arranged | null} what `#all` shows */ #mapped = null;

  /**
   * @param {HTMLElement} element
   * @param {import("./data.js").TraceView} trace
   * @param {import("./selection.js").Selection} selection
   * @param {{depth?: number, hide?: string[]}} settings
   */
  constructor(element, trace, selection, settings) {
    this.trace = trace;
    this.values = new Values(trace);
    this.selection = selection;
    this.depth = settings.depth ?? 1;
    this.wires = draw("g");
    this.nodes = draw("g");
    this.content = draw("g", {}, this.wires, this.nodes);
    this.svg = draw("svg", {
      class: "mm-flow-graph", tabindex: 0, role: "tree", "aria-label": "Flow of tensors",
    }, this.content);
    this.map = make("canvas", { class: "mm-flow-map", "aria-hidden": "true" });
    this.status = make("span", { class: "mm-flow-status", role: "status" });
    element.append(
      this.#make_toolbar(settings.hide?.includes("parameters") ?? true),
      make("div", { class: "mm-flow-stage" }, this.svg, this.map),
    );
    const phase = choose_phase(trace);
    this.boxes = new Boxes(this.values, phase);
    this.show_boxes();
    this.#listen();
    selection.subscribe((selected, source) => this.#follow(selected, source));
    this.#follow(selection.current, null);
  }

  /** @param {boolean} hides_parameters */
  #make_toolbar(hides_parameters) {
    /** @type {(text: string, title: string, act: () => void) => HTMLElement} */
    const button = (text, title, act) => {
      const made = make("button", { type: "button", title, "aria-label": title }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.phase = make("select", { "aria-label": "Phase" }, ...list_phases(this.trace).map(
      (phase) => make("option", { value: phase }, PHASES[phase])));
    this.phase.addEventListener("change", () => this.show_phase(Number(this.phase.value)));
    this.query = make("input", {
      type: "search", placeholder: "Search", "aria-label": "Search in the flow",
    });
    this.query.addEventListener("input", () => { this.#found = []; });
    this.query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#find(event.shiftKey ? -1 : 1);
    });
    this.parameters = make("input", { type: "checkbox" });
    this.parameters.checked = !hides_parameters;
    this.parameters.addEventListener("change", () => this.show_phase(this.boxes.phase));
    return make("div", { class: "mm-flow-bar" },
      this.phase, this.query,
      make("label", {}, this.parameters, " parameters and constants"),
      button("−", "Zoom out", () => this.zoom(1 / 1.25)),
      button("+", "Zoom in", () => this.zoom(1.25)),
      button("fit", "Fit all into view", () => this.fit()),
      button("SVG", "Save as SVG", () => this.save_svg()),
      button("PNG", "Save as PNG", () => this.save_png()),
      ...FLOW_LEGEND.map(([name, text]) => make("span", { class: "mm-flow-key" },
        draw("svg", { width: 26, height: 12, "aria-hidden": "true" },
          draw("g", { class: `mm-node ${name}` },
            draw("rect", { x: 1, y: 1, width: 24, height: 10, rx: 3 }))),
        text)),
      this.status);
  }

  #listen() {
    const { svg } = this;
    /** @type {{x: number, y: number, is_drag: boolean} | null} */ let hold = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0) hold = { x: event.clientX, y: event.clientY, is_drag: false };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!hold) return;
      const [x, y] = [event.clientX - hold.x, event.clientY - hold.y];
      if (!hold.is_drag && Math.hypot(x, y) < DRAG_SLOP) return;
      if (!hold.is_drag) svg.setPointerCapture(event.pointerId);
      hold = { x: event.clientX, y: event.clientY, is_drag: true };
      this.move(this.#x + x, this.#y + y);
    });
    svg.addEventListener("pointerup", (event) => {
      const node = hold && !hold.is_drag && this.#node_at(event);
      hold = null;
      if (node) this.#click(node, event);
    });
    svg.addEventListener("pointercancel", () => { hold = null; });
    svg.addEventListener("dblclick", (event) => {
      const item = this.#node_at(event)?.item;
      if (is_box(item) && !is_arrow(event)) this.toggle(item);
    });
    svg.addEventListener("pointerover", (event) => this.#explain(event));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return;
      event.preventDefault();
      const { left, top } = svg.getBoundingClientRect();
      this.zoom(1.0015 ** -event.deltaY, event.clientX - left, event.clientY - top);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const is_plain = !event.altKey && !event.ctrlKey && !event.metaKey;
      if (is_plain && this.#press(event.key)) event.preventDefault();
    });
    const go = (/** @type {PointerEvent} */ event) => {
      if (!event.buttons) return;
      const { left, top, width } = this.map.getBoundingClientRect();
      const scale = (this.boxes.root.arranged.w / width) * this.#zoom;
      this.move(svg.clientWidth / 2 - (event.clientX - left) * scale,
        svg.clientHeight / 2 - (event.clientY - top) * scale);
    };
    this.map.addEventListener("pointerdown", go);
    this.map.addEventListener("pointermove", go);
    new ResizeObserver(() => {
      this.#mapped = null;
      if (!this.#is_placed) this.#go_home();
      else this.move(this.#x, this.#y);
    }).observe(svg);
  }

  /** @param {number} phase */
  show_phase(phase) {
    if (phase === this.boxes.phase) forget_layouts(this.boxes.root);
    else this.boxes = new Boxes(this.values, phase);
    this.show_boxes();
  }

  show_boxes() {
    const { boxes } = this;
    boxes.has_parameters = this.parameters.checked;
    this.phase.value = String(boxes.phase);
    this.#found = [];
    this.#active = null;
    const open = (/** @type {Box} */ box, /** @type {number} */ depth) => {
      if (box.kind === "part" || depth > this.depth) return;
      box.is_open = true;
      for (const item of box.items.slice(0, MANY_OPEN)) if (is_box(item)) open(item, depth + 1);
    };
    if (!boxes.root.is_open) open(boxes.root, 0);
    this.status.textContent = `${boxes.root.n_ops.toLocaleString("en")} operators`;
    this.#go_home();
  }

  /** The beginning, at a readable size. */
  #go_home() {
    const { w } = arrange(this.boxes, this.boxes.root);
    this.#limits = NOWHERE_PAINTED;
    const width = this.svg.clientWidth;
    this.#is_placed = width > 0;
    this.#zoom = Math.min(1, Math.max(0.6, width / (w + 20))) || 1;
    this.move(Math.max(10, (width - w * this.#zoom) / 2), 10);
  }

  fit() {
    const { w, h } = arrange(this.boxes, this.boxes.root);
    const { clientWidth, clientHeight } = this.svg;
    this.#zoom = Math.min(1.2, clientWidth / (w + 20), clientHeight / (h + 20));
    this.move((clientWidth - w * this.#zoom) / 2, (clientHeight - h * this.#zoom) / 2);
  }

  /** @param {number} factor @param {number} x @param {number} y what stays in place */
  zoom(factor, x = this.svg.clientWidth / 2, y = this.svg.clientHeight / 2) {
    const before = this.#zoom;
    this.#zoom = Math.min(4, Math.max(0.005, before * factor));
    const ratio = this.#zoom / before;
    this.move(x - (x - this.#x) * ratio, y - (y - this.#y) * ratio);
  }

  /** Put the origin at a place of the viewport. @param {number} x @param {number} y */
  move(x, y) {
    const { w, h } = arrange(this.boxes, this.boxes.root);
    /** @type {(start: number, size: number, room: number) => number} */
    const clamp = (start, size, room) =>
      Math.max(IN_SIGHT - size * this.#zoom, Math.min(room - IN_SIGHT, start));
    this.#x = clamp(x, w, this.svg.clientWidth);
    this.#y = clamp(y, h, this.svg.clientHeight);
    const place = `translate(${this.#x},${this.#y}) scale(${this.#zoom})`;
    this.content.setAttribute("transform", place);
    const seen = this.#list_limits(0);
    const limits = this.#limits;
    if (seen.left < limits.left || seen.top < limits.top || seen.right > limits.right
      || seen.bottom > limits.bottom) this.#paint(this.#list_limits(PAINT_MARGIN));
    this.#paint_map();
  }

  /** What the viewport shows, and some more. @param {number} margin */
  #list_limits(margin) {
    const { clientWidth, clientHeight } = this.svg;
    return {
      left: (-margin - this.#x) / this.#zoom, right: (clientWidth + margin - this.#x) / this.#zoom,
      top: (-margin - this.#y) / this.#zoom, bottom: (clientHeight + margin - this.#y) / this.#zoom,
    };
  }

  /** Paint what lies within limits, and take away the rest. @param {Limits} limits */
  #paint(limits) {
    this.#limits = limits;
    const before = this.#painted;
    this.#painted = new Map();
    const is_in = (/** @type {Limits} */ { left, top, right, bottom }) =>
      left < limits.right && right > limits.left && top < limits.bottom && bottom > limits.top;
    /** @type {(thing: Thing, x: number, y: number, make_it: () => SVGGElement) => void} */
    const put = (thing, x, y, make_it) => {
      const element = before.get(thing) ?? make_it();
      element.setAttribute("transform", `translate(${x},${y})`);
      this.#painted.set(thing, element);
    };
    /** @type {(arranged: Arranged, x: number, y: number, level: number) => void} */
    const paint = ({ nodes, wires }, x, y, level) => {
      for (const wire of wires) {
        if (is_in(shift_limits(wire.route, x, y))) put(wire, x, y, () => this.#draw_wire(wire));
      }
      for (const node of nodes) {
        const [left, top] = [x + node.x, y + node.y];
        if (!is_in({ left, top, right: left + node.w, bottom: top + node.h })) continue;
        put(node, left, top, () => this.#draw_node(node, level));
        const { inner } = node;
        if (inner) paint(inner, left + (node.w - inner.w) / 2, top + BOX_INSET, level + 1);
      }
    };
    paint(arrange(this.boxes, this.boxes.root), 0, 0, 1);
    for (const [thing, element] of before) if (!this.#painted.has(thing)) element.remove();
    this.#mark();
  }

  /** @param {ViewWire} wire */
  #draw_wire(wire) {
    const { path, heads, label } = wire.route;
    const group = draw("g", { class: `mm-wire mm-${wire.kind}` },
      draw("path", { class: "mm-reach", d: path }), draw("path", { d: path }),
      draw("path", { class: "mm-head", d: heads }));
    if (wire.label) group.append(draw("text", { x: label.x, y: label.y }, wire.label));
    this.wires.append(group);
    return group;
  }

  /** @param {ViewNode} node @param {number} level */
  #draw_node(node, level) {
    const { item, kind, w, h } = node;
    const is_failed = node.text.startsWith("✗") && kind !== "open";
    const group = draw("g", { class: `mm-node mm-${kind} ${this.#classify(item)}` });
    const rect = (/** @type {object} */ more) => group.append(
      draw("rect", { width: w, height: h, rx: item === null ? 9 : 4, ...more }));
    if (kind === "closed" && is_box(item) && item.kind !== "module") rect({ x: 4, y: 4 });
    rect({});
    if (kind === "open") rect({ height: BOX_HEADER, class: "mm-handle" });
    const y = kind === "closed" ? 16 : Math.min(BOX_HEADER, h) / 2 + 4;
    const write = (/** @type {string} */ text, /** @type {number} */ x, more = {}) =>
      group.append(draw("text", { x, y, ...more }, text));
    if (is_box(item)) write(item.is_open ? "▾" : "▸", 7, { class: "mm-arrow" });
    if (is_box(item)) write(node.text, 22);
    else write(node.text, w / 2, { class: "mm-middle" });
    if (node.detail) write(node.detail, 22, { class: "mm-detail", y: 31 });
    if (is_failed) group.classList.add("mm-failed");
    if (item !== null) this.#label(group, node, level);
    this.nodes.append(group);
    return group;
  }

  /** What an operator does to its tensors. @param {Item | null} item */
  #classify(item) {
    if (typeof item !== "number") return "";
    const { writes, views } = this.trace.signatures[this.trace.op_signature[item]];
    if (writes.length) return "mm-write";
    return views.some((view) => view >= 0) ? "mm-view" : "mm-new";
  }

  /** @param {SVGGElement} group @param {ViewNode} node @param {number} level */
  #label(group, { item, detail, text }, level) {
    group.id = this.#name(item);
    const name = is_box(item) ? `${this.boxes.name(item)} ${detail}` : text;
    const more = is_box(item) ? { "aria-expanded": item.is_open } : {};
    const attributes = {
      role: "treeitem", "aria-level": level, "aria-label": name.trim(), "aria-selected": false,
      ...more,
    };
    for (const [key, value] of Object.entries(attributes)) group.setAttribute(key, String(value));
  }

  /** @param {Item | null} item @returns {string} */
  #name(item) {
    if (!is_box(item)) return `${this.#id}-${item}`;
    return `${item.parent ? this.#name(item.parent) : this.#id}.${item.position}`;
  }

  /** Show which nodes are selected, and where the keyboard is. */
  #mark() {
    this.svg.removeAttribute("aria-activedescendant");
    for (const [thing, element] of this.#painted) {
      if (!("item" in thing) || thing.item === null) continue;
      const is_selected = this.#is_selected(thing.item);
      element.classList.toggle("mm-selected", is_selected);
      element.setAttribute("aria-selected", String(is_selected));
      element.classList.toggle("mm-active", thing.item === this.#active);
      if (thing.item === this.#active) this.svg.setAttribute("aria-activedescendant", element.id);
    }
  }

  #is_selected(/** @type {Item} */ item) {
    const { kind, index } = this.#selected ?? { kind: "", index: -1 };
    if (is_box(item)) return kind === "module" && item.kind === "module" && item.module === index;
    return kind === "line" ? this.trace.places[this.trace.op_place[item]].line === index
      : kind === "op" && item === index;
  }

  #paint_map() {
    const { w, h } = this.boxes.root.arranged;
    const { svg, map } = this;
    const scale = Math.min(MAP_SIDE / w, (svg.clientHeight - 20) / h);
    map.hidden = (w * h * this.#zoom ** 2) < 4 * svg.clientWidth * svg.clientHeight || scale <= 0;
    if (map.hidden) return;
    const { root } = this.boxes;
    const [width, height] = [Math.max(8, w * scale), Math.max(8, h * scale)];
    if (this.#mapped !== root.arranged) {
      [this.#all.width, this.#all.height] = [width, height];
      const pen = this.#all.getContext("2d");
      if (!pen) return;
      pen.fillStyle = getComputedStyle(svg).color;
      pen.globalAlpha = 0.35;
      for (const node of root.arranged.nodes) this.#paint_on_map(pen, node, 0, 0, scale);
      this.#mapped = root.arranged;
    }
    [map.width, map.height] = [this.#all.width, this.#all.height];
    const pen = map.getContext("2d");
    if (!pen) return;
    pen.drawImage(this.#all, 0, 0);
    const { left, top, right, bottom } = this.#list_limits(0);
    pen.fillStyle = getComputedStyle(svg).color;
    pen.globalAlpha = 0.25;
    const seen = Math.max(2, (bottom - top) * scale);
    pen.fillRect(left * scale, top * scale, (right - left) * scale, seen);
  }

  /**
   * @param {CanvasRenderingContext2D} pen @param {ViewNode} node
   * @param {number} x @param {number} y @param {number} scale
   */
  #paint_on_map(pen, node, x, y, scale) {
    const [left, top] = [x + node.x, y + node.y];
    const { inner } = node;
    if (!inner) {
      pen.fillRect(left * scale, top * scale, node.w * scale, Math.max(0.5, node.h * scale));
    } else for (const child of inner.nodes) {
      this.#paint_on_map(pen, child, left + (node.w - inner.w) / 2, top + BOX_INSET, scale);
    }
  }

  /** @param {Event} event */
  #thing_at(event) {
    const target = /** @type {Element} */ (event.target).closest(".mm-node, .mm-wire");
    for (const [thing, element] of this.#painted) if (element === target) return thing;
    return null;
  }

  /** @param {Event} event */
  #node_at(event) {
    const thing = this.#thing_at(event);
    return thing && "item" in thing ? thing : null;
  }

  /** @param {ViewNode} node @param {Event} event */
  #click({ item }, event) {
    if (item === null) return;
    this.#active = item;
    if (is_box(item) && (is_arrow(event) || item.kind !== "module")) this.toggle(item);
    else this.#select(item);
  }

  #select(/** @type {Item} */ item) {
    if (is_box(item) && item.kind !== "module") return;
    /** @type {Selected} */
    const selected = is_box(item)
      ? { kind: "module", index: item.module } : { kind: "op", index: item };
    this.#selected = selected;
    this.#mark();
    this.selection.select(selected, this);
  }

  /** @param {Selected | null} selected @param {object | null} source */
  #follow(selected, source) {
    if (source === this) return;
    this.#selected = selected;
    if (selected?.kind === "op") this.#reveal_op(selected.index);
    else if (selected?.kind === "module") {
      const box = this.boxes.find_box(selected.index);
      if (box) this.reveal(box);
    }
    this.#mark();
  }

  #reveal_op(/** @type {number} */ op) {
    const phase = this.trace.places[this.trace.op_place[op]].phase;
    if (!this.boxes.is_shown[op]) this.show_phase(phase);
    this.reveal(op);
  }

  /** Open or close a box; its header stays where it is. @param {Box} box */
  toggle(box) {
    const before = this.#locate(box);
    box.is_open = !box.is_open;
    forget_layout(box.parent);
    arrange(this.boxes, this.boxes.root);
    const after = this.#locate(box);
    this.#limits = NOWHERE_PAINTED;
    const zoom = this.#zoom;
    this.move(this.#x + (before.x - after.x) * zoom, this.#y + (before.y - after.y) * zoom);
  }

  /** Open what an item is in, and bring it into sight. @param {Item} item */
  reveal(item) {
    let box = is_box(item) ? item.parent : this.boxes.box_of_op[item];
    for (; box; box = box.parent) {
      if (box.is_open) continue;
      box.is_open = true;
      forget_layout(box);
    }
    this.#active = item;
    this.#limits = NOWHERE_PAINTED;
    this.#show(item);
  }

  /** Move as little as brings an item into sight. @param {Item} item */
  #show(item) {
    const { x, y, w, h } = this.#locate(item);
    const { clientWidth, clientHeight } = this.svg;
    /** @type {(start: number, size: number, room: number) => number} */
    const find_shift = (start, size, room) => {
      if (start >= 10 && start + size <= room - 10) return 0;
      return size > room - 20 ? 10 - start : (room - size) / 2 - start;
    };
    const k = this.#zoom;
    const free = clientWidth - (this.map.hidden ? 0 : this.map.width + 10);
    this.move(this.#x + find_shift(this.#x + x * k, w * k, free),
      this.#y + find_shift(this.#y + y * k, Math.min(h, 2 * BOX_HEADER) * k, clientHeight));
    this.#mark();
  }

  /** @param {Item} item @returns {{x: number, y: number, w: number, h: number}} */
  #locate(item) {
    const parent = is_box(item) ? item.parent : this.boxes.box_of_op[item];
    if (!parent) return { x: 0, y: -BOX_INSET, w: arrange(this.boxes, this.boxes.root).w, h: 0 };
    const arranged = arrange(this.boxes, parent);
    const above = this.#locate(parent);
    const node = arranged.nodes.find((other) => other.item === item);
    if (!node) throw new Error("an item is not in its box");
    return {
      x: above.x + (above.w - arranged.w) / 2 + node.x, y: above.y + BOX_INSET + node.y,
      w: node.w, h: node.h,
    };
  }

  /** Items that can be walked to, in order of execution. @returns {Item[]} */
  #list_items(/** @type {Box} */ box = this.boxes.root) {
    return box.items.flatMap((item) => (is_box(item) && item.is_open
      ? [item, ...this.#list_items(item)] : [item]));
  }

  /** Do what a key stands for. @param {string} key */
  #press(key) {
    const items = this.#list_items();
    const at = this.#active === null ? -1 : items.indexOf(this.#active);
    const go = (/** @type {number} */ to) => {
      this.#active = items[Math.max(0, Math.min(items.length - 1, to))];
      this.#show(this.#active);
    };
    const item = items[at];
    const box = is_box(item) ? item : null;
    const parent = box ? box.parent : this.boxes.box_of_op[Number(item)];
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1),
      Home: () => go(0), End: () => go(items.length - 1),
      ArrowRight: () => (box && !box.is_open ? this.toggle(box) : go(at + 1)),
      ArrowLeft: () => {
        if (box?.is_open) this.toggle(box);
        else if (parent?.parent) go(items.indexOf(parent));
      },
      Enter: () => {
        if (at >= 0) this.#select(item);
        if (box) this.toggle(box);
      },
      " ": () => { if (at >= 0) this.#select(item); },
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      0: () => this.fit(),
    };
    acts[key]?.();
    return key in acts;
  }

  /** Go to the next thing of which the name holds what is searched for. @param {number} step */
  #find(step) {
    const query = this.query.value.trim().toLowerCase();
    if (!query) return;
    const { trace } = this;
    if (!this.#found.length) {
      const is_op_found = trace.signatures.map(({ op }) => op.toLowerCase().includes(query));
      for (const box of this.boxes.walk(this.boxes.root)) {
        const { fqn = "", class_name = "" } = trace.modules[box.module] ?? {};
        const name = box.kind === "module" ? `${fqn} ${class_name}` : "";
        if (name.toLowerCase().includes(query)) this.#found.push(box);
        for (const item of box.items) {
          if (!is_box(item) && is_op_found[trace.op_signature[item]]) this.#found.push(item);
        }
      }
      this.#found_at = step > 0 ? -1 : 0;
    }
    const n_found = this.#found.length;
    this.#found_at = n_found ? (this.#found_at + step + n_found) % n_found : 0;
    if (n_found) {
      this.reveal(this.#found[this.#found_at]);
      this.#select(this.#found[this.#found_at]);
    }
    this.status.textContent = n_found
      ? `${this.#found_at + 1} of ${n_found} found` : "nothing found";
  }

  /** Tell more about what the pointer is over; written when it is first asked for. */
  #explain(/** @type {Event} */ event) {
    const thing = this.#thing_at(event);
    const element = thing && this.#painted.get(thing);
    if (!element || element.querySelector("title")) return;
    const lines = "item" in thing && thing.item !== null
      ? this.#explain_item(thing.item)
      : thing.values.slice(0, 8).flatMap((value) => this.#explain_value(value));
    element.append(draw("title", {}, lines.join("\n")));
  }

  #explain_item(/** @type {Item} */ item) {
    if (is_box(item)) {
      const module = this.trace.modules[item.module];
      return [this.boxes.name(item), module?.fqn ?? "", this.boxes.describe(item)];
    }
    const { signature, place } = this.trace.op(item);
    const made = this.values.list_made(item).flatMap((value) => this.#explain_value(value));
    return [`${signature.op}(${signature.args})`, `${place.function}, line ${place.line}`, ...made];
  }

  #explain_value(/** @type {number} */ value) {
    const { geometry, kind, storage } = this.values.tensor(value);
    const { shape, dtype, stride, nbytes, device } = geometry;
    const maker = this.values.maker[value];
    const op = maker < 0 ? null : this.trace.op(maker);
    const origin = op
      ? `by ${op.signature.op}, operator ${maker}, line ${op.place.line}` : "from outside";
    const relation = { view: "  a view", write: "  written in place", new: "", outside: "" }[kind];
    return [
      `${format_shape(shape)} ${dtype} on ${device}, ${format_bytes(nbytes)}`,
      `  stride ${stride ? format_shape(stride) : "unknown"}, storage ${storage}`,
      `  ${origin}`, relation,
    ].filter(Boolean);
  }

  /** All that is open as a picture of its own, with the colours that it has here. */
  #export() {
    const { w, h } = this.boxes.root.arranged;
    this.#paint({ left: -1e9, top: -1e9, right: 1e9, bottom: 1e9 });
    const copy = /** @type {SVGSVGElement} */ (this.svg.cloneNode(true));
    const originals = this.svg.querySelectorAll("rect, path, text");
    copy.querySelectorAll("rect, path, text").forEach((element, i) => {
      const style = getComputedStyle(originals[i]);
      const styles = EXPORT_STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`);
      element.setAttribute("style", styles.join(";"));
    });
    const { backgroundColor } = getComputedStyle(this.svg);
    copy.setAttribute("width", String(w + 20));
    copy.setAttribute("height", String(h + 20));
    copy.setAttribute("style", `background:${backgroundColor}`);
    copy.firstElementChild?.setAttribute("transform", "translate(10,10)");
    this.#paint(this.#list_limits(PAINT_MARGIN));
    return { text: new XMLSerializer().serializeToString(copy), w: w + 20, h: h + 20 };
  }

  save_svg() {
    save_file(new Blob([this.#export().text], { type: "image/svg+xml" }), "flow.svg");
  }

  async save_png() {
    const { text, w, h } = this.#export();
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const scale = Math.min(2, PNG_SIDE / w, PNG_SIDE / h);
    const canvas = make("canvas", { width: Math.ceil(w * scale), height: Math.ceil(h * scale) });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => { if (blob) save_file(blob, "flow.png"); });
  }
}

/** @param {Limits} limits @param {number} x @param {number} y */
function shift_limits({ left, top, right, bottom }, x, y) {
  return { left: left + x, top: top + y, right: right + x, bottom: bottom + y };
}

function is_arrow(/** @type {Event} */ event) {
  return /** @type {Element} */ (event.target).classList.contains("mm-arrow");
}

function save_file(/** @type {Blob} */ blob, /** @type {string} */ name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** @param {Box} box */
function forget_layouts(box) {
  box.arranged = null;
  for (const item of box.items) if (is_box(item)) forget_layouts(item);
}
