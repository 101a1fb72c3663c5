// The flow alone, as a figure for print: a browser without a window runs it.

import { decode } from "./data.js";
import { make } from "./dom.js";
import { copy_picture } from "./flow/export.js";
import { mount_flow } from "./flow/flow.js";
import { Selection } from "./selection.js";
import { Times } from "./times.js";

/**
 * Draw the flow, and leave nothing in the page but the figure, and its text for who reads the page.
 * @param {string} packed the payload, as base64
 * @param {{depth?: number, style: string}} settings `style`: "report" or "paper"
 */
async function draw_figure(packed, { depth, style }) {
  const trace = await decode(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)));
  const element = make("div", { class: `mm-live mm-${style}` });
  document.body.append(element);
  const flow = mount_flow(element, trace, new Selection(), { depth, marks: style === "report" }, new Times(trace));
  await new Promise((resolve) => setTimeout(resolve, 100)); // it is laid out when its size is known
  const { text, width, height } = copy_picture(flow.viewport, flow.painter.content);
  const letters = new TextEncoder().encode(text);
  document.body.replaceChildren(
    make("style", {}, `@page { size: ${Math.ceil(width)}px ${Math.ceil(height) + 1}px; margin: 0 } body { margin: 0 } svg { display: block }`),
    document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true),
    make("pre", { hidden: "" }, btoa(Array.from(letters, (code) => String.fromCharCode(code)).join(""))));
}

export default { draw_figure };
