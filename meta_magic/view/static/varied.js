// The entry point of a saved report with sliders: they move to the numbers that are stored.

import { TraceView, unpack } from "./data.js";
import { make } from "./dom.js";
import { mount_report, SAVED } from "./report.js";
import { start_saved } from "./saved.js";
import { add_sliders, write_sizes } from "./sliders.js";

/**
 * Return a JSON value with changes, as `view/sliders.py` writes them.
 * @param {any} old it is used in the new value @param {any} changes
 */
function change(old, changes) {
  if (!changes) return old;
  if (!Array.isArray(changes)) {
    for (const [name, one] of Object.entries(changes)) old[name] = change(old[name], one);
    return old;
  }
  const [first, last, items] = changes;
  return changes.length === 1 ? first
    : [...old.slice(0, first), ...items, ...old.slice(old.length - last)];
}

/**
 * Show a saved report, and sliders above it.
 * @param {string} id @param {import("./report.js").Settings} settings @param {string} styles
 * @param {import("./saved.js").Read} read @param {import("./saved.js").Read} read_stored
 */
const start_varied = (id, settings, styles, read, read_stored) => start_saved(id, settings, styles, read, read_stored, (element, trace) => {
  const report = make("div");
  element.replaceChildren(report);
  unpack(read_stored()).then(({ sliders, answers, parts }) => {
    const ask = async ({ sizes }) => {
      const at = answers.findIndex((one) => Object.keys(sizes).every((name) => sizes[name] === one.sizes[name]));
      if (at < 0) return { error: `${write_sizes(sizes)} is not recorded: where a kernel is, run the cell` };
      if (answers[at].error) return answers[at];
      const changes = Object.fromEntries(Object.entries(parts).map(([name, each]) => [name, each[at]]));
      return { ...answers[at], trace: new TraceView(change(await unpack(read()), changes)) };
    };
    add_sliders(report, trace, settings, [SAVED, SAVED], sliders, { ask });
  });
  return mount_report(report, trace, settings);
});

export default { start_saved: start_varied };
