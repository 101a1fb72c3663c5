// The call that a picture shows, from the trace. No DOM.

/** @typedef {import("./reach.js").DrawnCall} DrawnCall */

/**
 * What a picture needs of an operator; null where it has none.
 * @param {import("../data.js").TraceView} trace @param {number} index @param {string[]} [names] of its tensors
 * @returns {DrawnCall | null}
 */
export function make_call(trace, index, names = []) {
  const { signature: { picture, inputs, outputs, names: known } } = trace.op(index);
  const before = trace.details.windows[index];
  if (!picture) return null;
  const [kind, reaches, terms] = picture;
  // Of results that are no views, the first is drawn: others have shapes of their own.
  const drawn = kind === "memory" ? outputs : outputs.slice(0, 1);
  return {
    picture: { kind, reaches, terms },
    before: before >= 0 && make_call(trace, before, [`input of operator ${before}`]),
    inputs: inputs.map((geometry, i) => ({ name: names[i] || known[i] || `input ${i}`, geometry })),
    outputs: drawn.map((geometry, i) => ({ name: drawn.length > 1 ? `result ${i}` : "result", geometry })),
  };
}
