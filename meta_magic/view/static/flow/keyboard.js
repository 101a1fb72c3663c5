// The keys of the flow: through its items in order, in and out of boxes.

import { has_inside } from "./items.js";

/**
 * Handle a key.
 * @param {import("./flow.js").Flow} flow @param {KeyboardEvent} event
 */
export function press_in_flow(flow, event) {
  const { spots, active, viewport } = flow;
  const items = spots.map(({ thing }) => thing.item).filter(Boolean);
  const at = items.indexOf(active);
  const step = (to) => flow.go_to(items[Math.max(0, Math.min(items.length - 1, to))]);
  const is_open = active?.is_open || active?.kind === "op";
  const acts = {
    ArrowDown: () => step(at + 1),
    ArrowUp: () => step(at - 1),
    ArrowRight: () => (active && !is_open ? flow.toggle(active) : step(at + 1)),
    ArrowLeft: () => (active?.is_open ? flow.toggle(active) : step(items.findLastIndex((item) => item !== active && has_inside(item, active)))),
    Home: () => step(0),
    End: () => step(items.length - 1),
    Enter: () => active && flow.act(active),
    " ": () => active && flow.select(active),
    z: () => active && flow.zoom_to(active),
    "+": () => viewport.zoom_by(1.25),
    "-": () => viewport.zoom_by(0.8),
    0: () => viewport.fit(),
  };
  if (event.altKey || event.ctrlKey || event.metaKey || !(event.key in acts)) return;
  event.preventDefault();
  acts[event.key]();
}
