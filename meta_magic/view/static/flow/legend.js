// The legend below the flow: the families that are shown, of which some can be chosen.

import { make } from "../dom.js";
import { FAMILY_NAMES, classify_family } from "./families.js";

/** Make the legend. @param {() => void} redraw after a choice */
export function make_legend(redraw) {
  /** @type {Set<string>} */
  const chosen = new Set();
  const chips = new Map(FAMILY_NAMES.map((family) => [family, make("button", {
    type: "button", class: `mm-flow-key mm-family ${classify_family(family)}`, "aria-pressed": "false",
    title: `show ${family}`,
    onclick: () => {
      if (!chosen.delete(family)) chosen.add(family);
      chips.get(family).ariaPressed = `${chosen.has(family)}`;
      redraw();
    },
  }, family)]));
  const element = make("div", { class: "mm-flow-legend", role: "group", "aria-label": "Legend" }, ...chips.values());
  return {
    element, chosen,
    /** Have a chip for each of the families that are seen. @param {string[]} families */
    show(families) {
      const found = new Set(families);
      for (const [family, chip] of chips) chip.hidden = !found.has(family) && !chosen.has(family);
    },
  };
}
