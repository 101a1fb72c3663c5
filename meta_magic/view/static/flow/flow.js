// The Flow view: open boxes, focus and selection. The files beside this one lay it out, draw
// it, and handle mouse and keys.

import { draw, fill, make, make_id } from "../dom.js";
import { make_bar, make_views } from "./bar.js";
import { Boxes } from "./boxes.js";
import { Crumbs, list_frames } from "./crumbs.js";
import { find_family } from "./families.js";
import { make_heat } from "./heat.js";
import { walk } from "./items.js";
import { press_in_flow } from "./keyboard.js";
import { make_legend } from "./legend.js";
import { BOX_HEADER, arrange, forget_layout } from "./layout.js";
import { count_levels, find_bounds, open_levels } from "./levels.js";
import { FlowPainter } from "./painter.js";
import { follow_pointer } from "./pointer.js";
import { draw_thing, find_size } from "./shapes.js";
import { list_spots } from "./spots.js";
import { open_at_first } from "./start.js";
import { choose_phase, find_phase, follow_values } from "./values.js";
import { READABLE, Viewport } from "./viewport.js";

const WHEEL = "ctrl + wheel zooms, double click (z) zooms to a box, dragging moves";

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("../selection.js").Selected} Selected
 * @typedef {{depth?: number, parameters?: boolean, marks?: boolean}} FlowSettings
 */

/** Shows how tensors flow through the operators of a trace. */
export class Flow {
  /** The item where the keyboard is. @type {Item | null} */ active = null;
  /** The item that was clicked last; null for the background. @type {Item | null} */ clicked = null;
  /** The nodes and wires that are laid out. @type {import("./spots.js").Spot[]} */ spots = [];
  /** Of the phase that is shown. @type {Boxes} */ boxes;
  svg = draw("svg", {
    class: "mm-flow-graph", tabindex: 0, role: "tree", "aria-label": "Flow of tensors",
    "aria-keyshortcuts": "Enter Space z 0 + -",
    onkeydown: (event) => press_in_flow(this, event),
    onclick: ({ detail, target }) => { if (detail < 2 && !target.closest("[role=treeitem]")) this.clicked = null; },
    ondblclick: () => this.zoom_to(this.clicked),
  });
  viewport = new Viewport(this.svg, () => this.paint());
  painter = new FlowPainter((spot) => this.draw_spot(spot));
  crumbs = new Crumbs((item) => this.go_to(item), (item) => this.boxes.name(item));

  /**
   * @param {import("../data.js").TraceView} trace
   * @param {import("../selection.js").Selection} selection @param {FlowSettings} settings
   * @param {import("../times.js").Times} times
   */
  constructor(trace, selection, { depth, parameters = false, marks = false }, times) {
    this.trace = trace;
    this.selection = selection;
    this.times = times;
    this.depth = depth;
    /** Levels that were opened last; by hand, boxes may be otherwise. */
    this.level = 0;
    /** The size that was shown last; another message may be there since. */
    this.shown_size = "";
    /** Whether the operators of a function's call are one step, until it is opened. */
    this.has_functions = true;
    this.values = follow_values(trace);
    this.legend = make_legend(() => this.paint());
    this.bar = make_bar(this, { parameters, marks });
    this.svg.append(this.painter.content);
    follow_pointer(this.viewport, () => { this.bar.status.textContent = WHEEL; });
  }

  /** Show what belongs to a phase, open as far as the settings say. @param {number} phase */
  show_phase(phase) {
    this.boxes = new Boxes(this.values, phase, this.has_functions);
    this.bar.phases.value = String(phase);
    this.active = null;
    open_at_first(this);
    this.begin();
  }

  /** Show functions or operators as the steps; modules stay open or closed. @param {boolean} is_so */
  show_functions(is_so) {
    const name_of_item = ({ module, call, kind }) => `${kind} ${module} ${call}`;
    const list_modules = () => walk(this.boxes.root).filter(({ module }) => module >= 0);
    const opened = new Map(list_modules().filter(({ is_open }) => is_open).map((item) => [name_of_item(item), item.is_sample]));
    this.has_functions = is_so;
    this.bar.steps.forEach((button, i) => button.setAttribute("aria-pressed", String(is_so === !i)));
    const { level } = this;
    this.show_phase(this.boxes.phase);
    this.open_level(level);
    for (const item of list_modules()) {
      const is_sample = opened.get(name_of_item(item));
      Object.assign(item, { is_open: is_sample !== undefined, is_sample: Boolean(is_sample) });
    }
    this.read_choices();
    this.begin();
    this.follow(this.selection.current, null);
  }

  /** Lay out what is open, and show its beginning. */
  begin() {
    this.refresh();
    this.viewport.go_home();
  }

  /** Open the boxes down to a level: those of modules, what is in them, then functions. */
  open_level(level) {
    open_levels(this.boxes.root, this.set_level(level));
  }

  /** Take a level as the one that is open. */
  set_level(level) {
    const { root } = this.boxes;
    const [least, most] = find_bounds(root);
    this.level = Math.max(least, Math.min(most, level));
    this.bar.show_level(this.level, count_levels(root));
    return this.level;
  }

  /** Open or close a level. @param {number} step */
  step_level(step) {
    this.open_level(this.level + step);
    this.begin();
  }

  /** Lay out all as it was chosen in the bar. */
  read_choices() {
    this.boxes.has_parameters = this.bar.parameters.checked;
    this.boxes.is_across = this.bar.direction.value === "across";
    const { value: colours } = this.bar.heat;
    this.boxes.heat = make_heat(this.values, colours, this.times);
    this.boxes.has_families = colours === "kind";
    this.svg.classList.toggle("mm-marks", this.bar.marks.checked);
    this.legend.element.hidden = !this.boxes.has_families;
    this.bar.device.hidden = colours !== "time";
    for (const item of walk(this.boxes.root)) item.arranged = null;
  }

  /** Show what was chosen in the bar. */
  choose() {
    this.read_choices();
    this.begin();
  }

  /** Lay out what is open. */
  refresh() {
    const { boxes, viewport } = this;
    const arranged = arrange(boxes, boxes.root);
    viewport.extent = arranged;
    this.spots = list_spots(arranged, boxes.is_across);
    const items = this.spots.map(({ thing }) => thing.item).filter(Boolean);
    this.legend.show(items.map((item) => find_family(boxes, item)));
    this.bar.scale.show(boxes.heat, items);
  }

  /** Say how much there is, and whether it can be read. */
  show_size() {
    const { boxes: { root: { n_ops } }, viewport: { zoom, extent, can_show } } = this;
    const size = `${n_ops.toLocaleString("en")} operator${n_ops === 1 ? "" : "s"}`;
    const percent = Math.round(100 * zoom);
    const more = zoom < READABLE ? ` · at ${percent} % too small to read: zoom in`
      : can_show(extent) ? "" : " · drag it, or fit";
    if (this.shown_size !== size + more) this.bar.status.textContent = size + more;
    this.shown_size = size + more;
  }

  /** Draw what is in sight. */
  paint() {
    this.show_size();
    this.crumbs.show(list_frames(this.spots, this.viewport));
    this.painter.paint(this.spots, this.viewport);
    const { chosen } = this.legend;
    for (const [{ thing: { item } }, group] of this.painter.painted) {
      group.classList.toggle("mm-off", Boolean(item && chosen.size) && !walk(item).some((one) => chosen.has(find_family(this.boxes, one))));
    }
    this.mark();
  }

  draw_spot({ thing, x, y, level }) {
    const { item, detail } = thing;
    const group = draw_thing(this.boxes, thing);
    group.setAttribute("transform", `translate(${x},${y})`);
    return item ? fill(group, {
      role: "treeitem", id: make_id(), "aria-level": level,
      "aria-label": `${this.boxes.name(item)} ${detail}`.trim(),
      "aria-expanded": item.kind !== "op" && String(item.is_open),
      // The second click of two does not count: another item may have moved there.
      onclick: ({ detail }) => { if (detail < 2) this.act(this.clicked = item); },
    }) : fill(group, { onclick: (event) => this.select_tensor(thing.values, find_size(event)) });
  }

  /** Where an item is drawn. @param {Item} item */
  find_spot(item) {
    return this.spots.find(({ thing }) => thing.item === item);
  }

  /** Open or close a box; its header stays where it is, as far as all of it can be seen. @param {Item} box */
  toggle(box) {
    const before = this.find_spot(box);
    box.is_open = !box.is_open;
    box.is_sample = false;
    forget_layout(box.parent);
    this.refresh();
    const { thing, x, y } = this.find_spot(box);
    this.viewport.shift(x - before.x, y - before.y);
    if (box.is_open) this.viewport.take_in([x, y, thing.w, thing.h]);
  }

  /** Zoom to an item, opened if it is a box, or to the whole. @param {Item | null} item */
  zoom_to(item) {
    if (!item) return this.viewport.fit();
    this.active = item;
    if (!item.is_open && item.kind !== "op") this.toggle(item);
    const { thing, x, y } = this.find_spot(item);
    this.viewport.zoom_to([x, y, thing.w, thing.h]);
  }

  /** Open what an item is in, and bring it into sight. @param {Item} item */
  reveal(item) {
    for (let box = item.parent; box; box = box.parent) {
      if (!box.is_open || box.is_sample) forget_layout(box);
      box.is_open = true;
      box.is_sample = false;
    }
    this.refresh();
    this.go_to(item);
  }

  /** Move the keyboard to an item, and it into sight. @param {Item} item */
  go_to(item) {
    this.active = item;
    const { thing, x, y } = this.find_spot(item);
    this.viewport.reach([x, y, thing.w, Math.min(thing.h, 2 * BOX_HEADER)]);
  }

  /** Select an operator, that of a function, or a module; other boxes are no one thing. @param {Item} item */
  select(item) {
    const kind = item.kind === "function" ? "op" : item.kind;
    const index = kind === "op" ? this.boxes.find_main(item) : item.module;
    if (kind === "op" || kind === "module") this.selection.select({ kind, index }, this.svg);
  }

  /** Select the tensor of a wire or a pill, and the dimension that was clicked. */
  select_tensor([value], dim) {
    if (value) this.selection.select({ kind: "tensor", index: value.tensor, dim }, this.svg);
  }

  /** Select an item; open or close it, if it is a box. @param {Item} item */
  act(item) {
    this.active = item;
    this.select(item);
    if (item.kind !== "op") this.toggle(item);
  }

  is_selected = (/** @type {any} */ item) => {
    const { kind, index } = this.selection.current ?? {};
    if (item.values) return kind === "tensor" && item.values.some(({ tensor }) => tensor === index);
    if (kind === "line") return !item.is_open && this.trace.site(item.last_op).line === index;
    if (["function", "steps"].includes(item.kind)) return kind === "op" && this.boxes.is_closed_over(item, index);
    return kind === item.kind && index === item[kind];
  };

  /** Mark what is selected, and where the keyboard is. */
  mark() {
    const focused = this.painter.mark(this.active, this.is_selected);
    if (focused) this.svg.setAttribute("aria-activedescendant", focused.id);
    else this.svg.removeAttribute("aria-activedescendant");
  }

  /** Show what was selected elsewhere. */
  follow = (/** @type {Selected | null} */ selected, /** @type {object | null} */ source) => {
    const { kind, index } = selected ?? {};
    const phase = kind === "op" ? find_phase(this.trace, index) : this.boxes.phase;
    if (source !== this.svg && phase !== this.boxes.phase) this.show_phase(phase);
    const { boxes } = this;
    const item = kind === "op" ? boxes.items[index] : kind === "module" && boxes.find_box(index);
    if (source !== this.svg && item) this.reveal(item);
    this.mark();
  };

  /** Fill the room that there is now. */
  resize = () => {
    const { svg, viewport, active } = this;
    if (!svg.clientWidth) return;
    if (viewport.w) return viewport.shift(0, 0);
    if (!active) open_at_first(this);
    this.begin();
    if (active) this.go_to(active);
  };
}

/**
 * Show how tensors flow through the operators of a trace.
 * @param {HTMLElement} element empty
 * @param {import("../data.js").TraceView} trace
 * @param {import("../selection.js").Selection} selection
 * @param {FlowSettings} settings @param {import("../times.js").Times} times
 */
export function mount_flow(element, trace, selection, settings, times) {
  element.classList.add("mm-flow");
  if (!trace.n_ops) {
    element.append(make("p", {}, "No operator ran."));
    return;
  }
  const flow = new Flow(trace, selection, settings, times);
  const stage = make("div", { class: "mm-flow-stage" }, flow.svg, flow.crumbs.element,
    make_views(flow), flow.bar.status);
  element.append(flow.bar.element, stage, flow.legend.element);
  selection.subscribe(flow.follow);
  times.subscribe(() => flow.bar.heat.value === "time" && flow.choose());
  new ResizeObserver(flow.resize).observe(flow.svg);
  flow.show_phase(choose_phase(trace));
  return flow;
}
