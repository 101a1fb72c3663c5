// A stand-in.

const FIRST_DEVICE = "h100-sxm";

export class Times {
  /** @type {Set<() => void>} */
  #listeners = new Set();

  /** @param {import("./data.js").TraceView} trace */
  constructor(trace) {
    this.trace = trace;
    const { devices } = trace.work;
    this.choose(devices.find(({ name }) => name === FIRST_DEVICE) ?? devices[0]);
  }

  choose(device) {
    this.device = device;
    for (const listener of this.#listeners) listener();
  }

  /** @param {() => void} listener */
  subscribe(listener) {
    this.#listeners.add(listener);
  }
}
