// The first layout of the flow: its direction, and as many open levels as are readable.

import { arrange } from "./layout.js";
import { count_levels, open_what_fits } from "./levels.js";

const MOST_HEIGHT = 640; // pixels to which a view grows whose height nobody chose

/** The pixels by which the view of a flow can grow. @param {import("./flow.js").Flow} flow */
function find_spare({ svg: { parentElement: { parentElement: view } } }) {
  const is_chosen = getComputedStyle(view).getPropertyValue("--mm-height");
  return is_chosen ? 0 : Math.max(0, MOST_HEIGHT - view.clientHeight);
}

/**
 * Open as many levels as the settings say, else as many as are readable at once. The flow
 * goes from left to right if all, or more, is readable then, unless the user chose the
 * direction. The view grows if the flow is higher.
 * @param {import("./flow.js").Flow} flow
 */
export function open_at_first(flow) {
  const { boxes, viewport, depth, is_directed, svg, bar: { direction } } = flow;
  const last = count_levels(boxes.root);
  const show = (value) => {
    direction.value = value;
    flow.read_choices();
    flow.open_level(depth ? Math.min(depth, last) : open_what_fits(boxes, viewport.can_show));
    return arrange(boxes, boxes.root);
  };
  const spare = find_spare(flow);
  let size = show(is_directed ? direction.value : "down");
  if (!is_directed && !viewport.can_show(size)) {
    const across = show("across");
    const is_better = viewport.find_share(across, spare) > viewport.find_share(size, spare);
    size = viewport.can_show(across) || is_better ? across : show("down");
  }
  const missing = Math.min(spare, viewport.find_height(size) - svg.clientHeight);
  const view = svg.parentElement.parentElement;
  if (missing > 0) view.style.setProperty("--mm-height", `${view.offsetHeight + missing}px`);
}
