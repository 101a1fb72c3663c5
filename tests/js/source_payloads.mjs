// Payloads for the tests of the source view, written by hand: what Python would send of a
// few operators, each with a position of its own.

import { make_geometry, make_modules, make_payload, make_table, to_steps } from "./payloads.mjs";

/** The file of the cell. */
export const CELL = "<ipython-input-2-abc>";

/** The columns of the calls. */
function write_calls(calls, position, geometry) {
  return {
    module: calls.map(({ module = 0 }) => module), parent: calls.map(({ parent = -1 }) => parent),
    line: calls.map(({ line }) => line), position: calls.map(position),
    first: to_steps(calls.map(({ first }) => first)),
    length: calls.map(({ length = 0 }) => length), structure: calls.map((_, i) => i),
    structures: calls.map(({ shapes = [] }) =>
      [[], shapes.map((shape) => ({ path: "", geometry: geometry(shape) }))]),
  };
}

/**
 * Return a payload.
 * @param {{source?: string, error?: string, notes?: any[], modules?: any[], calls?: any[],
 *   ops: {op?: string, shape?: number[], at: any, backward_of?: number, module?: number}[]}} trace
 *   `at`: {function, line, phase, file, scope, start, column, end, end_column}
 */
export function build_payload({
  cell = { file: CELL, first: 2 }, modules = [], calls = [], ops, ...plain
}) {
  const [places, positions, signatures, geometries] = Array.from({ length: 4 }, make_table);
  const geometry = (shape) => geometries.number_of(make_geometry(shape));
  const position = ({ file, scope, start, column, end, end_column }) =>
    positions.number_of({ file, scope, start, end, column, end_column });
  const site = ({
    function: name = "", line = 0, phase = 4, file = "", scope = "<module>", start = line,
    column = 0, end = start, end_column = column + 1,
  }) => places.number_of({
    function: name, line, phase,
    position: position({ file, scope, start, column, end, end_column }),
  });
  const signature = ({ op = "aten.relu.default", shape = [2] }) => signatures.number_of({
    op, args: "", inputs: [], outputs: [geometry(shape)], writes: [], views: [-1], flops: -1,
  });
  const call_position = ({ at }) => (at
    ? position({ file: CELL, scope: "<module>", end: at.start, ...at }) : -1);
  return make_payload({
    ...plain,
    cell,
    modules: make_modules(modules.map(({ cls = "Linear", ...own }) =>
      ({ ...own, class_name: cls }))),
    ops: {
      signature: ops.map(signature), place: ops.map(({ at }) => site(at)),
      module: ops.map(({ module = -1 }) => module), call: ops.map(() => -1),
      forward: ops.map(({ backward_of }, i) => (backward_of === undefined ? 0 : i - backward_of)),
      tensors: ops.map(() => 0),
    },
    storages: ops.map(() => 0),
    calls: write_calls(calls, call_position, geometry),
    places: places.rows, positions: positions.rows, signatures: signatures.rows,
    geometries: geometries.rows,
  });
}
