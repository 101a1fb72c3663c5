// Draws the visible items, and reuses elements that are drawn already.

import { draw } from "../dom.js";
import { is_in_sight } from "./spots.js";

/** @typedef {import("./spots.js").Spot} Spot */

export class FlowPainter {
  content = draw("g");
  /** @type {Map<Spot, SVGElement>} */ painted = new Map();

  /** @param {(spot: Spot) => SVGElement} draw_spot */
  constructor(draw_spot) {
    this.draw_spot = draw_spot;
  }

  /** Draw the spots in sight. @param {Spot[]} spots @param {import("./viewport.js").Viewport} view */
  paint(spots, view) {
    const before = this.painted;
    this.painted = new Map();
    for (const spot of spots.filter((one) => is_in_sight(one, view))) {
      this.painted.set(spot, before.get(spot) ?? this.content.appendChild(this.draw_spot(spot)));
    }
    for (const [spot, group] of before) if (!this.painted.has(spot)) group.remove();
  }

  /**
   * Mark which items are selected; return the element of the active one.
   * @param {object | null} active the item where the keyboard is
   * @param {(item: any) => boolean} is_selected
   */
  mark(active, is_selected) {
    let found = null;
    for (const [{ thing, thing: { item } }, group] of this.painted) {
      if (!item) {
        group.classList.toggle("mm-selected", is_selected(thing));
        continue;
      }
      group.classList.toggle("mm-selected", is_selected(item));
      group.classList.toggle("mm-active", item === active);
      group.setAttribute("aria-selected", String(is_selected(item)));
      if (item === active) found = group;
    }
    return found;
  }
}
