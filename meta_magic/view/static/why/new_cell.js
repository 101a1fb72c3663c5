// A new cell of the notebook, where the front end lets a widget make one: in JupyterLab and
// Notebook 7, whose manager of widgets knows the notebook that it belongs to. Others show a
// reply to an execution, which no widget makes: there `%meta repair 1` does it.

/**
 * Return what makes a cell below that of a report; null where nothing can.
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
