// Inserts a new cell into the notebook. Only JupyterLab and Notebook 7 let a widget do that:
// their widget manager knows its notebook. Elsewhere `%meta repair 1` does it, by a reply to
// an execution.

/**
 * Return a function that makes a cell below that of a report; null where that is impossible.
 * @param {any} model
 * @returns {import("./repairs.js").MakeCell}
 */
export function find_make_cell(model) {
  const notebook = model.widget_manager?.context?.model?.sharedModel;
  if (!notebook?.insertCell) return null;
  return (source) => {
    const at = notebook.cells.findIndex(({ id }) => id === model.get("cell"));
    if (at >= 0) notebook.insertCell(at + 1, { cell_type: "code", source });
    return at >= 0;
  };
}
