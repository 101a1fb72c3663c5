// Which accelerators the peak fits on; with a kernel, also up to which sizes.

import { format_bytes, format_share, make } from "../dom.js";

/**
 * @typedef {import("../rooflines.js").Device} Device
 * @typedef {{head: string, write: (nbytes: number) => string, title: string}} FitColumn
 *   what is said of some bytes of memory
 */

const COUNTED = "What tensors hold is counted: what kernels need while they run, and what an "
  + "allocator rounds, comes on top.";

const OWN = 3; // columns, of whatever was worked out

/** Devices with as much memory, least first; those whose memory varies are left out. @param {Device[]} devices @returns {Device[][]} */
export function group_devices(devices) {
  const known = [...new Set(devices.map(({ nbytes }) => nbytes))].filter(Boolean);
  return known.sort((a, b) => a - b).map((room) => devices.filter(({ nbytes }) => nbytes === room));
}

/** Memory as vendors count it. @param {number} nbytes */
export const format_room = (nbytes) => `${Math.round(nbytes / 1e9)} GB`;

/** Shows what fits; through it the one device of the report is chosen. */
export class FitTable {
  body = make("tbody");
  head = make("thead");

  /** @param {import("../times.js").Times} times @param {number} peak bytes @param {string} name of the device */
  constructor(times, peak, name) {
    this.times = times;
    this.peak = peak;
    this.groups = group_devices(times.trace.work.devices);
    this.body.append(...this.groups.map((group) => this.make_row(group)));
    const table = make("table", { class: "mm-room" }, this.head, this.body);
    this.element = make("div", { class: "mm-charts mm-fit" }, make("figure", {},
      make("figcaption", {}, `Will it fit? The recorded peak is ${format_bytes(peak)} on ${name}`),
      make("div", { class: "mm-scroll", role: "group", tabindex: 0, "aria-label": "Accelerators" }, table),
      make("p", {}, COUNTED)));
    times.subscribe(() => this.mark());
    this.show([], "");
  }

  /** Show more columns. @param {FitColumn[]} columns @param {string} above what they have in common */
  show(columns, above) {
    const heads = ["memory", "accelerators", "the peak takes", ...columns.map(({ head }) => head)];
    const group = make("tr", {}, make("td", { colspan: OWN }), make("th", { scope: "colgroup", colspan: columns.length }, above));
    this.head.replaceChildren(...columns.length ? [group] : [],
      make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text))));
    [...this.body.rows].forEach((row, i) => { // whose buttons may have the focus
      [...row.cells].slice(OWN).forEach((cell) => cell.remove());
      const [{ nbytes }] = this.groups[i];
      row.append(...columns.map(({ write, title }) => make("td", { title }, write(nbytes))));
    });
    this.mark();
  }

  /** @param {Device[]} group */
  make_row(group) {
    const [{ nbytes }] = group;
    const words = `${format_share(this.peak / nbytes)}, ${this.peak > nbytes ? "does not fit" : "fits"}`;
    return make("tr", {}, make("th", { scope: "row", title: format_bytes(nbytes) }, format_room(nbytes)),
      make("td", {}, ...group.flatMap((device) => [make("button", {
        type: "button", class: "mm-link", title: device.title, onclick: () => this.times.choose(device),
      }, device.name), " "])),
      make("td", {}, words));
  }

  /** Mark the chosen device. */
  mark() {
    const { device } = this.times;
    for (const [i, row] of [...this.body.rows].entries()) {
      row.classList.toggle("mm-selected", this.groups[i].includes(device));
      [...row.querySelectorAll("button")].forEach((button, k) =>
        button.setAttribute("aria-pressed", String(this.groups[i][k] === device)));
    }
  }
}
