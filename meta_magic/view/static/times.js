// The estimated times of a trace's calls on the chosen device, which all views share. No DOM,
// so that node can test it.

import { add_up_modules } from "./charts/areas.js";
import { PHASES } from "./data.js";
import { format_seconds } from "./dom.js";
import { count_seconds, read_work } from "./rooflines.js";

const FIRST_DEVICE = "h100-sxm";

/** The tooltip of such times. */
export const ESTIMATE = "estimated from data sheets: good for totals and shares, of single operators for their rank";

/** The chosen device, and the times on it; listeners are called when another is chosen. */
export class Times {
  /** @type {Set<() => void>} */
  #listeners = new Set();

  /** @param {import("./data.js").TraceView} trace */
  constructor(trace) {
    this.trace = trace;
    const { devices } = trace.work;
    this.works = trace.signatures.map((_, i) => read_work(trace, i));
    this.choose(devices.find(({ name }) => name === FIRST_DEVICE) ?? devices[0]);
  }

  /** Choose a device, and call all listeners. @param {import("./rooflines.js").Device} device */
  choose(device) {
    const { trace, works } = this;
    this.device = device;
    /** Seconds of one call of each signature. */
    this.each = works.map((one) => count_seconds(one, device));
    // The operator that raised did not run to its end.
    if (trace.is_raised(trace.n_ops - 1)) this.each[trace.op_signature.at(-1)] = 0;
    const own = trace.modules.map(() => 0);
    /** Seconds of all calls, but of those that initialize. */
    this.total = 0;
    trace.op_module.forEach((module, op) => {
      if (!this.has(op)) return;
      this.total += this.of_op(op);
      if (module >= 0) own[module] += this.of_op(op);
    });
    /** Seconds of each module, with all in it. */
    this.by_module = add_up_modules(trace, ({ index }) => own[index]);
    /** Seconds of all modules. */
    this.in_modules = trace.roots.reduce((sum, root) => sum + this.by_module[root], 0);
    for (const listener of this.#listeners) listener();
  }

  /** Whether an operator is counted: a model is initialized once, and run often. @param {number} op */
  has = (op) => PHASES[this.trace.site(op).phase] !== "init";

  /** Seconds of an operator. @param {number} op */
  of_op = (op) => this.each[this.trace.op_signature[op]];

  /** Seconds as text. @param {number} seconds */
  describe = (seconds) => `about ${format_seconds(seconds)} on ${this.device.title}, ${ESTIMATE}`;

  /** Call a listener at each choice. @param {() => void} listener */
  subscribe(listener) {
    this.#listeners.add(listener);
  }
}
