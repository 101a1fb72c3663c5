// The lines of the cell and of the notebook's functions that it called, and what ran on
// each. Touches no document.

import { PHASES } from "../data.js";
import { format_bytes, format_shape, shorten_dtype, shorten_op } from "../dom.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{kind: string, index: number, first: number, end: number, name: string,
 *   module: number, outputs: {geometry: import("../data.js").Geometry}[], place: any,
 *   line: number, signature?: object, is_loop?: boolean, parent?: number, forward?: number,
 *   row?: SourceRow, caller?: SourceRow, span?: SourceSpan}} SourceItem
 *   an operator, or a call of a module with the operators from `first` to `end`; `kind` and
 *   `index` as in a selection; `line`: of the cell; `caller`: its row; `row`: where the
 *   position is, or else `caller`; `span`: unless the text there is unknown
 * @typedef {{kind: string, index: number, heading: string, line: string, items: SourceItem[],
 *   until: number, spans: Map<string, SourceSpan>, passes: SourceItem[][],
 *   shown: number}} SourceRow
 *   a line; `kind`: "" outside of the cell; `items`: without what calls on it did inside;
 *   `until`: end of the last of them; `shown`: number of a pass
 * @typedef {{from: number, to: number, row: SourceRow, items: SourceItem[]}} SourceSpan
 *   an expression, on the row in which it begins
 */

/** Where a column, in UTF-8 bytes, is in a string. @param {string} line @param {number} column */
export function source_index(line, column) {
  return new TextDecoder().decode(new TextEncoder().encode(line).subarray(0, column)).length;
}

/**
 * Wrap spans of a line into each other; what would stick out is cut off.
 * @param {string} line @param {any[]} spans outer ones first; they are taken out
 */
export function source_nest(line, spans, wrap, from = 0, to = line.length) {
  const nodes = [];
  while (spans[0]?.from < to) {
    const span = spans.shift();
    const end = Math.min(span.to, to);
    const inner = source_nest(line, spans, wrap, span.from, end);
    nodes.push(line.slice(from, span.from), wrap(span, inner));
    from = end;
  }
  return [...nodes, line.slice(from, to)];
}

/**
 * Split what a line did into its passes: one begins where a position is met again, unless its
 * function goes on there; that begins anew with the signature that it began with.
 * @param {SourceItem[]} items
 */
export function source_passes(items) {
  /** @type {SourceItem[][]} */
  const passes = [];
  for (const item of items) {
    const pass = passes.at(-1);
    const last = pass?.at(-1);
    const met = pass?.find(({ span }) => span === item.span);
    const goes_on = last?.end === item.first && last.span === item.span
      && met.signature !== item.signature;
    const may_begin = item.kind === "module" || (item.span && item.is_loop);
    if (!pass || (may_begin && met && !goes_on)) passes.push([item]);
    else pass.push(item);
  }
  return passes;
}

/** Calls and operators, as they began. @returns {SourceItem[]} */
function read_items(/** @type {TraceView} */ trace) {
  const calls = trace.calls.map((call) => ({
    ...call, kind: "module", index: call.module, first: call.first_op, end: call.end_op,
    name: `operators: ${call.end_op - call.first_op}`, place: call.position,
  }));
  const ops = Array.from(trace.op_place, (_, index) => trace.op(index)).map((op) => ({
    ...op, kind: "op", first: op.index, end: op.index + 1, name: shorten_op(op.signature.op),
    // What a constructor, autograd or an optimizer repeats is no loop of the cell.
    line: op.place.line, is_loop: ["forward", "other"].includes(PHASES[op.place.phase]),
  }));
  return [...calls, ...ops].sort((a, b) => a.first - b.first);
}

/**
 * Gather what ran on each line of the cell, and then of other functions.
 * @param {TraceView} trace
 */
export function source_rows(trace) {
  const row_by_place = new Map();
  const row_at = (file, number) => row_by_place.get(`${file}:${number}`);
  const cell = { ...trace.cell, scope: "", text: trace.source.trimEnd() || "# no source" };
  for (const { file, first, scope, text } of [cell, ...trace.texts]) {
    // A function in a function is there already, as are those of the cell.
    if (row_at(file, first)) continue;
    text.split(/\r?\n/).forEach((line, i) => row_by_place.set(`${file}:${first + i}`, {
      kind: scope ? "" : "line", index: first + i, heading: i ? "" : scope, line,
      items: [], until: 0, spans: new Map(),
    }));
  }
  const items = read_items(trace);
  for (const item of items) {
    const { file, start, end, column, end_column } = item.place ?? {};
    const row = row_at(file, start);
    const key = `${column} ${end}:${end_column}`;
    if (row && !row.spans.has(key)) {
      const to = end > start ? row.line.length : source_index(row.line, end_column);
      row.spans.set(key, { row, from: source_index(row.line, column), to, items: [] });
    }
    item.span = row?.spans.get(key);
    item.span?.items.push(item);
    item.caller = row_at(cell.file, item.line);
    item.row = row ?? item.caller;
    // A backward operator stands where its forward one does, and made nothing there;
    // a module that torch called is part of the one that led there.
    if (item.forward >= 0 || trace.calls[item.parent]?.position === item.place) continue;
    if (!item.row || item.first < item.row.until) continue;
    item.row.items.push(item);
    if (item.kind === "module") item.row.until = item.end;
  }
  /** @type {SourceRow[]} */
  const rows = [...row_by_place.values()];
  for (const row of rows) row.passes = source_passes(row.items);
  return { rows, items };
}

/** The distinct shapes that items made, newest last. @param {SourceItem[]} items */
export function source_shapes(items) {
  const shapes = items.flatMap(({ outputs }) => outputs).map(({ geometry: { shape, dtype } }) =>
    `${format_shape(shape)} ${shorten_dtype(dtype)}`);
  return [...new Set(shapes.reverse())].reverse();
}

/**
 * What an expression did, in words, line by line.
 * @param {TraceView} trace @param {SourceItem[]} items
 */
export function source_describe(trace, items) {
  const { module, place } = items[0];
  const { fqn, class_name } = trace.modules[module] ?? {};
  return [
    place.function,
    class_name && `${fqn || "the root"}: ${class_name.split(".").pop()}`,
    items.slice(-6).map(({ name }) => name).join(" → "),
    ...items.at(-1).outputs.slice(0, 3).map(({ geometry: { shape, stride, dtype, nbytes } }) =>
      `${format_shape(shape)} · stride ${stride && format_shape(stride)} · ${dtype}`
      + ` · ${format_bytes(nbytes)}`),
  ].filter(Boolean);
}
