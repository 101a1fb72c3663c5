// The lines of the cell, of earlier cells and of the user's files that it ran, and what ran
// on each. Touches no document.

import { PHASES } from "../data.js";
import { explain_shape, format_bytes, format_shape, shorten_dtype, shorten_op } from "../dom.js";

/**
 * @typedef {import("../data.js").TraceView} TraceView
 * @typedef {{kind: string, index: number, first: number, end: number, name: string,
 *   module: number, outputs: {geometry: import("../data.js").Geometry}[], site: any,
 *   line: number, signature?: object, is_loop?: boolean, parent?: number, forward?: number,
 *   row?: SourceRow, caller?: SourceRow, span?: SourceSpan}} SourceItem
 *   an operator, or a call of a module with the operators from `first` to `end`; `kind` and
 *   `index` as in a selection; `line`: of the cell; `caller`: its row; `row`: where the
 *   position is, or else `caller`; `span`: unless the text there is unknown
 * @typedef {{kind: string, index: number, heading: string, line: string, tokens: number[],
 *   items: SourceItem[], until: number, spans: Map<string, SourceSpan>, pieces: SourcePiece[],
 *   passes: SourceItem[][], shown: number}} SourceRow
 *   a line; `kind`: "" outside of the cell; `items`: without what calls on it did inside;
 *   `until`: end of the last of them; `spans`: those that begin on it; `pieces`: of all that
 *   are on it, outer ones first; `shown`: number of a pass
 * @typedef {{row: SourceRow, items: SourceItem[]}} SourceSpan
 *   an expression, and the row in which it begins
 * @typedef {{from: number, to: number, span: SourceSpan}} SourcePiece what a row has of it
 */

/** The index in a string of a column in UTF-8 bytes. @param {string} line @param {number} column */
export function source_index(line, column) {
  return new TextDecoder().decode(new TextEncoder().encode(line).subarray(0, column)).length;
}

/**
 * Nest the pieces of a line; a piece that extends beyond its outer piece is cut.
 * @param {(from: number, to: number) => any[]} cut gives what lies between them
 * @param {any[]} pieces outer ones first; they are taken out
 */
export function source_nest(cut, pieces, wrap, from, to) {
  const nodes = [];
  while (pieces[0]?.from < to) {
    const piece = pieces.shift();
    const end = Math.min(piece.to, to);
    const inner = source_nest(cut, pieces, wrap, piece.from, end);
    nodes.push(...cut(from, piece.from), wrap(piece, inner));
    from = end;
  }
  return [...nodes, ...cut(from, to)];
}

/**
 * Cut a stretch of a line where its kinds of text change.
 * @param {string} line @param {number[]} tokens as of a `SourceText`
 * @param {(kind: number, text: string, at: number) => any} paint
 */
export function source_paint(line, tokens, paint, from, to) {
  const nodes = [];
  for (let i = 0, start = 0; start < to; i += 2) {
    const [kind, length] = i < tokens.length ? [tokens[i], tokens[i + 1]] : [0, line.length];
    const text = line.slice(Math.max(from, start), Math.min(to, start + length));
    if (start + length > from && text) nodes.push(paint(kind, text, Math.max(from, start)));
    start += length;
  }
  return nodes;
}

/**
 * Add an expression to all rows that it is on.
 * @param {SourceSpan} span @param {import("../data.js").Position} position
 * @param {(number: number) => SourceRow | undefined} row_of
 */
function add_pieces(span, { start, end, column, end_column }, row_of) {
  for (let number = start; number <= end; number += 1) {
    const row = row_of(number);
    const first = row?.line.search(/\S/) ?? -1;
    if (first < 0) continue; // nothing is there
    const from = number === start ? source_index(row.line, column) : first;
    const to = number === end ? source_index(row.line, end_column) : row.line.trimEnd().length;
    row.pieces.push({ from, to, span });
  }
}

/** Put those of a row into order: outer ones first. @param {SourceRow} row */
function sort_pieces({ pieces }) {
  const begin = (/** @type {SourcePiece} */ { span }) => span.items[0].site;
  pieces.sort((a, b) => a.from - b.from || b.to - a.to || begin(a).start - begin(b).start
    || begin(a).column - begin(b).column || begin(b).end - begin(a).end);
}

/**
 * Split what a line did into its passes: one begins where a position comes again, unless its
 * function goes on there; that begins anew with the signature that it began with.
 * @param {SourceItem[]} items
 */
export function source_passes(items) {
  /** @type {SourceItem[][]} */
  const passes = [];
  for (const item of items) {
    const pass = passes.at(-1);
    const last = pass?.at(-1);
    const known = pass?.find(({ span }) => span === item.span);
    const goes_on = last?.end === item.first && last.span === item.span
      && known.signature !== item.signature;
    const may_begin = item.kind === "module" || (item.span && item.is_loop);
    if (!pass || (may_begin && known && !goes_on)) passes.push([item]);
    else pass.push(item);
  }
  return passes;
}

/** Calls and operators, as they began. @returns {SourceItem[]} */
function read_items(/** @type {TraceView} */ trace) {
  const calls = trace.calls.map((call) => ({
    ...call, kind: "module", index: call.module, first: call.first_op, end: call.end_op,
    name: `operators: ${call.end_op - call.first_op}`, site: call.position,
  }));
  const ops = Array.from(trace.op_site, (_, index) => trace.op(index)).map((op) => ({
    ...op, kind: "op", first: op.index, end: op.index + 1, name: shorten_op(op.signature.op),
    // Repetitions within a constructor, autograd or an optimizer are no loop of the cell.
    line: op.site.line, is_loop: ["forward", "other"].includes(PHASES[op.site.phase]),
  }));
  return [...calls, ...ops].sort((a, b) => a.first - b.first);
}

/**
 * Gather what ran on each line of the cell, and then of other functions.
 * @param {TraceView} trace
 */
export function source_rows(trace) {
  const row_by_line = new Map();
  const row_at = (file, number) => row_by_line.get(`${file}:${number}`);
  const { cell, texts, source } = trace;
  const own = {
    ...cell, tokens: trace.tokens, text: source.trimEnd() || "# no source",
    heading: texts.length && cell.file.startsWith("In[") ? cell.file : "",
  };
  const all = source.trim() || !texts.length ? [own, ...texts] : texts;
  for (const { file, first, heading, text, tokens } of all) {
    // A function in a function is there already.
    if (row_at(file, first)) continue;
    text.split(/\r?\n/).forEach((line, i) => row_by_line.set(`${file}:${first + i}`, {
      kind: file === cell.file ? "line" : "", index: first + i, heading: i ? "" : heading, line,
      tokens: tokens?.[i] ?? [], items: [], until: 0, spans: new Map(), pieces: [],
    }));
  }
  const items = read_items(trace);
  for (const item of items) {
    const { file, start, end, column, end_column } = item.site ?? {};
    const row = row_at(file, start);
    const key = `${column} ${end}:${end_column}`;
    if (row && !row.spans.has(key)) {
      row.spans.set(key, { row, items: [] });
      add_pieces(row.spans.get(key), item.site, (number) => row_at(file, number));
    }
    item.span = row?.spans.get(key);
    item.span?.items.push(item);
    item.caller = row_at(cell.file, item.line);
    item.row = row ?? item.caller;
    // A backward operator has the position of its forward one, and made nothing there;
    // a module that torch called is part of the one that led there.
    if (item.forward >= 0 || trace.calls[item.parent]?.position === item.site) continue;
    if (!item.row || item.first < item.row.until) continue;
    item.row.items.push(item);
    if (item.kind === "module") item.row.until = item.end;
  }
  /** @type {SourceRow[]} */
  const rows = [...row_by_line.values()];
  for (const row of rows) row.passes = source_passes(row.items);
  rows.forEach(sort_pieces);
  return { rows, items };
}

/** The distinct shapes that items made, newest last. @param {SourceItem[]} items */
export function source_shapes(items) {
  const shapes = items.flatMap(({ outputs }) => outputs).map(({ geometry: { shape, dtype } }) =>
    `${format_shape(shape)} ${shorten_dtype(dtype)}`);
  return [...new Set(shapes.reverse())].reverse();
}

/**
 * What an expression did, as lines of text.
 * @param {TraceView} trace @param {SourceItem[]} items
 */
export function source_describe(trace, items) {
  const { module, site } = items[0];
  const { fqn, class_name } = trace.modules[module] ?? {};
  return [
    site.function,
    class_name && `${fqn || "the root"}: ${class_name.split(".").pop()}`,
    items.slice(-6).map(({ name }) => name).join(" → "),
    ...items.at(-1).outputs.slice(0, 3).map(({ geometry: { shape, stride, dtype, nbytes } }) =>
      `${explain_shape(shape)} · stride ${stride && format_shape(stride)} · ${dtype}`
      + ` · ${format_bytes(nbytes)}`),
  ].filter(Boolean);
}
