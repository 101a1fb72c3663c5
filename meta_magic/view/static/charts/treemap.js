// Draws the treemap: a quantity of each module as the area of its box.

import { draw, fill, make } from "../dom.js";
import { build_tops, fit_label, arrange_areas } from "./areas.js";

const TREEMAP_HEIGHT = 150; // pixels
const MOST_NAMED = 8; // groups beside the chart

/**
 * @typedef {import("./areas.js").Area} Area
 * @typedef {{format: (n: number) => string, select: (module: number) => void,
 *   measure: (text: string) => number, paint: (area: Area) => string, kind?: string}} ChartTools
 *   `measure`: pixels that a text takes in a chart; `paint`: the class of a module's colour, one in all charts; `kind`: of what is selected, if no module
 */

/** Keeps the element of each module, and marks that of the selected one. */
export class Marks {
  /** @type {Map<number, Element>} */ parts = new Map();
  /** @type {Element | undefined} */ marked;

  add(element, modules) {
    for (const module of modules) this.parts.set(module, element);
  }

  /** Mark the nearest part. @param {number[]} path a module and those around it */
  mark(path) {
    const next = this.parts.get(path.find((module) => this.parts.has(module)));
    for (const part of new Set([this.marked, next])) {
      if (!part) continue;
      part.classList.toggle("mm-selected", part === next);
      fill(part, { "aria-pressed": `${part === next}` });
    }
    this.marked = next;
    return next;
  }
}

/** The groups by name, as keys to the colours. @param {Area[]} tops @param {Marks} marks @param {ChartTools} tools */
export function make_groups(tops, marks, tools) {
  const whole = tops.reduce((sum, { value }) => sum + value, 0);
  const share = ({ value }) => `${tools.format(value)}, ${(100 * value / whole).toFixed(1)}%`;
  const groups = tops.slice(0, MOST_NAMED).map((area) => {
    const group = make("button", {
      type: "button", "data-module": area.at, onclick: () => tools.select(area.at), title: `select the ${tools.kind ?? "module"}`,
    }, make("i", { class: tools.paint(area) }), `${area.words}  `, make("span", {}, share(area)));
    marks.add(group, area.modules);
    return group;
  });
  const n_more = tops.length - groups.length;
  return make("div", { class: "mm-groups" }, ...groups, n_more > 0 ? `and ${n_more} smaller` : "");
}

/** @param {import("./areas.js").Placed} placed @param {ChartTools} tools */
function draw_box({ area, rect, top, path, is_leaf }, tools) {
  const { x, y, w, h } = rect;
  const lines = is_leaf ? fit_label(path, tools.format(area.value), w - 8, h - 4, tools.measure) : [];
  return draw("g", {
    tabindex: -1, role: "button", class: tools.paint(top), "data-module": area.at,
    "aria-label": `${area.words}, ${tools.format(area.value)}`,
  }, draw("rect", { x, y, width: w, height: h }),
  ...lines.map((line, i) => draw("text", { x: x + 4, y: y + 13 + 14 * i }, line)));
}

/**
 * Lead the keyboard through the parts of a chart.
 * @param {SVGSVGElement} svg @param {KeyboardEvent} event @param {(target: any) => void} choose
 */
export function lead_through(svg, event, choose) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const parts = [...svg.querySelectorAll("g")];
  if (event.key === "Enter" || event.key === " ") choose(event.target);
  else if (step) parts.at((parts.findIndex((part) => part === event.target) + step) % parts.length).focus();
  else return;
  event.preventDefault();
}

/** A chart of boxes, and the legend beside it. */
export class Treemap {
  boxes = new Marks();
  groups = new Marks();
  frame = draw("rect", { class: "mm-frame" });

  /** @param {string} title @param {Area[]} tops @param {ChartTools} tools */
  constructor(title, tops, tools) {
    this.tops = tops;
    this.tools = tools;
    this.svg = draw("svg", {
      role: "group", "aria-label": `${title}; the arrow keys lead through the boxes`, tabindex: 0,
      height: TREEMAP_HEIGHT, onclick: ({ target }) => this.choose(target),
      onkeydown: (event) => lead_through(this.svg, event, (target) => this.choose(target)),
      onpointerover: ({ target }) => this.add_title(target.closest("g")),
    });
    const whole = tops.reduce((sum, { value }) => sum + value, 0);
    this.element = make("figure", {}, make("figcaption", {}, `${title}: ${tools.format(whole)}`),
      this.svg, make_groups(tops, this.groups, tools));
  }

  resize = (/** @type {number} */ w) => {
    const placed = arrange_areas(this.tops, { x: 0, y: 0, w, h: TREEMAP_HEIGHT });
    const boxes = placed.map((one) => draw_box(one, this.tools));
    this.boxes = new Marks();
    placed.forEach(({ area }, i) => this.boxes.add(boxes[i], area.modules));
    this.svg.replaceChildren(...boxes, this.frame);
  };

  /** Add a title to the box under the pointer, if it has none yet. */
  add_title(box) {
    if (box && box.lastChild.localName !== "title") box.append(draw("title", {}, box.ariaLabel));
  }

  choose(target) {
    const box = target.closest("g");
    if (box) this.tools.select(Number(box.dataset.module));
  }

  /** @param {number[]} path */
  mark(path) {
    this.groups.mark(path);
    const box = this.boxes.mark(path)?.firstElementChild;
    for (const name of ["x", "y", "width", "height"]) {
      this.frame.setAttribute(name, box?.getAttribute(name) ?? "0");
    }
  }
}

/**
 * A chart of what modules have; null if none has any.
 * @param {import("../data.js").TraceView} trace @param {string} title
 * @param {(module: number) => number} read @param {ChartTools} tools
 */
export function make_treemap(trace, title, read, tools) {
  const tops = build_tops(trace, read);
  return tops.length ? new Treemap(title, tops, tools) : null;
}
