// Breadcrumbs: the open boxes around the view whose headers are out of sight.

import { make } from "../dom.js";
import { BOX_HEADER } from "./layout.js";

/** @typedef {import("./items.js").Item} Item */

/**
 * The boxes round the middle of a view whose names are out of sight, the outermost first.
 * @param {import("./spots.js").Spot[]} spots
 * @param {{x: number, y: number, w: number, h: number}} view @returns {Item[]}
 */
export function list_frames(spots, { x, y, w, h }) {
  const [middle, center] = [x + w / 2, y + h / 2];
  return spots.filter(({ thing, x: left, y: top }) => thing.inner && top + BOX_HEADER < y
    && left < middle && middle < left + thing.w && center < top + thing.h)
    .map(({ thing }) => thing.item);
}

export class Crumbs {
  element = make("nav", { class: "mm-flow-crumbs", "aria-label": "Boxes round the view" });
  /** @type {Item[]} */ shown = [];

  /** @param {(item: Item) => void} go_to @param {(item: Item) => string} name */
  constructor(go_to, name) {
    this.go_to = go_to;
    this.name = name;
  }

  /** Name boxes; a click leads to one. @param {Item[]} items */
  show(items) {
    const { element, go_to, name, shown } = this;
    if (items.length === shown.length && items.every((item, i) => item === shown[i])) return;
    this.shown = items;
    element.replaceChildren(...items.map((item) => make("button", {
      type: "button", class: "mm-link", onclick: () => go_to(item),
    }, name(item))));
  }
}
