// The flow alone, as a figure for print: a browser without a window runs it.

import { decode } from "./data.js";
import { draw, make } from "./dom.js";
import { copy_picture } from "./flow/export.js";
import { mount_flow } from "./flow/flow.js";
import { walk } from "./flow/items.js";
import { forget_layout } from "./flow/layout.js";
import { Selection } from "./selection.js";
import { Times } from "./times.js";

const to_base64 = (/** @type {string} */ text) =>
  btoa(Array.from(new TextEncoder().encode(text), (code) => String.fromCharCode(code)).join(""));

/**
 * Number the closed boxes, and return a caption that says what they are.
 * @param {import("./flow/flow.js").Flow} flow
 */
function number_boxes({ trace, boxes, painter, viewport }) {
  viewport.fit(); // draws all
  const totals = trace.headline.split(" · ").filter((part) => /parameters|FLOPs/.test(part));
  const named = [...painter.painted].filter(([{ thing }]) => thing.kind === "closed").map(([{ thing }, group], i) => {
    group.append(draw("text", { x: 13, y: 16, class: "mm-detail mm-middle" }, String(i + 1)));
    return `(${i + 1}) ${boxes.name(thing.item)} ${thing.sizes}`.trimEnd() + `, ${boxes.describe(thing.item)}`;
  });
  return `${totals.join(", ")}. ${named.join("; ")}.\n`;
}

/**
 * Draw the flow, and leave nothing in the page but the figure, and in hidden elements its text and
 * its caption, for who reads the page.
 * @param {string} packed the payload, as base64
 * @param {{depth?: number, style: string}} settings `style`: "report" or "paper"
 */
async function draw_figure(packed, { depth, style }) {
  const trace = await decode(Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0)));
  const element = make("div", { class: `mm-live mm-${style}` });
  document.body.append(element);
  const flow = mount_flow(element, trace, new Selection(), { depth, marks: style === "report" }, new Times(trace));
  await new Promise((resolve) => setTimeout(resolve, 100)); // it is laid out when its size is known
  const runs = walk(flow.boxes.root).filter(({ kind, is_open, module }) => kind === "run" && is_open && module >= 0);
  if (style === "paper" && runs.length) {
    for (const run of runs) run.is_sample = run.items[0].is_open = true; // one block for all
    for (const run of runs) forget_layout(run.items[0]);
    flow.begin();
  }
  const caption = style === "paper" ? number_boxes(flow) : "";
  const { text, width, height } = copy_picture(flow.viewport, flow.painter.content);
  document.body.replaceChildren(
    make("style", {}, `@page { size: ${Math.ceil(width)}px ${Math.ceil(height) + 1}px; margin: 0 } body { margin: 0 } svg { display: block }`),
    document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true),
    ...[text, caption].map((one) => make("pre", { hidden: "" }, to_base64(one))));
}

export default { draw_figure };
