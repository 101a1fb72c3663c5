// The first layout of the flow: what is open.

import { arrange } from "./layout.js";
import { count_levels, open_main, open_what_fits } from "./levels.js";

const MOST_HEIGHT = 740; // pixels to which a view grows whose height nobody chose

/** The pixels by which the view of a flow can grow. @param {import("./flow.js").Flow} flow */
function find_spare({ svg: { parentElement: { parentElement: view } } }) {
  const is_chosen = getComputedStyle(view).getPropertyValue("--mm-height");
  return is_chosen ? 0 : Math.max(0, MOST_HEIGHT - view.clientHeight);
}

/**
 * Open as many levels as the settings say, else what can be read at once. The view grows if
 * the flow is higher.
 * @param {import("./flow.js").Flow} flow
 */
export function open_at_first(flow) {
  const { boxes, viewport, depth, svg } = flow;
  const spare = find_spare(flow);
  const fits = (/** @type {{w: number, h: number}} */ all) => viewport.find_share(all, spare) === 1;
  flow.read_choices();
  if (depth) flow.open_level(Math.min(depth, count_levels(boxes.root)));
  else {
    flow.set_level(open_what_fits(boxes, fits));
    open_main(boxes, fits);
  }
  const missing = Math.min(spare, viewport.find_height(arrange(boxes, boxes.root)) - svg.clientHeight);
  const view = svg.parentElement.parentElement;
  if (missing > 0) view.style.setProperty("--mm-height", `${view.offsetHeight + missing}px`);
}
