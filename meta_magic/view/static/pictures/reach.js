// Which elements of its inputs a call reads for an element of its output. No DOM.

/**
 * @typedef {number | [string, ...number[]]} Reach as `view/pictures.py` describes it
 * @typedef {{kind: string, reaches: Reach[][], terms: string}} Picture
 * @typedef {import("../data.js").Geometry} Geometry
 * @typedef {{name: string, geometry: Geometry}} Drawn
 * @typedef {{picture: Picture, inputs: Drawn[], outputs: Drawn[], before?: DrawnCall | false | null}} DrawnCall
 *   `before` of a window: the one that its input comes from
 */

/** Whole numbers. @param {number} start @param {number} stop */
export const range = (start, stop, step = 1) =>
  Array.from({ length: Math.max(0, Math.ceil((stop - start) / step)) }, (_, i) => start + i * step);

/** Indices from a number, the last dimension fastest. @param {number} n @param {number[]} shape */
export const to_index = (n, shape) => shape.map((size, d) =>
  Math.floor(n / shape.slice(d + 1).reduce((a, b) => a * b, 1)) % size);

/** The number of an index, the last dimension fastest. @param {number[]} index @param {number[]} shape */
export const to_number = (index, shape) => index.reduce((n, i, d) => n * shape[d] + i, 0);

/** An index as the indices in each dimension. @param {number[]} index */
export const as_found = (index) => index.map((i) => [i]);

/** Where an element lies in memory. @param {number[]} index @param {Geometry} geometry */
export const to_address = (index, { stride, offset }) =>
  index.reduce((at, i, d) => at + i * stride[d], offset);

/** An index at an address, or null. @param {number} address @param {Geometry} geometry */
export function find_index(address, { shape, stride, offset }) {
  const index = shape.map(() => 0);
  let rest = address - offset;
  const order = range(0, shape.length).sort((a, b) => stride[b] - stride[a] || shape[b] - shape[a]);
  for (const d of order) {
    if (stride[d]) index[d] = Math.min(shape[d] - 1, Math.floor(rest / stride[d]));
    rest -= index[d] * stride[d];
  }
  return rest === 0 && index.every((i, d) => i >= 0 && i < shape[d]) ? index : null;
}

/** What is read for each of some indices, each once. @param {number[]} some @param {(i: number) => number[]} read */
const unite = (some, read) => [...new Set(some.flatMap(read))].sort((a, b) => a - b);

/** The positions of windows along a row, also those in the padding. @param {number[]} some indices of the windows @param {any} reach */
export const list_windows = (some, [, , step, padding, dilation, width]) => unite(some, (i) =>
  range(i * step - padding, i * step - padding + dilation * width, dilation));

/** The indices that a reach has in a dimension of some size. @param {Reach} reach @param {number} size @param {number[][]} found of the output */
function read_dimension(reach, size, found) {
  const [kind, d, n, m] = typeof reach === "number" ? ["at", reach] : reach;
  if (d < 0) return range(0, size);
  const read = {
    at: (i) => [size === 1 ? 0 : i],
    upto: (i) => range(0, i + 1),
    flip: (i) => [size - 1 - i],
    turn: (i) => [((i - n) % size + size) % size],
    shift: (i) => [i - n],
    group: (i) => range(0, m).map((at) => Math.floor(i / n) * m + at),
    share: (i) => range(Math.floor(i * size / n), Math.ceil((i + 1) * size / n)),
    window: (i) => list_windows([i], reach),
  }[kind];
  return unite(found[d], read).filter((i) => i >= 0 && i < size);
}

/**
 * For each input, the indices in each of its dimensions; null where nothing is read.
 * @param {DrawnCall} call @param {number[][]} found indices in each dimension of its first output
 * @returns {(number[][] | null)[]}
 */
export function read_inputs({ picture, inputs, outputs: [{ geometry: made }] }, found) {
  const index = found.map(([first]) => first);
  const single = (one) => inputs.map((_, i) => (i || !one ? null : as_found(one)));
  if (picture.kind === "memory") return single(find_index(to_address(index, made), inputs[0].geometry));
  if (picture.kind === "order") return single(to_index(to_number(index, made.shape), inputs[0].geometry.shape));
  return inputs.map(({ geometry: { shape } }, i) => {
    const reaches = picture.reaches[i] ?? [];
    const more = /** @type {[string, number, number][]} */ (reaches.slice(shape.length));
    const is_read = more.every(([, d, n]) => index[d] === n);
    const read = shape.map((size, d) => (d < reaches.length ? read_dimension(reaches[d], size, found) : []));
    return is_read && reaches.length >= shape.length && read.every(({ length }) => length) ? read : null;
  });
}

/** Whether an index is among those that are read. @param {number[][] | null} found @param {number[]} index */
export const has_index = (found, index) => Boolean(found?.every((some, d) => some.includes(index[d])));

/** Indices of a dimension as Python slices them. @param {number[]} found @param {number} size */
function format_slice(found, size) {
  const [first, second] = found;
  if (found.length === 1) return `${first}`;
  if (found.length === size) return ":";
  const step = second - first;
  if (found.some((n, i) => n !== first + i * step)) return `{${found.length} from ${first} to ${found.at(-1)}}`;
  return `${first || ""}:${found.at(-1) + 1}${step > 1 ? `:${step}` : ""}`;
}

/** What is read of an input, as in `x[0, :, 2:5]`. @param {Drawn} input @param {number[][]} found */
export const format_read = ({ name, geometry: { shape } }, found) =>
  (shape.length ? `${/ \W+ /.test(name) ? `(${name})` : name}[${found.map((some, d) => format_slice(some, shape[d])).join(", ")}]` : name);
