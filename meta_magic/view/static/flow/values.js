// The values of tensors: what each operator reads and makes, and its phase. Touches no
// document, so that node can test it.

import { PHASES } from "../data.js";

/** The phase that also shows operators without a phase. */
export const FORWARD_PHASE = PHASES.indexOf("forward");
/** The phase of operators that autograd calls. */
export const BACKWARD_PHASE = PHASES.indexOf("backward");
/** The phase of items without one. */
export const OTHER_PHASE = PHASES.indexOf("other");

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{tensor: number, storage: number, geometry: import("../data.js").Geometry,
 *   kind: "outside" | "new" | "view" | "write", maker: number,
 *   scope: import("./boxes.js").Item | null}} Value
 *   a state of a tensor; `maker`: an operator, or -1 if it came from outside; `scope`: the
 *   innermost box with its maker and all its readers, if it has any in the phase that is shown
 * @typedef {{trace: TraceView, reads: Value[][], makes: Value[][], origins: number[]}} Values
 *   by operator; `origins`: for each storage the operator that made it, or -1
 */

/** The phase with which an operator is shown. @param {TraceView} trace @param {number} op */
export function find_phase(trace, op) {
  const { phase } = trace.site(op);
  return list_phases(trace).includes(phase) ? phase : FORWARD_PHASE;
}

/**
 * The phases to choose from. Items without a phase are shown with forward.
 * @param {TraceView} trace
 */
export function list_phases(trace) {
  const found = new Set(trace.op_site.map((site) => trace.call_sites[site].phase));
  if (found.has(FORWARD_PHASE)) found.delete(OTHER_PHASE);
  return [...found].sort();
}

/** The phase to show first: where the program failed, or forward, or code that is in none. @param {TraceView} trace */
export function choose_phase(trace) {
  const phases = list_phases(trace);
  const last = trace.error ? trace.site(trace.n_ops - 1).phase : FORWARD_PHASE;
  return [last, FORWARD_PHASE, OTHER_PHASE].find((phase) => phases.includes(phase)) ?? phases[0];
}

/**
 * Follow tensors through all operators: written in place, a tensor is a new value, and so
 * are all that share its storage.
 * @param {TraceView} trace @returns {Values}
 */
export function follow_values(trace) {
  const { op_tensors, op_start, storage_of_tensor } = trace;
  const [reads, makes, latest, writers, origins] = [[], [], [], [], []];
  const renew = (tensor, geometry, kind, maker) => {
    const storage = storage_of_tensor[tensor];
    origins[storage] ??= maker;
    latest[tensor] = { tensor, storage, geometry, kind, maker, scope: null };
    return latest[tensor];
  };
  const read = (tensor, geometry) => {
    const value = latest[tensor] ?? renew(tensor, geometry, "outside", -1);
    const writer = writers[value.storage] ?? -1;
    if (writer <= value.maker) return value;
    const written = renew(tensor, geometry, "write", writer);
    makes[writer] = [...makes[writer], written];
    return written;
  };
  for (let op = 0; op < trace.n_ops; op += 1) {
    const { inputs, outputs, writes, views } = trace.signature(op);
    const start = op_start[op];
    reads[op] = inputs.map((geometry, i) => read(op_tensors[start + i], geometry));
    const written = writes.map((i) => renew(op_tensors[start + i], inputs[i], "write", op));
    for (const { storage } of written) writers[storage] = op;
    const returned = outputs.map((geometry, i) => {
      const tensor = op_tensors[start + inputs.length + i];
      if (latest[tensor]?.maker === op) return latest[tensor];
      return renew(tensor, geometry, views[i] < 0 ? "new" : "view", op);
    });
    makes[op] = written.length ? [...new Set([...written, ...returned])] : returned;
  }
  return { trace, reads, makes, origins };
}
