// Payloads for the tests of the source view, written by hand: what Python would send of a
// few operators, each with a place of its own choice.

/** The file of the cell. */
export const CELL = "<ipython-input-2-abc>";

/** A table of distinct strings, "" first. */
function make_table() {
  const rows = [""];
  const of = (text) => {
    if (!rows.includes(text)) rows.push(text);
    return rows.indexOf(text);
  };
  return { rows, of };
}

/**
 * Return a payload.
 * @param {{source?: string, error?: string, notes?: any[], modules?: any[], calls?: any[],
 *   ops: {op?: string, shape?: number[], at: any, backward_of?: number, module?: number}[]}} trace
 *   `at`: {function, line, phase, file, scope, start, column, end, end_column}
 */
export function build_payload(trace) {
  const {
    source = "", cell = [CELL, 2], texts = [], error = null, notes = [], modules = [], calls = [], ops,
  } = trace;
  const strings = make_table();
  const keys = { places: [], positions: [], signatures: [], shapes: [] };
  const number_of = (table, row) => {
    const key = JSON.stringify(row);
    if (!keys[table].includes(key)) keys[table].push(key);
    return keys[table].indexOf(key);
  };
  const rows = (table) => keys[table].map((key) => JSON.parse(key));
  // A geometry for each shape: contiguous float32 is all that these tests need.
  const geometry = (shape) => number_of("shapes", shape);
  const position = ({ file, scope, start, column, end, end_column }) => number_of("positions", [
    strings.of(file), strings.of(scope), start, end, column, end_column,
  ]);
  const place = ({
    function: name = "", line = 0, phase = 4, file = "", scope = "<module>", start = line,
    column = 0, end = start, end_column = column + 1,
  }) => number_of("places", [
    strings.of(name), line, phase, position({ file, scope, start, column, end, end_column }),
  ]);
  const signature = ({ op = "aten.relu.default", shape = [2] }) =>
    number_of("signatures", [strings.of(op), 0, [], [geometry(shape)], [], [-1], -1]);
  const columns = {
    signature: ops.map(signature), place: ops.map(({ at }) => place(at)),
    module: ops.map(({ module = -1 }) => module), call: ops.map(() => -1),
    forward: ops.map(({ backward_of }, i) => (backward_of === undefined ? 0 : i - backward_of)),
    tensors: ops.map(() => 0),
  };
  const structures = calls.map(({ shapes = [] }) => [[], shapes.map((s) => [0, geometry(s)])]);
  return {
    version: 1, cell, texts, headline: "", error, source, notes, bytes_by_dtype: [],
    modules: {
      parent: modules.map(({ parent = -1 }) => parent),
      name: modules.map(({ name }) => strings.of(name)),
      cls: modules.map(({ cls = "Linear" }) => strings.of(cls)),
      calls: modules.map(() => 0), first: modules.map(() => -1), tensors: modules.map(() => []),
      shared: modules.map(() => -1),
    },
    signatures: rows("signatures"), places: rows("places"), positions: rows("positions"), ops: columns,
    storages: ops.map(() => 0), owners: [],
    calls: {
      module: calls.map(({ module = 0 }) => module), parent: calls.map(({ parent = -1 }) => parent),
      line: calls.map(({ line }) => line),
      position: calls.map((call) => (call.at ? position({ scope: "<module>", ...call.at }) : -1)),
      first: calls.map(({ first }, i) => first - (calls[i - 1]?.first ?? 0)),
      length: calls.map(({ length = 0 }) => length),
      structure: calls.map((_, i) => i), structures,
    },
    geometries: rows("shapes").map((_, i) => [i, -1, 0, strings.of("float32"), 0, 0, 4]),
    shapes: rows("shapes"), strings: strings.rows,
  };
}
