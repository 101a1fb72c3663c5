// The menu of a table's columns.

import { fill, make, make_id } from "../dom.js";

/** A box that shows or hides a column. @param {import("../data.js").Column} column */
function make_box(column, choice, change) {
  const box = make("input", { type: "checkbox", onchange: () => {
    choice.toggle(column);
    change();
  } });
  box.checked = choice.is_shown(column);
  box.disabled = Boolean(column.is_pinned);
  return make("label", { title: column.help }, box, column.name);
}

/**
 * A button, and the boxes that it shows: one for each column.
 * @param {import("./chosen.js").ColumnChoice} choice @param {() => void} onchange
 */
export function make_chooser(choice, onchange) {
  const id = make_id();
  const panel = make("div", {
    id, class: "mm-chooser", role: "group", "aria-label": "Columns", hidden: true,
    onkeydown: (event) => {
      if (event.key !== "Escape") return;
      show(false);
      button.focus();
    },
  });
  const button = make("button", {
    type: "button", "aria-controls": id, onclick: () => show(panel.hidden),
  });
  const change = () => {
    const { columns, shown } = choice;
    button.textContent = shown.length < columns.length
      ? `Columns: ${shown.length} of ${columns.length}` : "Columns";
    onchange();
  };
  const show = (/** @type {boolean} */ is_open) => {
    panel.hidden = !is_open;
    fill(button, { "aria-expanded": `${is_open}` });
    const reset = make("button", { type: "button", onclick: () => {
      choice.reset();
      change();
      show(true);
      panel.querySelector("button").focus();
    } }, "Reset");
    const boxes = choice.columns.map((column) => make_box(column, choice, change));
    panel.replaceChildren(...boxes, reset, make("span", {},
      "Drag a heading's edge, or press ← → on it, to resize."));
  };
  show(false);
  return { button, panel, change };
}
