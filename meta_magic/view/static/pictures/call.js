// The call that a picture shows, from the trace. No DOM.

/** @typedef {import("./reach.js").DrawnCall} DrawnCall */

/**
 * What a picture needs of an operator; null where it has none.
 * @param {{signature: import("../data.js").Signature}} op @param {string[]} [names] of its tensors
 * @returns {DrawnCall | null}
 */
export function make_call({ signature }, names = []) {
  const { op, picture, inputs, outputs } = signature;
  if (!picture) return null;
  const [kind, reaches, terms] = picture;
  // Of results that are no views, the first is drawn: others have shapes of their own.
  const drawn = kind === "memory" ? outputs : outputs.slice(0, 1);
  const title = (i) => names[i] ?? (signature.names?.[i] || `input ${i}`);
  return {
    op, picture: { kind, reaches, terms },
    inputs: inputs.map((geometry, i) => ({ name: title(i), geometry })),
    outputs: drawn.map((geometry, i) => ({
      name: names[inputs.length + i] ?? (drawn.length > 1 ? `result ${i}` : "result"), geometry,
    })),
  };
}
