// The flow as a picture of its own, with the colours that it has here.

import { draw, save_file } from "../dom.js";
import { EDGE } from "./viewport.js";

const EXPORT_STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order",
  "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor", "display", "opacity",
];
// As browsers compute `color-mix`, which other programs than browsers cannot read.
const MIXED_COLOR = /color\(srgb ([\d.]+) ([\d.]+) ([\d.]+).*?\)/g;
const to_rgb = (_, ...parts) => `rgb(${parts.slice(0, 3).map((n) => Math.round(255 * n))})`;

/**
 * Return a copy of all that is open. What is out of sight is not drawn: for a moment all is in.
 * @param {import("./viewport.js").Viewport} viewport @param {SVGGElement} content
 */
export function copy_picture(viewport, content) {
  const { svg, x, y, zoom, extent } = viewport;
  const [width, height] = [extent.w + 2 * EDGE, extent.h + 2 * EDGE];
  viewport.move(-EDGE, -EDGE, Math.min(svg.clientWidth / width, svg.clientHeight / height));
  const background = getComputedStyle(svg).backgroundColor;
  const copy = draw("svg", {
    width, height, viewBox: `-10 -10 ${width} ${height}`, style: `background:${background}`,
  }, content.cloneNode(true));
  const originals = content.querySelectorAll("rect, path, text, tspan");
  copy.querySelectorAll("rect, path, text, tspan").forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    const styles = EXPORT_STYLES.map((name) =>
      `${name}:${style.getPropertyValue(name).replace(MIXED_COLOR, to_rgb)}`);
    element.setAttribute("style", styles.join(";"));
  });
  viewport.move(x, y, zoom);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

/** Save all that is open. @param {import("./viewport.js").Viewport} viewport @param {SVGGElement} content */
export const save_picture = (viewport, content) =>
  save_file(new Blob([copy_picture(viewport, content).text], { type: "image/svg+xml" }), "flow.svg");
