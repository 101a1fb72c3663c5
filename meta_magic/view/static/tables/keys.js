// The keys of a table.

const GRID_STEPS = {
  ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity,
};

/** Handle a key. @param {import("./grid.js").Grid} grid @param {KeyboardEvent} event */
export function press_in_grid(grid, event) {
  const { key } = event;
  const { rows, active, selection, element, view } = grid;
  const row = rows[active];
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  if (key === "Escape") selection.select(null);
  else if (event.target !== element || !rows.length) return;
  else if (key in GRID_STEPS) grid.go(active + GRID_STEPS[key]);
  else if (key === "Enter" || key === " ") grid.choose(false);
  else if (!view.toggle || !key.startsWith("Arrow")) return;
  else if (row.is_open === (key === "ArrowLeft")) grid.choose(true);
  else if (key === "ArrowLeft") grid.go(row.parent < 0 ? active : row.parent);
  else if (row.is_open) grid.go(active + 1);
  event.preventDefault();
}
