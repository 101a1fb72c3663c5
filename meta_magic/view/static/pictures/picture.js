// The picture of a call: its tensors as grids of cells. The cell of the output that is pointed
// at, or reached by the arrow keys, shows which cells of the inputs it is computed from.

import { format_shape, make } from "../dom.js";
import { as_found, find_index, format_read, has_index, list_windows, range, read_inputs, to_address, to_number } from "./reach.js";

/**
 * @typedef {import("./reach.js").DrawnCall} DrawnCall
 * @typedef {import("./reach.js").Drawn} Drawn
 * @typedef {{element: HTMLElement, follow: (found: number[][]) => any}} Part follows what is picked
 */

const MOST_CELLS = 8; // rows or columns of which all are drawn
const FIRST_CELLS = 6; // of more
const BUTTONS = 8; // indices of an outer dimension that are buttons
const STRIP = 24; // cells of memory that are drawn at once

const PICTURE_RULES = {
  broadcast: "Aligned from the right, sizes are equal, or one is 1 or missing: that one is repeated.",
  product: "Each element of the result is a sum along the dimension that is struck out.",
  loss: "The loss has one term for each element of the result.",
  memory: "A view is the same memory, read with other strides. The numbers count its elements.",
  order: "The elements keep their order, row by row.",
  copy: "Each element is copied to new memory.",
  reduction: "All elements along the reduced dimensions become one.",
  line: "Each element is computed from a whole line.",
  window: "Each position of a window gives one element. Dashed cells are padding.",
  join: "Each element comes from one of the inputs.",
  pick: "The index says which of the marked elements is taken.",
  attention: "A query times all keys is its row of scores. Their softmax weighs the values.",
  recurrent: "A step is computed from all steps up to it, of its own sample alone.",
};

/** The indices of a dimension that are drawn; -1 for those that are omitted. @param {number} size */
const list_drawn = (size) => (size <= MOST_CELLS ? range(0, size) : [...range(0, FIRST_CELLS), -1, size - 1]);

/** The two dimensions that are rows and columns. @param {number[]} shape @param {(dim: number) => number} rank says how much a dimension matters */
const choose_faces = (shape, rank) => shape.map((_, dim) => dim)
  .sort((a, b) => (shape[b] > 1 && rank(b)) - (shape[a] > 1 && rank(a)) || b - a).slice(0, 2).sort((a, b) => a - b);

/** Make cells as wide as the longest text in them. @param {HTMLElement} element @param {string} longest */
const widen = (element, longest) => element.style.setProperty("--mm-wide", `${Math.max(32, 7 * longest.length + 5)}px`);

/**
 * Fill a strip with places from `low` to `high`, from `first` on, with "…" where it goes on.
 * @param {HTMLElement} strip @param {number} low @param {number} high @param {number} first
 * @param {(place: number) => (string | false)[]} mark which classes a place has
 */
function fill_strip(strip, low, high, first, mark) {
  const end = Math.min(first + STRIP, high);
  strip.replaceChildren(...first > low ? ["…"] : [], ...range(first, end).map((place) => {
    const marks = ["element", ...mark(place)].filter(Boolean);
    return make("span", { class: marks.map((name) => `mm-${name}`).join(" ") }, `${marks.includes("padding") ? 0 : place}`);
  }), ...end < high ? ["…"] : []);
}

/**
 * A tensor as a grid of cells.
 * @param {Drawn} drawn @param {number[]} faces its dimensions that are rows and columns
 * @param {((index: number[], geometry: any) => number) | undefined} number says what a cell shows, else its index
 * @param {(index: number[]) => void} point is called with the cell that is pointed at
 * @param {boolean} pick whether cells are reached by keys, too: those of an output
 */
function make_grid({ name, geometry }, faces, number, point, pick = false) {
  const { shape } = geometry;
  const [of_columns, of_rows] = faces.toReversed();
  const [rows, columns] = [of_rows, of_columns].map((dim) => (dim === undefined ? [0] : list_drawn(shape[dim])));
  let at = shape.map(() => 0);
  const cells = [];
  /** The index of a cell. */
  const place = ({ row, column }) => at.map((i, dim) => ({ [of_rows]: row, [of_columns]: column }[dim] ?? i));
  const write = (index) => (number ? `${number(index, geometry)}` : faces.map((dim) => index[dim]).join(",") || "·");
  const move = (event, i) => {
    const width = columns.filter((column) => column >= 0).length;
    const column = i % width;
    const step = { ArrowUp: -width, ArrowDown: width, ArrowLeft: column && -1, ArrowRight: Number(column < width - 1) }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    cells[i + step]?.cell.focus();
  };
  const make_cell = (row, column) => {
    const role = pick && "gridcell";
    if (row < 0 || column < 0) return make("div", { class: "mm-omitted", role }, "…");
    const i = cells.length;
    const choose = () => point(place(cells[i]));
    const cell = make("div", { role, onpointerenter: choose, onfocus: pick && choose, onkeydown: pick && ((event) => move(event, i)) });
    cells.push({ cell, row, column });
    return cell;
  };
  const slice = make("span", { class: "mm-faint" });
  const grid = make("div", { role: pick ? "grid" : "img", "aria-label": `${name} ${format_shape(shape)}` },
    ...rows.map((row) => make("div", { class: "mm-row-of-cells", role: pick && "row" }, ...columns.map((column) => make_cell(row, column)))));
  widen(grid, write(shape.map((size) => size - 1)));
  /** Mark what is read, or the cell that is picked; nothing for null. @param {number[][] | null} found */
  const mark = (found) => {
    if (found) at = found.map(([first]) => first);
    if (at.length > faces.length) slice.textContent = `at [${at.map((i, dim) => (faces.includes(dim) ? ":" : i)).join(", ")}]`;
    for (const one of cells) {
      const index = place(one);
      const is_read = has_index(found, index);
      Object.assign(one.cell, { className: `mm-element${is_read ? " mm-read" : ""}`, textContent: write(index) },
        pick && { tabIndex: is_read ? 0 : -1, ariaSelected: `${is_read}`, ariaLabel: `[${index.join(", ")}]` });
    }
  };
  const element = make("figure", {}, make("figcaption", {}, make("b", {}, name), ` ${format_shape(shape)} `, slice), grid);
  return { element, cells, place, mark };
}

/** Shapes below one another. @param {DrawnCall} call */
function make_alignment({ inputs, outputs }) {
  const [{ geometry: { shape } }] = outputs;
  const row = ({ name, geometry: { shape: own } }) => make("tr", {}, make("th", { scope: "row" }, name), ...shape.map((size, dim) => {
    const has = own[dim - shape.length + own.length];
    const is_repeated = (has ?? 1) === 1 && size !== 1;
    return make("td", { class: is_repeated && "mm-repeated" }, `${has ?? "none"}${is_repeated ? ` → ${size}` : ""}`);
  }));
  const head = make("tr", {}, make("td"), ...shape.map((_, dim) => make("th", { scope: "col", class: "mm-faint" }, `dim ${dim}`)));
  return make("table", { class: "mm-alignment" }, head, ...[...inputs, ...outputs].map(row));
}

/** The letters of a product, with their sizes. @param {DrawnCall} call */
function make_letters({ picture: { terms }, inputs }) {
  const [given, out] = terms.split("->");
  const letters = given.split(",");
  const sizes = new Map(inputs.flatMap(({ geometry: { shape } }, i) => (
    letters[i] === "*" ? [] : shape.map((size, dim) => [letters[i][dim], size]))));
  return make("p", {}, make("code", {}, terms.replace(/\*,|,\*/, "")), ...[...sizes].flatMap(([letter, size]) => [" ",
    make(out.includes(letter) ? "span" : "s", { class: "mm-letter" }, `${letter} = ${size}`)]));
}

/** Memory around the picked element; the row in which it stands. @param {DrawnCall} call @returns {Part} */
function make_strip({ inputs: [{ name, geometry }], outputs: [made] }) {
  const element = make("div", { class: "mm-strip", role: "img" });
  const walk = (index, own) => (own.shape.length
    ? range(0, own.shape.at(-1)).map((i) => to_address([...index.slice(0, -1), i], own)) : [own.offset]);
  const follow = (found) => {
    const index = found.map(([i]) => i);
    const address = to_address(index, made.geometry);
    const before = walk(find_index(address, geometry) ?? [], geometry);
    const after = walk(index, made.geometry);
    const first = Math.floor(address / STRIP) * STRIP;
    const last = Math.max(...[geometry, made.geometry].map((g) => to_address(g.shape.map((size) => size - 1), g)));
    widen(element, `${last}`);
    fill_strip(element, 0, last + 1, first, (place) => [
      after.includes(place) && "walk", before.includes(place) && "before", place === address && "read"]);
    element.ariaLabel = `memory: a row of ${made.name} is at ${after.slice(0, STRIP).join(", ")}`;
  };
  const legend = make("p", {}, "memory: ", make("span", { class: "mm-walk" }, `a row of ${made.name}`), ", ",
    make("span", { class: "mm-before" }, `a row of ${name}`));
  return { element: make("div", {}, legend, element), follow };
}

/** One row of what a window moves over, and of what the windows before it do. @param {DrawnCall} call @returns {Part | null} */
function make_rows(call) {
  const { picture, inputs: [input], outputs: [{ geometry }], before } = call;
  const reach = /** @type {any} */ (picture.reaches[0].at(-1));
  const [kind, dim, step, padding] = reach;
  if (kind !== "window") return null;
  const size = input.geometry.shape[dim];
  const end = size + padding;
  const last = list_windows([geometry.shape[dim] - 1], reach).at(-1);
  const text = make("p");
  const strip = make("div", { class: "mm-strip", "aria-hidden": true }); // the text says it
  const rows = before && make_rows(before);
  const follow = (found) => {
    const [read] = read_inputs(call, found);
    const window = list_windows(found[dim], reach);
    text.textContent = `from ${read ? format_read(input, read) : "padding"}; dimension ${dim}: ${picture.terms}`;
    fill_strip(strip, -padding, end, Math.max(-padding, Math.min(window[0] - step, end - STRIP)), (place) => [
      (place < 0 || place >= size) && "padding", place > last && "over", window.includes(place) && "read"]);
    if (read && rows) rows.follow(read);
  };
  return { element: make("div", {}, text, strip, rows ? rows.element : ""), follow };
}

/** Choose an index of a dimension that is not drawn, or a result. @param {string} label @param {number} size @param {number} first @param {(i: number) => void} choose */
function choose_index(label, size, first, choose) {
  if (size > BUTTONS) {
    const input = make("input", { type: "number", min: 0, max: size - 1, value: first, "aria-label": label,
      oninput: () => { if (input.validity.valid) choose(Number(input.value)); } });
    return make("label", { class: "mm-outer" }, `${label}: `, input);
  }
  const buttons = range(0, size).map((i) => make("button", {
    type: "button", class: "mm-button", "aria-pressed": `${i === first}`,
    onclick: () => {
      buttons.forEach((button, other) => { button.ariaPressed = `${other === i}`; });
      choose(i);
    },
  }, `${i}`));
  return make("span", { class: "mm-outer", role: "group", "aria-label": label }, `${label}: `, ...buttons);
}

/** Whether several elements are read in a dimension. @param {import("./reach.js").Reach} [reach] */
const is_ranged = (reach) => reach === -1 || ["upto", "window"].includes(reach?.[0]);

/** Draw a call. @param {DrawnCall} call @param {number[]} [at] the element that is picked at first */
export function draw_picture(call, at = []) {
  const { picture: { kind, reaches }, inputs, outputs } = call;
  const number = { memory: to_address, order: (index, { shape }) => to_number(index, shape) }[kind];
  const said = make("p", { class: "mm-said", role: "status" });
  const box = make("div");
  const header = { broadcast: make_alignment, loss: make_alignment, product: make_letters }[kind]?.(call) ?? "";
  /** @param {number} output */
  const show = (output) => {
    const drawn = outputs[output];
    const one = { ...call, outputs: [drawn] };
    const { shape } = drawn.geometry;
    const part = { memory: make_strip, window: make_rows }[kind]?.(one);
    const faces = choose_faces(shape, () => 1);
    let picked = shape.map((_, dim) => at[dim] ?? 0);
    const pick = (index) => {
      picked = index;
      const found = as_found(index);
      const reads = read_inputs(one, found);
      given.forEach((grid, i) => grid && grid.mark(reads[i]));
      made.mark(found);
      part?.follow(found);
      const read = inputs.flatMap((input, i) => (reads[i] ? [format_read(input, reads[i])] : []));
      const terms = [drawn.geometry.offset, ...index.map((i, d) => `${i}·${drawn.geometry.stride[d]}`)];
      said.textContent = format_read(drawn, found) + (kind === "memory"
        ? ` is at ${terms.join(" + ")} = ${to_address(index, drawn.geometry)}` : ` ← ${read.join(", ") || "no element: padding"}`);
    };
    const given = inputs.map((input, i) => {
      const { geometry: { shape: own } } = input;
      if (reaches.length && !reaches[i]?.length && own.length) return false;
      const rank = (dim) => (is_ranged(reaches[i]?.[dim]) ? 3 : faces.includes(/** @type {number} */ (reaches[i]?.[dim])) ? 2 : 1);
      return make_grid(input, choose_faces(own, rank), number, (index) => show_readers(i, index));
    });
    const made = make_grid(drawn, faces, number, pick, true);
    /** Mark the elements that read one of an input. @param {number} i @param {number[]} index */
    const show_readers = (i, index) => {
      const readers = made.cells.filter((at) =>
        at.cell.classList.toggle("mm-walk", has_index(read_inputs(one, as_found(made.place(at)))[i], index)));
      said.textContent = `${format_read(inputs[i], as_found(index))} → ${readers.length} of the elements shown of ${drawn.name}`;
    };
    const outer = shape.flatMap((size, dim) => (faces.includes(dim) || size < 2 ? [] : [
      choose_index(`dimension ${dim}`, size, picked[dim], (i) => pick(picked.map((old, d) => (d === dim ? i : old))))]));
    box.replaceChildren(...part ? [part.element] : [], ...outer,
      make("div", { class: "mm-grids" }, ...given.map((grid) => grid && grid.element), made.element));
    pick(picked);
  };
  const results = outputs.length > 1 && choose_index("result", outputs.length, 0, show);
  if (outputs.every(({ geometry: { shape } }) => shape.every(Boolean))) show(0);
  else said.textContent = "It has no elements.";
  return make("div", { class: "mm-picture" }, make("p", {}, PICTURE_RULES[kind]), header, results, box, said);
}
