// The mouse on the flow: dragging moves it, the wheel zooms.

import { fill } from "../dom.js";

const DRAG_SLOP = 4; // pixels that a click may move

/**
 * @param {import("./viewport.js").Viewport} viewport
 * @param {() => void} explain called once, at a wheel that leaves the flow as it is
 */
export function follow_pointer(viewport, explain) {
  const { svg } = viewport;
  let is_explained = false;
  let hold = null; // where the pointer was, while it is down
  const release = () => { hold = null; };
  fill(svg, {
    onpointerdown: (event) => { hold = event.button ? null : event; },
    onpointerup: release,
    onpointercancel: release,
    onpointermove: (event) => {
      if (!hold || !event.buttons) return release();
      const [x, y] = [event.clientX - hold.clientX, event.clientY - hold.clientY];
      if (!svg.hasPointerCapture(event.pointerId) && Math.hypot(x, y) < DRAG_SLOP) return;
      svg.setPointerCapture(event.pointerId);
      hold = event;
      viewport.shift(-x / viewport.zoom, -y / viewport.zoom);
    },
    onwheel: (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) {
        if (!is_explained) explain();
        is_explained = true;
        return;
      }
      event.preventDefault();
      const { left, top } = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      viewport.zoom_by(1.0015 ** -event.deltaY, x / viewport.zoom, y / viewport.zoom);
    },
  });
}
