// The small map of all that is open, in a corner of the flow.

import { draw, fill } from "../dom.js";
import { EDGE } from "./viewport.js";

const MAP_SIDE = 100; // pixels

export class FlowMap {
  nodes = draw("path");
  frame = draw("rect");
  element = draw("svg", { class: "mm-flow-map", "aria-hidden": "true" }, this.nodes, this.frame);

  /** @param {import("./viewport.js").Viewport} viewport where a click leads */
  constructor(viewport) {
    this.viewport = viewport;
    const go = ({ buttons, offsetX, offsetY }) => {
      const { element, viewport: { extent, w, h } } = this;
      const x = (offsetX / element.clientWidth) * extent.w;
      const y = (offsetY / element.clientHeight) * extent.h;
      if (buttons) viewport.move(x - w / 2, y - h / 2);
    };
    fill(this.element, { onpointerdown: go, onpointermove: go });
  }

  /** Draw what was laid out. @param {import("./spots.js").Spot[]} spots */
  show(spots) {
    const { extent: { w, h }, svg } = this.viewport;
    const leaves = spots.filter(({ thing }) => thing.item && !thing.inner);
    const path = leaves.map(({ thing, x, y }) =>
      `M${x} ${y}h${thing.w}v${thing.h}h${-thing.w}z`).join("");
    this.nodes.setAttribute("d", path);
    const scale = Math.min(MAP_SIDE / w, (svg.clientHeight - 2 * EDGE) / h);
    const [width, height] = [Math.max(8, w * scale), Math.max(8, h * scale)];
    fill(this.element, { viewBox: `0 0 ${w} ${h}`, width, height, preserveAspectRatio: "none" });
  }

  /** Draw what is in sight; the map is of no use where that is nearly all. */
  follow() {
    const { x, y, w, h, extent } = this.viewport;
    fill(this.frame, { x, y, width: w, height: h });
    this.element.classList.toggle("mm-hidden", extent.w * extent.h < 4 * w * h);
  }
}
