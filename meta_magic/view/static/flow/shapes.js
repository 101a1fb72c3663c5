// Draws one laid-out item: a node, a pill or a wire.

import { draw, explain_shape, format_bytes, format_shape } from "../dom.js";
import { is_leaf, walk } from "./items.js";
import { BOX_HEADER, ellipsize } from "./layout.js";
import { SMALL_LETTER } from "./routes.js";

const LEAST_CELLS = 12; // of settings that are cut

/** The effects of operators on tensors, as the legend has them. */
export const FLOW_LEGEND = {
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

function draw_wire({ kind, path, heads, label, label_x, label_y }) {
  return draw("g", { class: `mm-wire mm-${kind}` },
    draw("path", { class: "mm-reach", d: path }), draw("path", { d: path }),
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

function draw_node({ item, kind, w, h, text, detail }, boxes) {
  const is_failed = text.startsWith("✗") && kind !== "open";
  const effect = item && is_leaf(item) && boxes.find_deed(item);
  const rect = (more = {}) => draw("rect", { width: w, height: h, rx: item ? 4 : 9, ...more });
  const middle = Math.min(BOX_HEADER, h) / 2 + 4;
  const write = (x, name, written, y = middle) => draw("text", { x, y, class: name }, written);
  const group = draw("g", {
    class: `mm-node mm-${kind} mm-${effect} ${is_failed ? "mm-failed" : ""}`,
  });
  if (boxes.heat && item && !item.is_open && !is_failed) {
    group.classList.add("mm-heated");
    group.style.setProperty("--mm-hot", `${boxes.heat.mix(item)}%`);
  }
  if (kind === "closed" && ["run", "part"].includes(item.kind)) group.append(rect({ x: 3, y: 3 }));
  group.append(rect());
  if (kind === "open") group.append(rect({ height: BOX_HEADER, class: "mm-handle" }));
  if (!item || kind === "op") group.append(write(w / 2, "mm-middle", text));
  else {
    // An open box has its settings beside its name, whose letters are larger.
    const x = item.is_open ? 32 + 1.1 * SMALL_LETTER * text.length : 22;
    const settings = fit_settings(boxes.read_facts(item).settings, w - x);
    const [first, second, third] = settings && !item.is_open ? [13, 23.5, 34] : [middle, 31, middle];
    group.append(write(7, "mm-arrow", item.is_open ? "▾" : "▸"), write(22, "", text, first),
      write(22, "mm-detail", detail, second), write(x, "mm-detail", settings, third));
  }
  return group;
}

/** As many settings as there is room for; "" if that is only a few letters. */
function fit_settings(/** @type {string} */ settings, /** @type {number} */ room) {
  const n_cells = Math.floor(room / SMALL_LETTER) - 1;
  return n_cells < Math.min(LEAST_CELLS, settings.length) ? "" : ellipsize(settings, n_cells);
}

/** The lines of the tooltip of a node or wire. */
function explain(boxes, { item, values }) {
  const { trace, heat } = boxes;
  const hot = heat && item ? [`${heat.measure.name}: ${heat.format(item)}`] : [];
  if (item && !is_leaf(item)) {
    const path = trace.modules[item.module]?.fqn ?? "";
    const { facts, settings } = boxes.read_facts(item);
    return [`${path}  ${boxes.name(item)}`, ...settings ? [settings] : [], facts, ...hot];
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
      `  ${FLOW_LEGEND[kind] ?? "from outside"}${origin}`,
    ];
  });
  if (!item) return lines;
  const ops = walk(item).filter(({ kind }) => kind === "op").map((inner) => trace.signature(inner.op));
  const site = trace.site(item.last_op);
  return [...ops.map(({ op, args }) => `${op}(${args})`), `${site.function}, line ${site.line}`,
    ...hot, ...lines];
}
