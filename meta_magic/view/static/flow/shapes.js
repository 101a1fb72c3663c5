// Draws one laid-out item: a node, a pill or a wire.

import { draw, explain_shape, format_bytes, format_shape } from "../dom.js";
import { find_mark } from "../difference.js";
import { classify_family, find_family } from "./families.js";
import { is_leaf, walk } from "./items.js";
import { BOX_HEADER, STACKED, ellipsize, is_stacked, measure_title, split_title } from "./layout.js";
import { measure_text } from "./letters.js";

const LEAST_CELLS = 12; // of settings that are cut
const STRIPE = 4; // pixels of a family's colour at the left of a box

/** The effects of operators on tensors, as tooltips have them. */
const EFFECTS = {
  new: "new tensor", view: "view of its base", write: "written in place",
};

/**
 * Draw a node or a wire.
 * @param {import("./boxes.js").Boxes} boxes @param {any} thing of `layout.js`
 */
export function draw_thing(boxes, thing) {
  const group = thing.path ? draw_wire(thing) : draw_node(thing, boxes);
  group.append(draw("title", {}, explain(boxes, thing).join("\n")));
  return group;
}

function draw_wire({ kind, path, skip, heads, label, label_x, label_y }) {
  return draw("g", { class: `mm-wire mm-${kind}` },
    draw("path", { class: "mm-reach", d: path }), draw("path", { d: path }), draw("path", { class: "mm-skip", d: skip }),
    draw("path", { class: "mm-head", d: heads }),
    draw("text", { x: label_x, y: label_y + 3.5 }, label));
}

/** The dimension whose size was clicked in a label; undefined beside them. @param {MouseEvent & {target: any}} event */
export function find_size({ target, clientX, clientY }) {
  if (target.localName !== "text") return undefined;
  const at = new DOMPoint(clientX, clientY).matrixTransform(target.getScreenCTM().inverse());
  const [before, rest] = [0, 1].map((i) => target.textContent.slice(0, target.getCharNumAtPosition(at) + i));
  return /\([\d, ]*\d$/.test(rest) ? before.split("(").at(-1).split(",").length - 1 : undefined;
}

function draw_node(node, boxes) {
  const { item, kind, text, detail, sign, is_port } = node;
  const stacked = item && is_stacked(item) ? STACKED : 0;
  const [w, h] = [node.w - stacked, node.h - stacked];
  const is_failed = text.startsWith("✗") && kind !== "open";
  const effect = item && is_leaf(item) && boxes.find_deed(item);
  const rect = (more = {}) => draw("rect", { width: w, height: h, rx: sign ? h / 2 : item ? 4 : 9, ...more });
  const middle = Math.min(BOX_HEADER, h) / 2 + 4;
  const write = (x, name, y, ...written) => draw("text", { x, y, class: name }, ...written);
  const group = draw("g", {
    class: `mm-node mm-${kind} mm-${effect} ${sign && "mm-sign"} ${is_failed ? "mm-failed" : ""} ${is_port ? "mm-port" : ""}`,
  });
  if (boxes.heat && item && !item.is_open && !is_failed) {
    group.classList.add("mm-heated");
    group.style.setProperty("--mm-hot", `${boxes.heat.mix(item)}%`);
  }
  const family = boxes.has_families && item ? classify_family(find_family(boxes, item)) : "";
  if (family) group.classList.add("mm-family", family);
  for (let by = stacked; by >= 0; by -= STACKED / 2) group.append(rect({ x: by, y: by }));
  const mark = item && !is_leaf(item) && find_mark(boxes.trace, list_marked(item), !item.is_open);
  if (mark) {
    group.classList.add(`mm-mark-${mark}`);
    group.append(write(w - 12, "mm-mark", middle, { added: "+", changed: "~", below: "…" }[mark]));
  }
  if (kind === "open") group.append(rect({ height: BOX_HEADER, class: "mm-handle" }));
  else if (family && !sign) group.append(draw("rect", { width: STRIPE, height: h, rx: 2, class: "mm-stripe" }));
  if (sign) group.append(write(w / 2, "mm-middle", h / 2 + 5, sign));
  else if (!item || kind === "op") group.append(write(w / 2, "mm-middle", middle, text));
  else {
    const [name, rest] = split_title(node);
    group.append(write(9, "mm-arrow", middle, item.is_open ? "▾" : "▸"),
      write(23, "", middle, draw("tspan", { class: "mm-name" }, name), rest),
      write(23, "mm-detail", 32, detail));
    if (kind === "open") {
      // An open box has its other settings beside its name.
      const x = 33 + measure_title(node);
      group.append(write(x, "mm-detail", middle, fit_text(boxes.read_facts(item).more, w - x - 8)));
    }
  }
  return group;
}

/** The modules that a box stands for: one, or those of a run. @param {import("./items.js").Item} item */
const list_marked = (item) => (item.module >= 0 ? [item.module] : item.items.map(({ module }) => module));

/** As much of a text as there is room for; "" if that is only a few letters. */
function fit_text(/** @type {string} */ text, /** @type {number} */ room) {
  let n_cells = text.length;
  while (n_cells && measure_text(ellipsize(text, n_cells)) > room) n_cells -= 1;
  return n_cells < Math.min(LEAST_CELLS, text.length) ? "" : ellipsize(text, n_cells);
}

/** The lines of the tooltip of a node or wire. */
function explain(boxes, { item, values }) {
  const { trace, heat } = boxes;
  const hot = heat && item ? [`${heat.measure.name}: ${heat.format(item)}`] : [];
  if (item && !is_leaf(item)) {
    const path = trace.modules[item.module]?.fqn ?? "";
    const { sizes, more, params, ops } = boxes.read_facts(item);
    const settings = [sizes, more].filter(Boolean).join(", ");
    return [`${path}  ${boxes.name(item)}`, settings, [params, ops].filter(Boolean).join(" · "), ...hot].filter(Boolean);
  }
  const made = item ? boxes.values.makes[item.last_op] : values;
  const lines = made.slice(0, 8).flatMap(({ geometry, kind, storage, maker }) => {
    const { shape, dtype, stride, nbytes, device, place } = geometry;
    const origin = maker < 0 ? ""
      : ` by ${trace.signature(maker).op}, operator ${maker}, line ${trace.site(maker).line}`;
    return [
      `${explain_shape(shape)} ${dtype} on ${device}, ${format_bytes(nbytes)}`
        + (place ? `, for ${place}` : ""),
      `  stride ${stride ? format_shape(stride) : "unknown"}, storage ${storage}`,
      `  ${EFFECTS[kind] ?? "from outside"}${origin}`,
    ];
  });
  if (!item) return lines;
  const ops = walk(item).filter(({ kind }) => kind === "op").map((inner) => trace.signature(inner.op));
  const site = trace.site(item.last_op);
  return [...ops.map(({ op, args }) => `${op}(${args})`), `${site.function}, line ${site.line}`,
    ...hot, ...lines];
}
