// The first layout of the flow: what is open.

import { arrange } from "./layout.js";
import { count_levels, count_shown, open_block, open_main, open_what_fits } from "./levels.js";

const MOST_HEIGHT = 960; // pixels to which a view grows whose height nobody chose
const SHAPES = [0.7, 1, 1.8]; // widths by heights at which columns aim, as multiples of the view's
const [WORTH_OF_SIZE, WORTH_OF_BLOCK] = [10, 4]; // items that are worth as much as letters of full size, and as a block's inside

/** The pixels by which the view of a flow can grow. @param {import("./flow.js").Flow} flow */
function find_spare({ svg: { parentElement: { parentElement: view } } }) {
  const is_chosen = getComputedStyle(view).getPropertyValue("--mm-height");
  return is_chosen ? 0 : Math.max(0, MOST_HEIGHT - view.clientHeight);
}

/**
 * Open as many levels as the settings say, else what can be read at once, in the shape that shows
 * most and largest. The view grows if the flow is higher.
 * @param {import("./flow.js").Flow} flow
 */
export function open_at_first(flow) {
  const { boxes, viewport, depth, svg } = flow;
  const spare = find_spare(flow);
  const find_share = (/** @type {{w: number, h: number}} */ all) => viewport.find_share(all, spare);
  const fits = (all) => find_share(all) === 1;
  const height = svg.clientHeight + spare;
  const ratio = svg.clientWidth / height;
  const open = (/** @type {number} */ shape, /** @type {typeof open_block} */ begin) => {
    let has_block = true;
    if (ratio) boxes.wide = shape * ratio;
    flow.read_choices();
    if (depth) flow.open_level(Math.min(depth, count_levels(boxes.root)));
    else {
      flow.set_level(begin(boxes, fits));
      has_block = open_main(boxes, fits);
    }
    const all = arrange(boxes, boxes.root);
    const zoom = Math.min(1, svg.clientWidth / all.w, height / all.h);
    const worth = count_shown(boxes.root) * find_share(all) + WORTH_OF_SIZE * zoom + WORTH_OF_BLOCK * Number(has_block);
    return { shape, begin, has_block, worth };
  };
  let best = { shape: 1, begin: open_what_fits, has_block: false, worth: -1 };
  for (const begin of [open_what_fits, open_block]) {
    if (best.has_block) break;
    for (const shape of SHAPES) {
      const one = open(shape, begin);
      if (one.worth > best.worth) best = one;
    }
  }
  open(best.shape, best.begin);
  const missing = Math.min(spare, viewport.find_height(arrange(boxes, boxes.root)) - svg.clientHeight);
  const view = svg.parentElement.parentElement;
  if (missing > 0) view.style.setProperty("--mm-height", `${view.offsetHeight + missing}px`);
}
