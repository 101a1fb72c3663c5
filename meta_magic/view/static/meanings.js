// What the texts of the report mean, shown where the pointer rests on them.

/** By what a text looks like. @type {[RegExp, string][]} */
const MEANINGS = [
  [/ parameters\b/, "elements of all parameters and their bytes, tied ones counted once"],
  [/ operators?$/, "calls of torch's operators that were recorded, in all phases"],
  [/^as on /, "the kernels are those that this device would choose; nothing ran on it"],
  [/FLOPs$/, "floating-point operations of matrix products, convolutions and attention, 2 for each multiply-add"],
  [/^peak /, "the most bytes of tensors at once, on each device that the code names"],
  [/^[\d.]+ s$/, "of recording, with the cell"],
  [/ allocated$/, "bytes of real tensors that the cell made; tensors on meta take none"],
  [/^same module as /, "one module under two names: it is listed and counted under the first"],
  [/^called /, "calls while the cell ran; shapes are those of the first"],
  [/ tied to /, "the same tensor under two names: it is stored and counted once"],
  [/ lazy$/, "its shape is decided by the first call"],
  [/^buffer /, "a tensor that moves with the module and is not trained"],
  [/^attribute /, "a tensor that neither moves with the module nor is in its state_dict"],
  [/^not persistent$/, "not in the state_dict"],
  [/ real$/, "has data and takes memory, as it is not on meta"],
];

const SEPARATOR = " · ";

/** The meaning of a text, or "". @param {string} text */
export const explain_text = (text) => MEANINGS.find(([pattern]) => pattern.test(text))?.[1] ?? "";

/** Texts with their meanings, a line each. @param {string | number} texts */
export const explain_texts = (texts) => String(texts).split(SEPARATOR).map((text) =>
  [text, explain_text(text)].filter(Boolean).join(": ")).join("\n");

/** The parts of a line. @param {string} line */
export const split_line = (line) => line.split(SEPARATOR);
