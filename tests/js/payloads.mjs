// Payloads built by hand, as `view/payload.py` writes them, so small that what is expected
// of them can be worked out.

/** Columns of which the report has the values. */
const name_columns = (...names) => names.map((name) => ({ name, help: "", width: 100 }));

/** Columns as `trace/op_columns.py` and `trace/module_columns.py` name them. */
const COLUMNS = {
  ops: name_columns(
    "index", "op", "inputs", "outputs", "arguments", "module", "root", "module_call", "phase",
    "line", "function", "forward", "flops", "nbytes_read", "nbytes_written", "intensity",
    "time", "alive", "views", "writes", "position", "evaluation", "kernel", "assumed", "raised",
  ),
  modules: name_columns(
    "name", "class", "output", "parameters", "time", "bytes", "FLOPs", "share", "activations",
    "place", "input", "marks",
  ),
};

/** Whose name is a column of numbers, and whose a table of records. */
const NOTHING = {
  version: 6, failure: "", headline: "", error: null, error_line: 0, source: "",
  cell: { file: "", first: 2 }, texts: [], notes: [], nbytes_by_dtype: {}, modules: [],
  signatures: [], places: [], positions: [], geometries: [], storages: [], owners: [],
  details: {
    settings_of: [], settings: [], definition_of: [], definitions: [], storages: [],
    deaths: { n_ops: [], storage: [] },
  },
  memory: {
    categories: [], places: [], storage: [], start: [], length: [], nbytes: [], sizes: [],
    category: [], place: [],
  },
  remarks: { evaluation: [], kernel: [], assumed: [], raised: [] },
  ops: { signature: [], place: [], module: [], call: [], forward: [], tensors: [] },
  calls: {
    module: [], parent: [], line: [], position: [], first: [], length: [], structure: [],
    structures: [],
  },
};

/** A device: so many bytes, and so many operations, in a second. */
export const DEVICE = {
  name: "h100-sxm", title: "A device", nbytes: 1000, bandwidth: 10, vectors: 50, peaks: [["float32", 100]],
};

/** Records of the same fields as columns. */
const to_columns = (records) => Object.fromEntries(Object.keys(records[0] ?? {}).map((name) =>
  [name, records.map((record) => record[name])]));

/** Signatures that compute and move nothing, beside their FLOPs. */
const make_work = (signatures) => ({
  ...Object.fromEntries(["skipped", "elementwise", "read", "written"].map((name) =>
    [name, signatures.map(() => 0)])),
  kind: signatures.map(() => -1), devices: to_columns([DEVICE]),
});

/** A payload of which only what is not empty is given, with more columns by table. */
export const make_payload = ({ columns = {}, ops = NOTHING.ops, work = {}, ...own }) => ({
  ...NOTHING, ...own, work: { ...make_work(own.signatures ?? []), ...work },
  ops: { functions: ops.signature.map(() => 1), ...ops },
  ...Object.fromEntries(["signatures", "places", "positions"].map((name) => [name, to_columns(own[name] ?? [])])),
  columns: Object.fromEntries(Object.entries(COLUMNS).map(([table, held]) =>
    [table, [...held, ...columns[table] ?? []]])),
});

/** A table of distinct records, and how to get the number of one. */
export function make_table() {
  const rows = [];
  const keys = [];
  const number_of = (row) => {
    const key = JSON.stringify(row);
    if (!keys.includes(key)) rows[keys.push(key) - 1] = row;
    return keys.indexOf(key);
  };
  return { rows, number_of };
}

const multiply = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** A contiguous tensor of float32. */
export const make_geometry = (shape) => ({
  shape, stride: shape.map((_, i) => multiply(shape.slice(i + 1))), offset: 0, dtype: "float32",
  device: "meta", layout: "strided", nbytes: 4 * multiply(shape),
});

/** A tensor of float32 that a module holds. */
export const make_tensor = ({ shape = [], ...own }) => ({
  name: "weight", kind: "parameter", shape, dtype: "float32", numel: multiply(shape),
  nbytes: 4 * multiply(shape), is_persistent: true, is_lazy: false, requires_grad: false,
  is_real: false, tied_to: "", ...own,
});

/** Modules, parents before what is in them; each has its path. */
export function make_modules(modules) {
  const made = [];
  for (const { parent = -1, name = "", tensors = [], ...own } of modules) {
    const above = made[parent];
    const path = above?.parent >= 0 ? `${above.fqn}.${name}` : name;
    made.push({
      parent, name, fqn: above ? path : "", class_name: "Linear", n_calls: 0, first_call: -1,
      shared_with: -1, tensors: tensors.map(make_tensor), ...own,
    });
  }
  return made;
}

/** Numbers as how far each lies below the first unused one. */
export function to_deltas(numbers) {
  let n_used = 0;
  return numbers.map((number) => {
    const delta = n_used - number;
    n_used = Math.max(n_used, number + 1);
    return delta;
  });
}

/** Numbers as the step from each to the next. */
export const to_steps = (numbers) => numbers.map((number, i) => number - (numbers[i - 1] ?? 0));
