// The first layout of the flow: its direction, and as many open levels as are readable.

import { arrange } from "./layout.js";
import { count_levels, open_main, open_what_fits } from "./levels.js";

const MOST_HEIGHT = 720; // pixels to which a view grows whose height nobody chose

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
  const spare = find_spare(flow);
  const fits = (all) => viewport.find_share(all, spare) === 1;
  const show = (value) => {
    direction.value = value;
    flow.read_choices();
    if (depth) flow.open_level(Math.min(depth, last));
    else flow.set_level(open_what_fits(boxes, fits));
    const n_main = depth ? 0 : open_main(boxes, fits);
    const size = arrange(boxes, boxes.root);
    return { size, worth: n_main + viewport.find_share(size, spare) };
  };
  let { size, worth } = show(is_directed ? direction.value : "down");
  if (!is_directed) {
    const across = show("across");
    size = across.worth > worth ? across.size : show("down").size;
  }
  const missing = Math.min(spare, viewport.find_height(size) - svg.clientHeight);
  const view = svg.parentElement.parentElement;
  if (missing > 0) view.style.setProperty("--mm-height", `${view.offsetHeight + missing}px`);
}
