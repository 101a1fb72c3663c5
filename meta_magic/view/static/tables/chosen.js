// The user's choice of columns and widths, which all reports of this browser share.

const LEAST_WIDTH = 40;
const MOST_WIDTH = 1200;
const LEAST_NAME = 60;
const N_LEADING = 3; // columns beside the names, for which these leave room

/**
 * @typedef {import("../data.js").Column} Column
 * @typedef {{shown: Record<string, boolean>, widths: Record<string, number>}} Chosen
 */

/** The stored choice, if the browser has one. @param {string} key @returns {Chosen} */
function recall(key) {
  try {
    const { shown, widths } = JSON.parse(localStorage.getItem(key));
    return { shown: { ...shown }, widths: { ...widths } };
  } catch {
    return { shown: {}, widths: {} };
  }
}

/** Knows the columns of a table, and which of them a person wants. */
export class ColumnChoice {
  /** @param {string} table its name @param {Column[]} columns those that can be chosen */
  constructor(table, columns) {
    this.key = `meta_magic ${table}`;
    this.columns = columns;
    this.chosen = recall(this.key);
  }

  is_shown = (/** @type {Column} */ { name, is_extra, is_pinned }) =>
    is_pinned || Boolean(this.chosen.shown[name] ?? !is_extra);

  /** The columns to show; pinned ones always. */
  get shown() {
    return this.columns.filter(this.is_shown);
  }

  /** Pixels that were chosen, or undefined. @param {Column} column */
  width_of = ({ name }) => {
    const width = this.chosen.widths[name];
    return width > 0 ? Math.max(LEAST_WIDTH, Math.min(MOST_WIDTH, width)) : undefined;
  };

  /** @param {Column} column */
  toggle(column) {
    this.chosen.shown[column.name] = !this.is_shown(column);
    this.save();
  }

  /** @param {Column} column @param {number} [width] none for what it has at first */
  resize({ name }, width) {
    this.chosen.widths[name] = width;
    this.save();
  }

  reset() {
    this.chosen = { shown: {}, widths: {} };
    this.save();
  }

  save() {
    try {
      localStorage.setItem(this.key, JSON.stringify(this.chosen));
    } catch {
      // The browser forbids it: the choice holds for this report only.
    }
  }
}

/**
 * How the columns share the room, in pixels: as many as have room whole fill it, those
 * without a chosen width by their widths; the others are reached by scrolling. Names leave
 * room for the first of them, down to a least width.
 * @param {Column[]} columns @param {(column: Column) => number | undefined} width_of
 * @param {number} room
 */
export function style_columns(columns, width_of, room) {
  const add_up = (some) => some.reduce((sum, column) => sum + (width_of(column) ?? column.width), 0);
  let n_names = columns.filter(({ is_pinned }) => is_pinned).length;
  let free = room - add_up(columns.filter(({ is_pinned }) => !is_pinned).slice(0, N_LEADING));
  const least = columns.map((column) => {
    if (width_of(column) || !column.is_pinned) return width_of(column) ?? column.width;
    n_names -= 1; // what is left is for the others
    const width = Math.max(LEAST_NAME, Math.min(column.width, free - LEAST_NAME * n_names));
    free -= width;
    return width;
  });
  let [n, left, growing] = [0, room, 0];
  for (; n < columns.length && least[n] <= left; n += 1) {
    left -= least[n];
    growing += width_of(columns[n]) ? 0 : columns[n].width;
  }
  let [end, whole] = [0, 0];
  const tracks = columns.map((column, i) => {
    end += least[i] + (i < n && !width_of(column) ? left * column.width / growing : 0);
    const width = Math.round(end) - whole;
    whole += width;
    return `${width}px`;
  });
  return { "--mm-tracks": tracks.join(" "), "--mm-width": `${whole}px` };
}
