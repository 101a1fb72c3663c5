// A treemap: modules as nested boxes, sized by a quantity. No DOM, so that node can test it.

const LEAST_AREA = 150; // square pixels below which a box is drawn without what is in it
const LEAST_SIDE = 2; // pixels below which it is not drawn: the box around it shows there
const LINE = 14; // pixels

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{name: string, words: string, value: number, at: number, modules: number[],
 *   children: Area[]}} Area
 *   a module, or all modules of one name in a run of modules that are built alike. `at`:
 *   the first; `modules`: all, none for what a module has beside those in it; the
 *   largest of `children` first
 * @typedef {{x: number, y: number, w: number, h: number}} Rect
 * @typedef {{area: Area, rect: Rect, top: Area, path: string, is_leaf: boolean}} Placed `top`: that it is in
 */

/** All below a module and itself, by module. @returns {number[]} */
export function add_up_modules({ modules }, read_own) {
  const totals = modules.map(read_own);
  for (let i = modules.length - 1; i >= 0; i -= 1) {
    if (modules[i].parent >= 0) totals[modules[i].parent] += totals[i];
  }
  return totals;
}

/**
 * The area of a run of modules.
 * @param {TraceView} trace @param {number[]} run @param {(module: number) => number} read
 * @returns {Area}
 */
export function build_area(trace, run, read) {
  const [first, last] = [run[0], run.at(-1)].map((i) => trace.modules[i]);
  const sum = (areas) => areas.reduce((total, { value }) => total + value, 0);
  // The modules of a run are built alike, so their children are, too.
  const lists = run.map((i) => trace.runs(trace.modules[i].children));
  const children = lists[0].map((_, k) =>
    build_area(trace, lists.flatMap((runs) => runs[k]), read)).filter(({ value }) => value);
  const value = run.reduce((total, i) => total + read(i), 0);
  const own = { value: value - sum(children), at: run[0], modules: [], children: [] };
  if (own.value > 0 && children.length) children.push({ ...own, name: "itself", words: "itself" });
  children.sort((a, b) => b.value - a.value);
  const name = first.name === last.name ? first.name : `${first.name}-${last.name}`;
  const kind = run.length > 1 ? `${run.length} x ${first.class_name}` : first.kind ?? first.class_name;
  const words = [name, kind].filter(Boolean).join(": ");
  return { name, words, value, at: run[0], modules: run, children };
}

/**
 * The outermost areas, the largest first; none if there is nothing to show.
 * @param {TraceView} trace @param {(module: number) => number} read
 */
export function build_tops(trace, read) {
  let tops = trace.roots.map((root) => build_area(trace, [root], read));
  tops = tops.filter(({ value }) => value).sort((a, b) => b.value - a.value);
  while (tops.length === 1 && tops[0].children.length) tops = tops[0].children;
  return tops;
}

/** The largest aspect ratio in a strip of rectangles; 1 for squares. */
function find_worst(sizes, side) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const square = (total / side) ** 2;
  return Math.max(...sizes.map((size) => Math.max(square / size, size / square)));
}

/**
 * Divide a rectangle by value, as square as possible: Bruls, Huizing and van Wijk,
 * "Squarified Treemaps", 2000.
 * @param {Area[]} areas the largest first @param {Rect} rect @returns {Rect[]}
 */
export function share_rect(areas, { x, y, w, h }) {
  const rects = [];
  let rest = areas.map(({ value }) => value);
  while (rest.length) {
    const scale = w * h / rest.reduce((sum, value) => sum + value, 0);
    const sizes = rest.map((value) => value * scale);
    const side = Math.min(w, h);
    let n = 1;
    while (n < sizes.length
      && find_worst(sizes.slice(0, n + 1), side) <= find_worst(sizes.slice(0, n), side)) n += 1;
    const thick = sizes.slice(0, n).reduce((sum, size) => sum + size, 0) / side;
    let along = 0;
    for (const size of sizes.slice(0, n)) {
      const long = size / thick;
      rects.push(w >= h ? { x, y: y + along, w: thick, h: long } : { x: x + along, y, w: long, h: thick });
      along += long;
    }
    if (w >= h) [x, w] = [x + thick, w - thick];
    else [y, h] = [y + thick, h - thick];
    rest = rest.slice(n);
  }
  return rects;
}

/**
 * Arrange areas in a rectangle, and in each area what it has; outer ones come first.
 * @param {Area[]} tops @param {Rect} whole @returns {Placed[]}
 */
export function arrange_areas(tops, whole) {
  const placed = [];
  const arrange_within = (areas, within, top, above) => share_rect(areas, within).forEach((rect, i) => {
    if (rect.w < LEAST_SIDE || rect.h < LEAST_SIDE) return;
    const area = areas[i];
    const own = area.modules.length ? area.name : "";
    const path = [above, own].filter(Boolean).join(".") || area.words;
    const is_leaf = !area.children.length || rect.w * rect.h < LEAST_AREA;
    placed.push({ area, rect, top: top ?? area, path, is_leaf });
    if (!is_leaf) arrange_within(area.children, rect, top ?? area, path);
  });
  arrange_within(tops, whole, null, "");
  return placed;
}

/**
 * The names of a path, from as far up as fits; a number says nothing by itself.
 * @param {string} path @param {number} w pixels @param {(text: string) => number} measure
 */
export const fit_path = (path, w, measure) => path.split(".")
  .map((part, i, parts) => (i && /^\d/.test(part) ? "" : parts.slice(i).join(".")))
  .find((text) => text && measure(text) <= w) ?? "";

/**
 * The lines that a box has room for: its path, then its value.
 * @param {string} path @param {string} value @param {number} w @param {number} h
 * @param {(text: string) => number} measure pixels of a text @returns {string[]}
 */
export function fit_label(path, value, w, h, measure) {
  const name = fit_path(path, w, measure);
  if (!name || h < LINE) return [];
  return h >= 2 * LINE && measure(value) <= w ? [name, value] : [name];
}
