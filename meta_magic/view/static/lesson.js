// A lesson, which needs no kernel: for each line a question, one try, and then the picture.

import { format_shape, keep_from_notebook, make, make_id } from "./dom.js";
import { draw_picture } from "./pictures/picture.js";
import { follow_scheme } from "./scheme.js";

/**
 * @typedef {{kind: string, text: string, answer: any, options: string[], right: string, at: number[],
 *   whys: Record<string, string>}} Question as `teach/lessons.py` describes it
 * @typedef {{line: number, code: string, given: [string, number[]][], question: Question,
 *   call: import("./pictures/reach.js").DrawnCall | null}} Step
 * @typedef {{steps: Step[], failure: string}} Lesson
 */

const HOW = { shape: "sizes, such as 3, 4 or ()", number: "a number" };

/**
 * The numbers of an answer: `8*16`, `(2, 3,)`, `2x3` and `torch.Size([2, 3])`; null for others.
 * @param {string} text
 */
export function read_numbers(text) {
  const inside = text.replace(/torch\.Size/g, "").trim().replace(/^[([\s]+|[)\]\s]+$/g, "");
  if (!inside) return /[([]/.test(text) ? [] : null;
  const parts = inside.split(/\s*,\s*|\s*[x×]\s*|\s+(?![*\s])(?<!\*\s*)/).filter(Boolean);
  const numbers = parts.map((part) => (/^-?\d+(\s*\*\s*\d+)*$/.test(part)
    ? part.split("*").reduce((a, b) => a * Number(b), 1) : NaN));
  return numbers.length && numbers.every(Number.isFinite) ? numbers : null;
}

/** The kind of a wrong shape. @param {number[]} given @param {number[]} wanted */
function judge_shape(given, wanted) {
  const sorted = (shape) => shape.toSorted((a, b) => a - b).join();
  if (given.length !== wanted.length) return ["rank", `It has ${wanted.length} dimension${wanted.length === 1 ? "" : "s"}, not ${given.length}.`];
  if (sorted(given) === sorted(wanted)) return ["order", "The sizes are right, their order is not."];
  const wrong = wanted.flatMap((size, dim) => (size === given[dim] ? [] : [dim]));
  return ["size", wrong.length === 1 ? `Dimension ${wrong[0]} has another size.` : `Dimensions ${wrong.join(" and ")} have other sizes.`];
}

/**
 * What to say of an answer, and whether it is right; null if it cannot be read.
 * @param {Question} question @param {string} text
 */
export function judge({ kind, answer, whys, right }, text) {
  const is_choice = kind === "choice";
  const numbers = is_choice ? null : read_numbers(text);
  if (!is_choice && (!numbers || (kind === "number" && numbers.length !== 1))) return null;
  const [given, wanted] = kind === "shape" ? [format_shape(numbers), format_shape(answer)]
    : is_choice ? [text, answer] : [`${numbers[0]}`, `${answer}`];
  if (given === wanted) return { is_right: true, said: `Right: ${wanted}. ${right}` };
  if (kind !== "shape") return { is_right: false, said: `Not ${given}, but ${wanted}. ${whys[given] ?? whys.other ?? ""}` };
  const [mistake, words] = judge_shape(numbers, answer);
  return { is_right: false, said: `Not ${given}, but ${wanted}. ${words} ${whys[mistake] ?? ""} ${right}` };
}

/**
 * The field of an answer and its button; `answer` gets what was said.
 * @param {Question} question @param {string} id of the question's text @param {(text: string) => void} answer
 */
function make_field({ kind, options }, id, answer) {
  if (kind === "choice") {
    return options.map((option) => make("button", { type: "button", class: "mm-button", onclick: () => answer(option) }, option));
  }
  const field = make("input", {
    type: "text", size: 16, placeholder: HOW[kind], "aria-labelledby": id, autocomplete: "off", dir: "auto",
    onkeydown: (event) => { if (event.key === "Enter") answer(field.value); },
  });
  return [field, make("button", { type: "button", class: "mm-button", onclick: () => answer(field.value) }, "Check")];
}

/** @param {Step} step @param {(is_right: boolean) => void} count */
function make_step({ line, code, given, question, call }, count) {
  const id = make_id();
  const verdict = make("p", { class: "mm-verdict", role: "status" });
  const picture = make("div");
  let is_tried = false;
  const answer = (/** @type {string} */ text) => {
    const found = judge(question, text);
    if (!found) {
      verdict.textContent = `Write ${HOW[question.kind]}.`;
      return;
    }
    const end = found.said.indexOf(". ") + 1; // of what was right
    verdict.replaceChildren(make("b", {}, `${found.is_right ? "✓" : "✗"} ${found.said.slice(0, end)}`), found.said.slice(end));
    verdict.className = `mm-verdict ${found.is_right ? "mm-right" : "mm-wrong"}`;
    if (is_tried) return; // a second try changes no count
    is_tried = true;
    count(found.is_right);
    if (call) picture.append(draw_picture(call, question.at));
  };
  const shapes = given.flatMap(([name, shape], i) => [i ? ", " : "", make("code", {}, name), ` ${format_shape(shape)}`]);
  return make("section", { class: "mm-step", "aria-labelledby": `${id}-line` },
    make("p", { class: "mm-line-of-code", id: `${id}-line` }, make("span", { class: "mm-faint" }, `line ${line} `), make("code", {}, code)),
    ...shapes.length ? [make("p", {}, ...shapes)] : [],
    make("p", { id, dir: "auto" }, question.text), make("div", { class: "mm-answer" }, ...make_field(question, id, answer)),
    verdict, picture);
}

/** Draw a lesson. @param {HTMLElement} element @param {Lesson} lesson */
export function mount_lesson(element, { steps, failure }) {
  element.classList.add("mm-live", "mm-lesson");
  const score = make("p", { role: "status" });
  let [n_right, n_tried] = [0, 0];
  const count = (/** @type {boolean} */ is_right) => {
    n_tried += 1;
    n_right += Number(is_right);
    score.textContent = `${n_right} of ${n_tried} right${n_tried < steps.length ? `, ${steps.length - n_tried} to go` : ""}`;
  };
  const empty = make("p", {}, "No line of this cell has a question: none of them changes a shape.");
  element.replaceChildren(...steps.map((step) => make_step(step, count)), ...steps.length || failure ? [] : [empty],
    score, ...failure ? [make("section", { class: "mm-step" }, make("p", { class: "mm-line-of-code" }, "The cell failed"), make("pre", { tabindex: 0 }, failure))] : []);
}

/**
 * Show a lesson instead of its text.
 * @param {string} id @param {object} _ @param {string} styles
 * @param {() => Uint8Array<ArrayBuffer>} read gives the payload
 */
export async function start_saved(id, _, styles, read) {
  const element = document.getElementById(id);
  if (!element) return;
  element.after(make("style", {}, styles));
  element.addEventListener("keydown", keep_from_notebook);
  follow_scheme(element);
  const stream = new Blob([read()]).stream().pipeThrough(new DecompressionStream("gzip"));
  mount_lesson(element, await new Response(stream).json());
}

export default { start_saved };
