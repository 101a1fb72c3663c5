// Questions to a running kernel, and a message until it answers.

import { make } from "./dom.js";

export const SILENCE = 4000; // milliseconds
export const NOT_YET = "no answer from the kernel yet: it is busy, or it was restarted or shut down";

/**
 * Return what asks the kernel for one kind of answer. Each has the number of its question, and
 * as `buffers` what is no JSON.
 * @param {{on: (event: string, callback: (content: any, buffers?: DataView[]) => void) => void,
 *   send: (content: object) => void}} model
 * @param {string} kind
 * @returns {(asked: object) => Promise<any>}
 */
export function make_ask(model, kind) {
  const waiting = [];
  model.on("msg:custom", (content, buffers) =>
    content?.kind === kind && waiting[content.id]?.({ ...content, buffers }));
  return (asked) => new Promise((resolve) => {
    model.send({ kind, id: waiting.push(resolve) - 1, ...asked });
  });
}

/**
 * Show in an element what the kernel answers: the text of an error, or what is drawn of it.
 * @param {HTMLElement} element @param {string} meanwhile @param {Promise<any>} answer
 * @param {(answered: any) => (Node | string)[]} draw_answer
 */
export async function show_answer(element, meanwhile, answer, draw_answer) {
  const late = setTimeout(() => element.replaceChildren(NOT_YET), SILENCE);
  element.replaceChildren(meanwhile);
  const answered = await answer.catch(() => ({ error: NOT_YET }));
  clearTimeout(late);
  element.replaceChildren(...answered.error ? [make("p", {}, answered.error)] : draw_answer(answered));
}
