// Elements, and numbers as text. Names are always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const BINARY = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DECIMAL = ["", "K", "M", "B", "T"];
const FLOPS = ["FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs", "EFLOPs"];
const SECONDS = ["s", "ms", "µs", "ns"];
const SHORT = new Map(Object.entries({
  float64: "f64", float32: "f32", float16: "f16", bfloat16: "bf16", int64: "i64",
  int32: "i32", int16: "i16", int8: "i8", uint8: "u8", bool: "bool",
  complex64: "c64", complex128: "c128",
}));

/**
 * Make an HTML element. Functions are listeners, named as `onclick`; false is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} attributes @param {...(Node | string | false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * Make an SVG element.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} attributes @param {...(Node | string | false)} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * Set attributes of an element, and append to it.
 * @template {Element} E
 * @param {E} element @param {Record<string, any>} attributes
 * @param {(Node | string | false)[]} children `false` is left out
 */
export function fill(element, attributes, children = []) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== false));
  return element;
}

// Each report of a page is a module of its own.
const REPORT = Math.random().toString(36).slice(2);
let n_ids = 0;

/** An id that nothing else in the page has. */
export const make_id = () => `mm-${REPORT}-${(n_ids += 1)}`;

/**
 * Keep keys from the notebook, where "dd" deletes the cell; leave it its own shortcuts.
 * @param {KeyboardEvent} event
 */
export function keep_from_notebook(event) {
  const is_run = event.shiftKey && event.key === "Enter";
  if (!event.ctrlKey && !event.metaKey && !is_run) event.stopPropagation();
}

/** Copy a text; return whether the browser allowed it. @param {string} text */
export async function copy_text(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // The frames of some notebooks may only copy a selection.
    const give = (/** @type {ClipboardEvent} */ event) => {
      event.clipboardData.setData("text/plain", text);
      event.preventDefault();
    };
    document.addEventListener("copy", give);
    const is_copied = document.execCommand("copy");
    document.removeEventListener("copy", give);
    return is_copied;
  }
}

/** Let the browser save a file. @param {Blob} blob @param {string} name */
export function save_file(blob, name) {
  const href = URL.createObjectURL(blob);
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** @param {number} n @param {number} base @param {string[]} units */
function scale(n, base, units) {
  let unit = 0;
  let value = n;
  // A number that would be rounded up to the next unit is shown in that unit.
  for (; value >= base - (unit ? 0.05 : 0) && unit < units.length - 1; unit += 1) value /= base;
  const digits = unit ? value.toFixed(1) : String(n);
  return `${digits} ${units[unit]}`.trim();
}

/** Bytes, as in `1.5 GiB`. @param {number} n */
export const format_bytes = (n) => (n === 1 ? "1 byte" : scale(n, 1024, BINARY));

/** A count, as in `70.6 B`. @param {number} n */
export const format_count = (n) => scale(n, 1000, DECIMAL);

/** Operations, as in `1.1 PFLOPs`. @param {number} n */
export const format_flops = (n) => scale(n, 1000, FLOPS);

/** Seconds, as in `1.2 ms`. @param {number} n */
export function format_seconds(n) {
  const unit = Math.min(Math.max(0, Math.ceil(-Math.log10(n) / 3)), SECONDS.length - 1);
  return `${FORMATS.number(n * 1000 ** unit)} ${SECONDS[unit]}`;
}

/** A part of a whole, as in `50.0%`. @param {number} share */
export const format_share = (share) => `${(100 * share).toFixed(1)}%`;

/**
 * How the values of a column are shown, by the name of its format in Python.
 * @type {Record<string, (value: any) => string>}
 */
export const FORMATS = {
  bytes: format_bytes, count: format_count, flops: format_flops,
  number: (n) => n.toLocaleString("en", { maximumSignificantDigits: 3 }),
  function: (name) => name.split(".").at(-1),
  share: (value) => (Number.isFinite(value) ? format_share(value) : value),
};

/** Whether sizes are shown by name, in all reports of the page. */
export const naming = { is_on: true };

/** @typedef {number[] & {names?: string[]}} Shape `names`: each size by name, if one has a name */

/** Sizes as they are shown: by name or as numbers. @param {Shape} shape @returns {(number | string)[]} */
export const show_sizes = (shape) => (naming.is_on && shape.names) || shape;

const in_brackets = (/** @type {(number | string)[]} */ sizes) =>
  `(${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;

/** A shape as Python writes it. @param {Shape} shape */
export const format_shape = (shape) => in_brackets(show_sizes(shape));

/** A shape for a tooltip: by name, and then in numbers. @param {Shape} shape */
export const explain_shape = (shape) =>
  (show_sizes(shape) === shape ? in_brackets(shape) : `${format_shape(shape)} = ${in_brackets(shape)}`);

/** The same, with an element for each size. @param {Shape} shape @param {(size: number | string, dim: number) => HTMLElement} make_size */
export const list_sizes = (shape, make_size) => ["(", ...show_sizes(shape).flatMap((size, dim) => {
  const element = make_size(size, dim);
  if (size !== shape[dim]) element.title = [shape[dim], element.title].filter(Boolean).join(", ");
  return [dim ? ", " : "", element];
}), shape.length === 1 ? ",)" : ")"];

/** A dtype, as in `bf16`. @param {string} dtype */
export const shorten_dtype = (dtype) => SHORT.get(dtype) ?? dtype;

/** The name of a Python function, without its module and its underscores. @param {string} name */
export function shorten_function(name) {
  const is_op = /^(?!torch\.)\w+\.\w+\.\w+$/.test(name); // with its overload
  return (is_op ? shorten_op(name) : name.split(".").at(-1)).replace(/^__(\w+)__$/, "$1");
}

/** An operator without its namespace and overload. @param {string} name */
export function shorten_op(name) {
  if (name.startsWith("torch.")) return shorten_function(name); // which raised before any operator
  const parts = name.split(".");
  return parts.length > 2 ? parts.slice(1, -1).join(".") : name;
}
