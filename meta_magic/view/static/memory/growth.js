// The memory of a cell at any size, interpolated from recordings at some sizes. No DOM, so that
// node can test it. `view/fits_of_sizes.py` writes its input.

/**
 * @typedef {{name: string, current: number, choices: string[], nbytes: number,
 *   largest: number, recorded: [size: number, peak: number][], sizes: number[], step: number,
 *   highest: number[][], reason: string | null}} Growth
 *   as `view/fits_of_sizes.py` writes it: with `choices`, the peak of `recorded` sizes, and of all
 *   others that are multiples of `step` by the bytes at `sizes` after the calls that may be
 *   the `highest`; `largest`: that was recorded to fit `nbytes`
 * @typedef {{sizes: number[], row: number[], rows: number[][]}} Stretches
 *   of each stretch of the payload the bytes at `sizes`, as a row
 */

/** The largest size that is asked about, as in `trials/fit.py`. */
const MOST = 2 ** 20;
const NOISE = 2 ** -50; // of numbers in JavaScript, so that it is not rounded up

/**
 * What a polynomial is at a size, by Newton's formula: no number on the way is larger than
 * what comes out, so that no digit is lost.
 * @param {number[]} sizes @param {number[]} values at them @param {number} size
 */
export function interpolate(sizes, values, size) {
  const steps = [...values];
  for (let degree = 1; degree < sizes.length; degree += 1) {
    for (let i = sizes.length - 1; i >= degree; i -= 1) {
      steps[i] = (steps[i] - steps[i - 1]) / (sizes[i] - sizes[i - degree]);
    }
  }
  return steps.reduceRight((sum, step, i) => sum * (size - sizes[i]) + step, 0);
}

/** The bytes at the peak at a size; NaN where nobody knows. @param {Growth} growth @param {number} size */
export function find_peak({ recorded, sizes, highest }, size) {
  const known = recorded.find(([one]) => one === size);
  if (known) return known[1];
  const all = highest.map((values) => interpolate(sizes, values, size));
  return all.length ? Math.ceil(Math.max(...all) * (1 - NOISE)) : NaN;
}

/** The largest size that some bytes are enough for, 0 for none; NaN where nobody knows. @param {Growth} growth @param {number} nbytes */
export function find_largest(growth, nbytes) {
  if (growth.reason) return NaN;
  if (nbytes === growth.nbytes) return growth.largest;
  if (!growth.highest.length) return NaN;
  let [low, high] = [0, Math.floor(MOST / growth.step) + 1]; // low fits, and high does not
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (find_peak(growth, middle * growth.step) <= nbytes) low = middle;
    else high = middle;
  }
  return low * growth.step;
}

/** The stretches of a trace as they would be at another size. @template {{nbytes: number}} L @param {L[]} lives @param {Stretches} stretches @param {number} size */
export function resize_lives(lives, { sizes, row, rows }, size) {
  const nbytes = rows.map((values) => interpolate(sizes, values, size));
  return lives.map((life, i) => ({ ...life, nbytes: nbytes[row[i]] }));
}

/** Up to which size to draw: beyond all that fit, and what was recorded. @param {Growth[]} growths @param {number} nbytes */
export function choose_end(growths, nbytes) {
  const fitting = growths.map((growth) => find_largest(growth, nbytes)).filter((size) => size < MOST);
  const current = Math.max(...growths.map((growth) => growth.current));
  return Math.max(4, 2 * current, ...fitting.map((size) => Math.ceil(size * 1.25)));
}

/** Round numbers up to one, at most five. @param {number} most */
export function choose_ticks(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  const step = Math.max(1, [0.2, 0.5, 1, 2].map((n) => n * power).find((one) => most / one <= 5) ?? power);
  return Array.from({ length: Math.floor(most / step) }, (_, i) => (i + 1) * step);
}

/** The names of choices. @param {string[]} choices */
export const name_choices = (choices) => choices.join(" + ") || "as it is";

/** The largest size that fits, as text. @param {number} size */
export function describe_size(size) {
  if (Number.isNaN(size)) return "not known";
  const words = size ? size.toLocaleString("en") : "none";
  return size < MOST ? words : `${words} or more`; // none larger was tried
}

/**
 * Whether it fits some bytes, and what would; "" where nobody knows.
 * @param {Growth[]} growths that as it is first @param {number} nbytes @param {(nbytes: number) => string} format
 */
export function describe_fit([plain, ...others], nbytes, format) {
  const { name, current, step } = plain;
  const largest = find_largest(plain, nbytes);
  if (Number.isNaN(largest)) return "";
  if (largest >= current) return `${name} = ${current} fits, and up to ${describe_size(largest)}`;
  const words = largest
    ? `${name} = ${current} does not fit, up to ${describe_size(largest)} does`
    : `no ${name} fits, ${step} takes ${format(find_peak(plain, step))}`;
  return `${words}; ${describe_help(others, largest, nbytes, format)}`;
}

/** Which choices have room for more. @param {Growth[]} others @param {(nbytes: number) => string} format */
function describe_help(others, largest, nbytes, format) {
  if (!others.length) return "a choice may help";
  const found = others.map((growth) => ({ growth, size: find_largest(growth, nbytes) }))
    .filter(({ size }) => size > largest).sort((a, b) => b.size - a.size);
  if (found.length) {
    return found.map(({ growth, size }) => `${name_choices(growth.choices)}: up to ${describe_size(size)}`).join(", ");
  }
  const peaks = others.map((growth) => ({ growth, peak: find_peak(growth, growth.step) }))
    .filter(({ peak }) => !Number.isNaN(peak)).sort((a, b) => a.peak - b.peak);
  const least = peaks.map(({ growth, peak }) => `, the least is ${format(peak)} with ${name_choices(growth.choices)}`);
  return `no choice that was tried helps${least[0] ?? ""}`;
}
