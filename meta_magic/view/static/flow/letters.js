// The room that texts take, so that boxes are as wide as what is written in them.

const TEXT_FACE = "system-ui, sans-serif"; // as in flow.css
const AVERAGE_LETTER = 0.55; // width of a letter by its height, where nothing can measure

/** Sizes of letters in pixels: of names, and of what is beside and below them. As in flow.css. */
export const [LARGE_TEXT, SMALL_TEXT] = [12, 10.5];

/** @type {Map<string, number>} */
const widths = new Map();
const text_context = globalThis.OffscreenCanvas && new OffscreenCanvas(1, 1).getContext("2d");

/** The width of a text in pixels. @param {string} text */
export function measure_text(text, size = SMALL_TEXT, weight = 400) {
  const font = `${weight} ${size}px ${TEXT_FACE}`;
  const key = font + text;
  if (!widths.has(key)) {
    if (text_context) text_context.font = font;
    widths.set(key, text_context ? text_context.measureText(text).width : AVERAGE_LETTER * size * text.length);
  }
  return widths.get(key);
}
