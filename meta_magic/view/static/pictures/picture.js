// The picture of a call: its tensors as grids of cells. The cell of the output that is pointed
// at, or reached by the arrow keys, shows which cells of the inputs it is computed from.

import { format_shape, make } from "../dom.js";
import { find_index, format_read, list_window, range, read_inputs, to_address, to_number } from "./reach.js";

/**
 * @typedef {import("./reach.js").DrawnCall} DrawnCall
 * @typedef {import("./reach.js").Drawn} Drawn
 * @typedef {{element: HTMLElement, follow: (index: number[]) => void}} Part follows what is picked
 */

const MOST_CELLS = 8; // rows or columns of which all are drawn
const FIRST_CELLS = 6; // of more
const BUTTONS = 8; // indices of an outer dimension that are buttons
const STRIP = 24; // cells of memory that are drawn at once

const PICTURE_RULES = {
  broadcast: "Aligned from the right, the sizes of a column are equal, or one is 1 or missing: that one is repeated.",
  product: "A dimension that is struck out is summed: each element of the result is a sum along it.",
  loss: "The shapes are aligned from the right: the loss has one term for each element of the result.",
  memory: "A view is the same memory, read with other strides. Numbers are addresses, counted in elements.",
  order: "The elements keep their order, row by row.",
  copy: "Each element is copied to new memory.",
  reduction: "All elements along the reduced dimensions become one.",
  line: "Each element is computed from a whole line.",
  window: "A window moves over the input; each place gives one element. Dashed cells are padding.",
  join: "Each element comes from one of the inputs.",
  pick: "The index says which of the marked elements is taken.",
  attention: "A query times all keys is its row of scores. Their softmax weighs the values.",
  recurrent: "A step is computed from all steps up to it, of its own sample alone.",
};

/** The indices of a dimension that are drawn; -1 for those that are omitted. @param {number} size */
const list_drawn = (size) => (size <= MOST_CELLS ? range(0, size) : [...range(0, FIRST_CELLS), -1, size - 1]);

/** The two dimensions that are rows and columns. @param {number[]} shape @param {(dim: number) => number} rank says how much a dimension matters */
const choose_faces = (shape, rank) => shape.map((_, dim) => dim)
  .sort((a, b) => rank(b) - rank(a) || b - a).slice(0, 2).sort((a, b) => a - b);

/** Make cells as wide as the longest text in them. @param {HTMLElement} element @param {string} longest */
const widen = (element, longest) => element.style.setProperty("--mm-wide", `${Math.max(32, 7 * longest.length + 5)}px`);

/**
 * Fill a strip with places from `low` to `high`, from `first` on, with "…" where it goes on.
 * @param {HTMLElement} strip @param {number} low @param {number} high @param {number} first
 * @param {(place: number) => Record<string, boolean>} mark which classes a place has
 */
function fill_strip(strip, low, high, first, mark) {
  const end = Math.min(first + STRIP, high);
  strip.replaceChildren(...first > low ? ["…"] : [], ...range(first, end).map((place) => {
    const classes = Object.entries(mark(place)).flatMap(([name, is]) => (is ? [`mm-${name}`] : []));
    return make("span", { class: ["mm-element", ...classes].join(" ") }, `${classes.includes("mm-padding") ? 0 : place}`);
  }), ...end < high ? ["…"] : []);
}

/** A tensor as a grid of cells. `is_memory`: they are numbered as they lie in memory; null: row by row. */
class CellGrid {
  /** @type {number[]} */ at;
  /** @type {{cell: HTMLElement, row: number, column: number}[]} */ cells = [];

  /** @param {Drawn} drawn @param {number[]} faces @param {boolean | null} is_memory @param {(index: number[]) => void} point is called with the cell that is pointed at @param {boolean} pick whether cells are reached by keys, too: those of an output */
  constructor(drawn, faces, is_memory, point, pick = false) {
    const { name, geometry: { shape } } = drawn;
    this.drawn = drawn;
    this.faces = faces;
    this.is_memory = is_memory;
    this.point = point;
    this.pick = pick;
    this.at = shape.map(() => 0);
    const [rows, columns] = [faces.at(-2), faces.at(-1)].map((dim) => (dim === undefined ? [0] : list_drawn(shape[dim])));
    const body = rows.map((row) => make("div", { class: "mm-row-of-cells", role: pick ? "row" : false },
      ...columns.map((column) => this.make_cell(row, column))));
    this.grid = make("div", { class: "mm-lattice", role: pick ? "grid" : "img", "aria-label": `${name} ${format_shape(shape)}` }, ...body);
    this.slice = make("span", { class: "mm-faint" });
    this.element = make("figure", {}, make("figcaption", {}, make("b", {}, name), ` ${format_shape(shape)} `, this.slice), this.grid);
  }

  make_cell(row, column) {
    const is_omitted = row < 0 || column < 0;
    const cell = make("div", { class: is_omitted ? "mm-omitted" : "mm-element", role: this.pick ? "gridcell" : false });
    if (is_omitted) cell.textContent = "…";
    else this.cells.push({ cell, row, column });
    if (is_omitted) return cell;
    const choose = () => this.point(this.place(row, column));
    cell.addEventListener("pointerenter", choose);
    if (!this.pick) return cell;
    cell.tabIndex = -1;
    cell.addEventListener("focus", choose);
    cell.addEventListener("keydown", (event) => this.move(event, cell));
    return cell;
  }

  /** The index of a cell. */
  place(row, column) {
    const index = [...this.at];
    const [of_rows, of_columns] = [this.faces.at(-2), this.faces.at(-1)];
    if (of_rows !== undefined) index[of_rows] = row;
    if (of_columns !== undefined) index[of_columns] = column;
    return index;
  }

  move(event, cell) {
    const width = this.cells.filter(({ row }) => row === this.cells[0].row).length;
    const at = this.cells.findIndex((other) => other.cell === cell);
    const column = at % width;
    const step = { ArrowUp: -width, ArrowDown: width, ArrowLeft: column && -1, ArrowRight: Number(column < width - 1) }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.cells[at + step]?.cell.focus();
  }

  /** Mark what is read, or the cell that is picked; nothing for null. @param {number[][] | null} found */
  mark(found) {
    const { geometry } = this.drawn;
    if (found) this.at = found.map(([first]) => first);
    const outer = geometry.shape.map((size, dim) => (this.faces.includes(dim) ? ":" : `${this.at[dim]}`));
    this.slice.textContent = outer.some((text) => text !== ":") ? `at [${outer.join(", ")}]` : "";
    const name = (index) => (this.is_memory === null ? `${to_number(index, geometry.shape)}`
      : this.is_memory ? `${to_address(index, geometry)}`
        : this.faces.map((dim) => index[dim]).join(",") || "·");
    widen(this.grid, name(geometry.shape.map((size) => size - 1)));
    for (const { cell, row, column } of this.cells) {
      const index = this.place(row, column);
      const is_read = Boolean(found?.every((some, dim) => some.includes(index[dim])));
      cell.className = `mm-element${is_read ? " mm-read" : ""}`;
      cell.textContent = name(index);
      if (this.pick) {
        cell.tabIndex = is_read ? 0 : -1;
        cell.ariaSelected = `${is_read}`;
        cell.ariaLabel = `[${index.join(", ")}]`;
      }
    }
  }
}

/** Shapes below one another. @param {DrawnCall} call */
function make_alignment({ inputs, outputs: [{ name, geometry: { shape } }] }) {
  const cells = (own, is_result) => shape.map((size, dim) => {
    const has = own[dim - shape.length + own.length];
    const is_repeated = !is_result && (has ?? 1) === 1 && size !== 1;
    const text = has === undefined ? "none" : `${has}`;
    return make("td", { class: is_repeated && "mm-repeated" }, is_repeated ? `${text} → ${size}` : text);
  });
  const row = (title, own, is_result = false) =>
    make("tr", {}, make("th", { scope: "row" }, title), ...cells(own, is_result));
  const head = make("tr", {}, make("td"), ...shape.map((_, dim) =>
    make("th", { scope: "col", class: "mm-faint" }, `dim ${dim}`)));
  return make("table", { class: "mm-alignment" }, head,
    ...inputs.map((input) => row(input.name, input.geometry.shape)), row(name, shape, true));
}

/** The letters of a product, with their sizes. @param {DrawnCall} call */
function make_letters({ picture: { terms, reaches }, inputs }) {
  const [given, out] = terms.split("->");
  const drawn = inputs.filter((_, i) => reaches[i].length === given.split(",")[i]?.length);
  const sizes = new Map(drawn.flatMap(({ geometry: { shape } }, i) =>
    [...given.split(",")[i] ?? ""].map((letter, dim) => [letter, shape[dim]])));
  return make("p", {}, make("code", {}, terms), ...[...sizes].flatMap(([letter, size]) => [" ",
    make(out.includes(letter) ? "span" : "s", { class: "mm-letter" }, `${letter} = ${size}`)]));
}

/** Memory around the picked element; the row in which it stands. @param {DrawnCall} call @returns {Part} */
function make_strip({ inputs: [{ name, geometry }], outputs: [made] }) {
  const element = make("div", { class: "mm-strip", role: "img" });
  const walk = (index, own) => (own.shape.length
    ? range(0, own.shape.at(-1)).map((i) => to_address([...index.slice(0, -1), i], own)) : [own.offset]);
  const follow = (index) => {
    const address = to_address(index, made.geometry);
    const before = walk(find_index(address, geometry) ?? [], geometry);
    const after = walk(index, made.geometry);
    const first = Math.floor(address / STRIP) * STRIP;
    const last = Math.max(...[geometry, made.geometry].map((g) => to_address(g.shape.map((size) => Math.max(0, size - 1)), g)));
    widen(element, `${last}`);
    fill_strip(element, 0, last + 1, first, (place) => (
      { walk: after.includes(place), before: before.includes(place), read: place === address }));
    element.ariaLabel = `memory: a row of ${made.name} is at ${after.slice(0, STRIP).join(", ")}`;
  };
  const legend = make("p", {}, "memory: ", make("span", { class: "mm-walk" }, `a row of ${made.name}`), ", ",
    make("span", { class: "mm-before" }, `a row of ${name}`));
  return { element: make("div", {}, legend, element), follow };
}

/** One row of what a window moves over. @param {DrawnCall} call @returns {Part | null} */
function make_row({ picture: { reaches: [reach] }, inputs: [{ geometry: { shape } }], outputs: [{ geometry }] }) {
  const [kind, dim, step, padding, dilation, width] = /** @type {any} */ (reach.at(-1));
  if (kind !== "window") return null;
  const [size, places] = [shape[dim], geometry.shape[dim]];
  const span = dilation * (width - 1) + 1;
  const over = (places - 1) * step - padding + span; // the first element after the last window
  const rest = Math.max(0, size + padding - over);
  const element = make("div", { class: "mm-strip", role: "img" });
  const follow = (index) => {
    const window = list_window(index[dim] * step - padding, dilation, width);
    const first = Math.max(-padding, Math.min(window[0] - step, size + padding - STRIP));
    fill_strip(element, -padding, size + padding, first, (place) => (
      { padding: place < 0 || place >= size, over: place >= over, read: window.includes(place) }));
    element.ariaLabel = `window at ${window.join(", ")}`;
  };
  const sum = `⌊(${size} + 2·${padding} − ${span}) / ${step}⌋ + 1 = ${places}`;
  const words = rest ? `; the last ${rest} of the padded row ${rest === 1 ? "is" : "are"} in no window` : "";
  return { element: make("div", {}, make("p", {}, `one row, dimension ${dim}: ${sum}${words}`), element), follow };
}

/** Choose the index in a dimension that is not drawn. @param {number} dim @param {number} size @param {number} first @param {(i: number) => void} choose */
function choose_index(dim, size, first, choose) {
  const label = `dimension ${dim}`;
  if (size > BUTTONS) {
    const input = make("input", { type: "number", min: 0, max: size - 1, value: first, "aria-label": label,
      oninput: () => choose(Math.min(size - 1, Math.max(0, Math.floor(Number(input.value) || 0)))) });
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

/** The reach of an input dimension, where it has one. */
const is_ranged = (reach) => (typeof reach === "number" ? reach < 0 : ["upto", "window", "share", "group"].includes(reach?.[0]));

/** What an element is computed from, as text. @param {DrawnCall} call @param {number} output @param {number[]} index */
function describe_read(call, output, index, reads) {
  const { picture: { kind }, inputs, outputs } = call;
  const { name, geometry } = outputs[output];
  const target = index.length ? `${name}[${index.join(", ")}]` : name;
  if (kind === "memory") {
    const sum = index.map((i, d) => ` + ${i}·${geometry.stride[d]}`).join("");
    return `${target} is at ${geometry.offset}${sum} = ${to_address(index, geometry)}`;
  }
  const parts = inputs.flatMap((input, i) => (reads[i] ? [format_read(input, reads[i])] : []));
  return `${target} ← ${parts.join(", ") || "no element: padding"}`;
}

/** Draw a call. @param {DrawnCall} call @param {number[]} [at] the element that is picked at first */
export function draw_picture(call, at = []) {
  const { picture: { kind, reaches }, inputs, outputs } = call;
  const is_memory = { memory: true, order: null }[kind] ?? false;
  const said = make("p", { class: "mm-said", role: "status" });
  const box = make("div");
  const header = { broadcast: make_alignment, loss: make_alignment, product: make_letters }[kind]?.(call) ?? "";
  /** @param {number} output */
  const show = (output) => {
    const one = { ...call, outputs: [outputs[output]] };
    const { shape } = one.outputs[0].geometry;
    const part = { memory: make_strip, window: make_row }[kind]?.(one);
    const faces = choose_faces(shape, (dim) => (shape[dim] > 1 ? 1 : 0));
    let picked = shape.map((_, dim) => at[dim] ?? 0);
    const pick = (index) => {
      picked = index;
      const reads = read_inputs(one, index);
      given.forEach((grid, i) => grid?.mark(reads[i]));
      made.mark(index.map((i) => [i]));
      part?.follow(index);
      said.textContent = describe_read(one, 0, index, reads);
    };
    const given = inputs.map((drawn, i) => {
      if (reaches.length && !reaches[i]?.length && drawn.geometry.shape.length) return null;
      const rank = (dim) => (drawn.geometry.shape[dim] < 2 ? 0 : is_ranged(reaches[i]?.[dim]) ? 3
        : faces.includes(/** @type {number} */ (reaches[i]?.[dim])) ? 2 : 1);
      return new CellGrid(drawn, choose_faces(drawn.geometry.shape, rank), is_memory, (index) => show_readers(i, index));
    });
    const made = new CellGrid(one.outputs[0], faces, is_memory, pick, true);
    /** Mark the elements that read one of an input. @param {number} i @param {number[]} index */
    const show_readers = (i, index) => {
      const readers = made.cells.filter(({ cell, row, column }) => cell.classList.toggle("mm-walk",
        Boolean(read_inputs(one, made.place(row, column))[i]?.every((some, d) => some.includes(index[d])))));
      said.textContent = `${format_read(inputs[i], index.map((at) => [at]))} → ${readers.length} of the elements shown of ${made.drawn.name}`;
    };
    const outer = shape.flatMap((size, dim) => (faces.includes(dim) || size < 2 ? [] : [
      choose_index(dim, size, picked[dim], (i) => pick(picked.map((old, d) => (d === dim ? i : old))))]));
    box.replaceChildren(...part ? [part.element] : [], ...outer,
      make("div", { class: "mm-grids" }, ...given.flatMap((grid) => (grid ? [grid.element] : [])), made.element));
    pick(picked);
  };
  const results = outputs.length > 1 ? [choose_index(0, outputs.length, 0, show)] : [];
  results.forEach((chooser) => chooser.firstChild.replaceWith("result: "));
  if (outputs.every(({ geometry: { shape } }) => shape.every(Boolean))) show(0);
  else said.textContent = "It has no elements.";
  return make("div", { class: "mm-picture" }, make("p", {}, PICTURE_RULES[kind]), header, ...results, box, said);
}
