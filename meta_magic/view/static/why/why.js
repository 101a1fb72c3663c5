// Why a cell failed: what the call was given, the rule that it broke, where the sizes come
// from, and what mends it.

import { list_sizes, make } from "../dom.js";
import { make_line_link, name_size } from "./chain.js";
import { make_repairs } from "./repairs.js";

/**
 * @typedef {{name: string, tensor: number, shape: number[], dtype: string, marked: number[]}} Given
 *   a tensor, its number in the trace; `marked`: dimensions that the rules are about
 * @typedef {{where: string, expression: string, callers: [string, string][], module: string,
 *   given: Given[], rules: string[], lineages: import("./chain.js").Chain[],
 *   repairs: import("./repairs.js").Repair[], n_more: number, unrepaired: string}} Explanation
 *   as `view/source_payload.py` writes it; `callers`: call sites on the way, each with its code;
 *   `n_more`: tensors that are not listed; `unrepaired`: why there are no repairs, or ""
 */

/** A call site in the user's code, with its code. */
function link_site(where, text, show_line) {
  const line = Number(where.match(/^line (\d+)$/)?.[1]);
  return [line ? make_line_link(line, show_line) : where, where && text ? ": " : "", make("code", {}, text)];
}

/** The chains of sizes, each of which opens; those that were not saved are added when they are asked for. */
class Chains {
  /** By the name of the size. @type {Map<string, HTMLDetailsElement>} */ parts = new Map();
  element = make("div");

  /** @param {import("./chain.js").Chain[]} saved @param {import("./chain.js").Whys} whys */
  constructor(saved, whys) {
    for (const chain of saved) this.add(chain.name, chain.steps[0].value, whys.draw_chain(chain));
    this.element.querySelector("details")?.setAttribute("open", "");
  }

  add(name, size, content) {
    const part = make("details", {}, make("summary", {}, `why ${size}: ${name}`), content);
    this.parts.set(name, part);
    this.element.append(part);
    return part;
  }

  /** Open the chain of a size that was clicked, to which Escape leads back. */
  open(name, size, button, draw) {
    const part = this.parts.get(name) ?? this.add(name, size, draw());
    part.open = true;
    part.onkeydown = ({ key }) => {
      if (key !== "Escape") return;
      part.open = false;
      button.focus();
    };
    part.querySelector("summary").focus();
  }
}

/** The operands of the failed call, a row each; a click on a size shows where it comes from. */
function make_given(/** @type {Given[]} */ all, /** @type {Chains} */ chains, whys) {
  const make_size = (given) => (size, dim) => {
    const name = name_size(given, dim);
    const button = make("button", {
      type: "button", class: `mm-dim ${given.marked.includes(dim) ? "mm-marked" : ""}`,
      "aria-label": `${size}, ${name}`, title: `why ${size}?`,
      onclick: () => chains.open(name, size, button, () => whys.explain(given.tensor, dim)),
    }, `${size}`);
    return button;
  };
  return make("table", { class: "mm-given" }, make("tbody", {}, ...all.map((given) => make("tr", {},
    make("th", { scope: "row" }, given.name), make("td", {}, ...list_sizes(given.shape, make_size(given))),
    make("td", {}, given.dtype)))));
}

/**
 * The explanation of a failed cell.
 * @param {Explanation} explanation @param {import("./chain.js").Whys} whys
 * @param {import("./repairs.js").MakeCell} make_cell
 */
export function make_explanation(explanation, whys, make_cell) {
  const { where, expression, callers, module, given, rules, lineages, repairs, n_more, unrepaired } = explanation;
  const { show_line } = whys;
  const chains = new Chains(lineages, whys);
  const row = (...parts) => make("div", {}, ...parts);
  return make("div", { class: "mm-why", role: "group", "aria-label": "Explanation" },
    row(...callers.map(([at, text]) => row(...link_site(at, text, show_line))),
      row(...link_site(where, expression, show_line), module && ` in ${module}`),
      given.length ? make_given(given, chains, whys) : "", n_more ? `and ${n_more} more` : "",
      ...rules.map((rule) => row(rule)), chains.element),
    repairs.length ? make_repairs(repairs, show_line, make_cell) : unrepaired);
}
