// How long devices take at least for the calls of a trace: the longer of computing and
// moving. No DOM, so that node can test it. `view/payload.py` writes its input, and
// `cost/costs.py` computes the same.

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {{name: string, title: string, nbytes: number, bandwidth: number,
 *   vectors: number | null, peaks: [string, number][]}} Device
 *   `nbytes` of its memory; in a second at most: bytes moved, operations element by
 *   element, and by kind of products whose peak that is, with its FLOPs
 * @typedef {{skipped: number[], elementwise: number[], read: number[], written: number[],
 *   kind: number[], devices: Device[]}} Work as `view/payload.py` writes it
 * @typedef {{products: number, elementwise: number, nbytes: number, kind: number}} OneWork
 *   what one call computes (operations) and moves; `kind` of its products, or -1
 */

/** The work of one call of a signature. @param {TraceView} trace @param {number} i @returns {OneWork} */
export function read_work({ work, signatures }, i) {
  const [flops, kind] = [signatures[i].flops, work.kind[i]];
  return {
    products: kind < 0 ? 0 : flops - work.skipped[i], elementwise: work.elementwise[i],
    nbytes: work.read[i] + work.written[i], kind,
  };
}

/** The seconds that a call computes. @param {OneWork} one @param {Device} device */
function count_computing({ products, elementwise, kind }, { peaks, vectors }) {
  return Math.max(kind < 0 ? 0 : products / peaks[kind][1], vectors ? elementwise / vectors : 0);
}

/** The seconds that a call takes at least. @param {OneWork} one @param {Device} device */
export const count_seconds = (one, device) =>
  Math.max(count_computing(one, device), one.nbytes / device.bandwidth);

/** Whether a call waits for the memory. @param {OneWork} one @param {Device} device */
export const waits_for_memory = (one, device) =>
  one.nbytes / device.bandwidth >= count_computing(one, device);
