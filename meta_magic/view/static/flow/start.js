// How the flow is laid out before anybody chose: the way and the levels that can be read.

import { arrange } from "./layout.js";
import { count_levels, open_what_fits } from "./levels.js";

/**
 * Open as many levels as the settings say, else as many as can be read at once; from left to
 * right where so more of it is in sight, unless somebody chose the direction.
 * @param {import("./flow.js").Flow} flow
 */
export function open_at_first(flow) {
  const { boxes, viewport, depth, is_directed, bar: { direction } } = flow;
  const last = count_levels(boxes.root);
  const show = (value) => {
    direction.value = value;
    flow.read_choices();
    flow.open_level(depth ? Math.min(depth, last) : open_what_fits(boxes, viewport.can_show));
    return viewport.find_share(arrange(boxes, boxes.root));
  };
  const share = show(is_directed ? direction.value : "down");
  if (!is_directed && share < 1 && show("across") <= share) show("down");
}
