// Inserts a new cell into the notebook, or changes the text of the report's cell. Only JupyterLab
// and Notebook 7 let a widget do that: their widget manager knows its notebook. Elsewhere
// `%meta repair 1` inserts a cell, by a reply to an execution.

/** The cells of the notebook of a report, and where its own is. @param {any} model */
function find_cells(model) {
  const notebook = model.widget_manager?.context?.model?.sharedModel;
  const at = notebook?.cells?.findIndex(({ id }) => id === model.get("cell")) ?? -1;
  return { notebook, at };
}

/**
 * Return a function that changes the text of a report's cell and says whether it did; null
 * where that is impossible.
 * @param {any} model @returns {((source: string) => boolean) | null}
 */
export function find_set_cell(model) {
  if (!find_cells(model).notebook?.cells) return null;
  return (source) => {
    const { notebook, at } = find_cells(model);
    if (at >= 0) notebook.cells[at].setSource(source);
    return at >= 0;
  };
}

/**
 * Return a function that makes a cell below that of a report; null where that is impossible.
 * @param {any} model
 * @returns {import("./repairs.js").MakeCell}
 */
export function find_make_cell(model) {
  if (!find_cells(model).notebook?.insertCell) return null;
  return (source) => {
    const { notebook, at } = find_cells(model);
    if (at >= 0) notebook.insertCell(at + 1, { cell_type: "code", source });
    return at >= 0;
  };
}
