// The script of a saved cell: it unpacks the report, and starts it.

/** @typedef {import("./report.js").Settings} Settings */
/** @typedef {[text: string, n_bytes: number]} Packed bytes as text, and how many they are */

const ESCAPED = [34, 39, 60, 92]; // " ' < \: what a text in a script of a notebook would escape

/**
 * The bytes of a text that has 13 bits in each two of the 91 other characters.
 * @param {Packed} packed
 */
function read_base91([text, n_bytes]) {
  const bytes = new Uint8Array(n_bytes);
  const digits = [...Array(127).keys()].filter((code) => code > 31 && !ESCAPED.includes(code));
  /** @type {number[]} */
  const values = [];
  digits.forEach((code, value) => { values[code] = value; });
  const read = (/** @type {number} */ at) => values[text.charCodeAt(at)];
  for (let at = 0, to = 0, bits = 0, n_bits = 13; to < n_bytes; at += 2, n_bits += 13) {
    bits = (bits << 13) | (read(at) * 91 + read(at + 1));
    for (; n_bits > 7; n_bits -= 8) bytes[to++] = bits >> (n_bits - 8);
  }
  return bytes;
}

/**
 * Starts the report as a script of the page: pages that let this one run let that run,
 * too, but not all of them allow an import of a blob, or `eval`.
 * @param {string} id @param {Settings} settings
 * @param {Packed} report script and styles
 * @param {...Packed} payloads
 */
async function start(id, settings, report, ...payloads) {
  const gzip = new DecompressionStream("gzip");
  const unpacked = new Blob([read_base91(report)]).stream().pipeThrough(gzip);
  const text = await new Response(unpacked).text();
  const script = document.createElement("script");
  const run = (/** @type {any} */ saved, /** @type {string} */ styles) =>
    saved.start_saved(id, settings, styles, ...payloads.map((one) => () => read_base91(one)));
  script.textContent = `{${text}document.currentScript.run(report, styles)}`;
  document.head.append(Object.assign(script, { run }));
  script.remove();
}

export default { read_base91, start };
