// The details panel beside the views: facts about the selected item.

import { fill, make, make_id } from "../dom.js";
import { describe_module } from "./module.js";
import { describe_operator } from "./operator.js";
import { describe_parameter, describe_tensor } from "./tensor.js";

/**
 * @typedef {import("../selection.js").Selected} Selected
 * @typedef {import("./parts.js").DetailContext} DetailContext
 */

/** @type {Record<string, (context: DetailContext, index: number, dim?: number) => import("./parts.js").DetailPage>} */
const DESCRIBE = {
  module: describe_module, op: describe_operator, tensor: describe_tensor,
  parameter: describe_parameter,
};
const REMEMBERED = "meta_magic.details";

/** Whether the panel was closed in any report; some browsers store nothing. */
function recall_closed() {
  try {
    return localStorage.getItem(REMEMBERED) === "closed";
  } catch {
    return false;
  }
}

function remember_closed(/** @type {boolean} */ is_closed) {
  try {
    localStorage.setItem(REMEMBERED, is_closed ? "closed" : "open");
  } catch {
    // The next report then opens it.
  }
}

/** Shows what is selected; owns whether it is open, and what was shown before. */
class DetailsPanel {
  /** @type {Selected | null} */ shown = null;
  /** The items from which links led here. @type {Selected[]} */ trail = [];
  is_closed = recall_closed();
  body = make("div", { class: "mm-details-body", tabindex: 0 });
  element = make("div", {
    class: "mm-details", role: "group", "aria-label": "Details", id: make_id(),
    onkeydown: (event) => {
      if (event.key === "Escape") this.close();
    },
  }, this.body);
  toggle = make("button", {
    type: "button", class: "mm-details-toggle", "aria-controls": this.element.id,
    onclick: () => this.turn(!this.is_closed),
  }, "Details");

  /** @param {Omit<DetailContext, "go">} context @param {import("../selection.js").Selection} selection */
  constructor(context, selection) {
    this.selection = selection;
    this.context = { ...context, go: this.go };
    this.element.hidden = true;
    fill(this.toggle, { "aria-expanded": "false", disabled: "" });
  }

  /** Show what a link leads to. */
  go = (/** @type {Selected} */ selected) => {
    if (this.shown) this.trail.push(this.shown);
    this.lead(selected);
  };

  go_back = () => {
    const selected = this.trail.pop();
    if (selected) this.lead(selected);
  };

  /** The keyboard stays in the panel, whose link is no more. */
  lead(selected) {
    this.is_led = true;
    this.selection.select(selected);
    this.is_led = false;
    if (!this.element.hidden) this.body.focus({ preventScroll: true });
  }

  /** Close it, and say where it can be opened. */
  close() {
    this.turn(true);
    this.toggle.focus();
  }

  turn(is_closed) {
    this.is_closed = is_closed;
    remember_closed(is_closed);
    this.draw();
  }

  follow = (/** @type {Selected | null} */ selected) => {
    // A line has no details: the panel stays as it is.
    if (selected && !(selected.kind in DESCRIBE)) return;
    if (!this.is_led) this.trail = [];
    this.shown = selected;
    if (selected?.dim >= 0) this.is_closed = false; // the panel shows the answer
    this.draw();
  };

  draw() {
    const { shown, element, body, toggle } = this;
    element.hidden = !shown || this.is_closed;
    toggle.disabled = !shown;
    toggle.ariaExpanded = `${!element.hidden}`;
    if (element.hidden) return;
    const { kind, title, under, sections } = DESCRIBE[shown.kind](this.context, shown.index, shown.dim);
    const press = (name, text, onclick) => make("button", {
      type: "button", class: "mm-icon", "aria-label": name, title: name, onclick,
    }, text);
    const head = make("div", { class: "mm-details-head" },
      ...this.trail.length ? [press("Back", "‹", this.go_back)] : [],
      make("span", { class: "mm-faint" }, kind), press("Close details", "×", () => this.close()));
    body.replaceChildren(head, make("div", { class: "mm-title" }, title), make("p", {}, ...under),
      make("div", { class: "mm-sections" }, ...sections.filter((part) => part !== false)));
    body.scrollTop = 0;
  }
}

/**
 * Make the panel, and the button that opens and closes it.
 * @param {Omit<DetailContext, "go">} context @param {import("../selection.js").Selection} selection
 */
export function mount_details(context, selection) {
  const panel = new DetailsPanel(context, selection);
  selection.subscribe(panel.follow);
  panel.follow(selection.current);
  return { element: panel.element, toggle: panel.toggle };
}
