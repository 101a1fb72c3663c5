// Parts of the details panel: links to other items, and lists of facts.

import { format_shape, list_sizes, make, shorten_dtype, shorten_op } from "../dom.js";

/**
 * @typedef {import("../selection.js").Selected} Selected
 * @typedef {(selected: Selected) => void} Go
 * @typedef {Node | string} DetailPart
 * @typedef {(slot: import("./values.js").Slot | null, shape: number[]) => HTMLElement | false}
 *   MakeValues makes an element with a tensor's values, where a kernel answers
 * @typedef {[string, ...(DetailPart | DetailPart[] | false | undefined)[]]} DetailRow
 *   a term and its description; a row without a description is left out
 * @typedef {{trace: import("../data.js").TraceView, lineage: import("./lineage.js").Lineage,
 *   go: Go, make_values: MakeValues, whys: import("../why/chain.js").Whys}} DetailContext
 * @typedef {{kind: string, title: string, under: DetailPart[], sections: (HTMLElement | false)[]}}
 *   DetailPage
 */

const FIRST_LINKS = 8; // of many

/** A link to another item. @param {Go} go @param {Selected} selected */
export const make_link = (go, selected, text, title = "") => make("button", {
  type: "button", class: "mm-link", title: title || false, onclick: () => go(selected),
}, text);

/** @param {DetailContext} context @param {number} op */
export const link_op = ({ trace, go }, op) =>
  make_link(go, { kind: "op", index: op }, `#${op} ${shorten_op(trace.signature(op).op)}`,
    trace.site(op).function);

/** @param {DetailContext} context @param {number} module */
export function link_module({ trace, go }, module) {
  const { fqn, name, class_name } = trace.modules[module];
  return make_link(go, { kind: "module", index: module }, fqn || name || "(root)", class_name);
}

/** @param {DetailContext} context @param {number} id @param {import("../data.js").Geometry} geometry */
export const link_tensor = ({ go }, id, { shape, dtype }) =>
  make_link(go, { kind: "tensor", index: id }, `${format_shape(shape)} ${shorten_dtype(dtype)}`,
    `tensor ${id}`);

/** The shape of a tensor, each size of which leads to why it is what it is. @param {DetailContext} context @param {number} id @param {number[]} shape */
export const link_sizes = ({ go }, id, shape) => list_sizes(shape, (size, dim) =>
  make_link(go, { kind: "tensor", index: id, dim }, `${size}`, `why ${size}?`));

/** @param {DetailContext} context @param {number} line */
export const link_line = ({ go }, line) =>
  make_link(go, { kind: "line", index: line }, `line ${line}`);

/** A fainter text that says more. @param {string} text */
export const whisper = (text) => make("span", { class: "mm-faint" }, text);

/**
 * Links with commas; of many the first ones, and a button for the rest.
 * @param {number[]} items @param {(item: number) => Node} link
 */
export function list_links(items, link) {
  const box = make("span");
  const show = (some) => some.forEach((item, i) => box.append(i || box.hasChildNodes() ? ", " : "",
    link(item)));
  const few = items.length > FIRST_LINKS + 1 ? items.slice(0, FIRST_LINKS) : items;
  show(few);
  if (few === items) return box;
  const more = make("button", {
    type: "button", class: "mm-link",
    onclick: () => {
      more.remove();
      show(items.slice(FIRST_LINKS));
    },
  }, ` and ${items.length - FIRST_LINKS} more`);
  box.append(more);
  return box;
}

/**
 * Terms with their descriptions under a heading; false without any.
 * @param {string} heading @param {(DetailRow | false | undefined | "" | 0)[]} rows
 */
export function make_section(heading, rows) {
  const terms = rows.flatMap((row) => {
    if (!row) return [];
    const [term, ...parts] = row;
    const what = /** @type {DetailPart[]} */ (parts.flat().filter(Boolean));
    return what.length ? [make("dt", {}, term), make("dd", {}, ...what)] : [];
  });
  return terms.length > 0
    && make("div", {}, make("div", { class: "mm-caption" }, heading), make("dl", {}, ...terms));
}

/** The end of a path, as in `linear.py:130`. @param {string} file @param {number} line */
export const name_file = (file, line) => `${file.split(/[\\/]/).at(-1)}:${line}`;

/** Whether a tensor is contiguous. */
export function is_packed(/** @type {import("../data.js").Geometry} */ { shape, stride }) {
  let step = 1;
  return Boolean(stride) && shape.toReversed().every((size, i) => {
    const is_next = size === 1 || stride[shape.length - 1 - i] === step;
    step *= size;
    return is_next;
  });
}

/** The layout of a tensor, as text. @param {import("../data.js").Geometry} geometry */
export function describe_layout(geometry) {
  const { stride, offset, layout } = geometry;
  if (!stride) return layout;
  const begin = offset ? `, offset ${offset}` : "";
  return is_packed(geometry) ? `contiguous${begin}` : `stride ${format_shape(stride)}${begin}`;
}
