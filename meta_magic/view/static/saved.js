// The entry point of the saved report, which has no kernel.

import { decode } from "./data.js";
import { keep_from_notebook, make } from "./dom.js";
import { mount_report, SAVED } from "./report.js";
import { follow_scheme } from "./scheme.js";

/** @typedef {() => Uint8Array<ArrayBuffer>} Read gives a payload */

const GRACE = 1500; // milliseconds that a live report has to replace a saved one

/**
 * Show the saved report instead of the plain tree, unless there is a live one.
 * @param {string} id @param {import("./report.js").Settings} settings @param {string} styles
 * @param {Read} read @param {Read} [_]
 * @param {typeof import("./report.js").mount_report} mount
 */
export async function start_saved(id, settings, styles, read, _, mount = mount_report) {
  const element = document.getElementById(id);
  if (!element) return;
  const is_notebook = Boolean(element.closest(".jp-Notebook"));
  if (is_notebook) await new Promise((resolve) => setTimeout(resolve, GRACE));
  if (element.inert || !element.isConnected) return;
  element.after(make("style", {}, styles));
  element.addEventListener("keydown", keep_from_notebook);
  follow_scheme(element);
  mount(element, await decode(read()), settings, SAVED);
}

export default { start_saved };
