// Details of an operator: inputs, outputs, cost and call site.

import { PHASES } from "../data.js";
import { FORMATS, format_bytes, format_flops, make, shorten_op } from "../dom.js";
import { make_call } from "../pictures/call.js";
import { draw_picture } from "../pictures/picture.js";
import { source_index } from "../source/lines.js";
import { read_op } from "../tables/operators.js";
import { describe_layout, link_line, link_module, link_op, link_tensor, list_links, make_link, make_section, name_file, whisper } from "./parts.js";

/**
 * @typedef {import("./parts.js").DetailContext} DetailContext
 * @typedef {import("../data.js").Operator} Operator
 */

const LONGEST = 240; // characters of an expression

/** Arguments that are no tensors, as pairs. @param {string} args @returns {[string, string][]} */
export const split_arguments = (args) => args.split(/, (?=\w+=)/).filter(Boolean).map((part) => {
  const at = part.indexOf("=");
  return [part.slice(0, at), part.slice(at + 1)];
});

/**
 * The text at a position in the cell or in a function of the notebook; "" where it is unknown.
 * @param {import("../data.js").TraceView} trace @param {import("../data.js").Position} position
 */
export function read_expression(trace, { file, start, end, column, end_column }) {
  const cell = { ...trace.cell, text: trace.source };
  const found = [cell, ...trace.texts].find(({ file: name, first, text }) =>
    name === file && first <= start && end < first + text.split("\n").length);
  if (!found || column < 0) return "";
  const lines = found.text.split(/\r?\n/).slice(start - found.first, end - found.first + 1);
  const last = lines.length - 1;
  lines[last] = lines[last].slice(0, source_index(lines[last], end_column));
  lines[0] = lines[0].slice(source_index(lines[0], column));
  const text = lines.join("\n");
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/**
 * What the code calls the inputs of a call, as in `a[:, None] + b` or `x.sum(0)`; none if it
 * made several operators, or is written otherwise.
 * @param {import("../data.js").TraceView} trace @param {Operator} op @param {string} text
 */
export function name_operands({ op_function }, { index, inputs, site }, text) {
  if ([index - 1, index + 1].some((other) => op_function[other] === op_function[index])) return [];
  let depth = 0;
  let [sign, dot] = [-1, -1]; // the last binary operator, and the last method
  [...text].forEach((char, at) => {
    if ("([{".includes(char)) depth += 1;
    if (")]}".includes(char)) depth -= 1;
    if (depth) return;
    if (/^ [-+*/@%<>=&|^]+ /.test(text.slice(at))) sign = at;
    if (/^\.\w+/.test(text.slice(at))) dot = at;
  });
  if (sign > 0 && inputs.length === 2) return [text.slice(0, sign), text.slice(sign + 1).replace(/^\S+ /, "")];
  const [method] = text.slice(dot + 1).split("("); // of a tensor, or else of a module
  const is_own = ["", `torch.Tensor.${method}`].includes(site.function);
  return sign < 0 && dot > 0 && is_own ? [text.slice(0, dot)] : [];
}

/** Which input an output is, views, or shares its storage with. */
function describe_alias(/** @type {Operator} */ { inputs, signature: { names, views } }, { id, storage }, i) {
  const name = (at) => names?.[at] || `input ${at}`;
  const same = inputs.findIndex((input) => input.id === id);
  if (same >= 0) return `is ${name(same)}`;
  if (views[i] >= 0) return `view of ${name(views[i])}`;
  const alias = inputs.findIndex((input) => input.storage === storage);
  return alias >= 0 ? `shares storage with ${name(alias)}` : "";
}

/** The parameter that has a storage, if one has: within the operator's module its own name. */
function name_owned(/** @type {DetailContext} */ { lineage, go }, /** @type {number} */ within, storage) {
  const index = lineage.find_owned(storage);
  if (index < 0) return "";
  const { module, tensor, fqn } = lineage.owned(index);
  const link = make_link(go, { kind: "parameter", index }, module === within ? tensor.name : fqn);
  return make("span", { class: "mm-owned" }, link);
}

function link_inputs(/** @type {DetailContext} */ context, /** @type {Operator} */ { inputs, signature, module }) {
  const { names, writes, args } = signature;
  const tensors = inputs.map(({ id, storage, geometry }, i) => {
    const twin = inputs.findIndex((other) => other.storage === storage);
    const words = [
      describe_layout(geometry), writes.includes(i) && "written",
      twin < i && `shares storage with ${names?.[twin] || `input ${twin}`}`,
    ].filter(Boolean).join(", ");
    return [names?.[i] || `input ${i}`, link_tensor(context, id, geometry),
      name_owned(context, module, storage), whisper(words)];
  });
  return [...tensors, ...split_arguments(args).map(([name, value]) =>
    [name, make("code", {}, value)])];
}

/** The notes on an operator, from columns of the tables. */
function list_notes(/** @type {DetailContext} */ { trace }, values) {
  const names = [...Object.keys(trace.no_notes), "place"];
  return names.map((name) => [name === "place" ? "device" : name, values[name]]);
}

/** The cost of an operator. */
function list_cost(/** @type {Record<string, any>} */ { flops, nbytes_read = 0, nbytes_written = 0 }) {
  const nbytes = nbytes_read + nbytes_written;
  return [
    ["FLOPs", flops === "" ? "no formula" : format_flops(flops)],
    ["read", format_bytes(nbytes_read)], ["written", format_bytes(nbytes_written)],
    flops > 0 && nbytes > 0 && ["intensity", `${FORMATS.number(flops / nbytes)} FLOPs a byte`],
  ];
}

/**
 * @param {DetailContext} context @param {number} index
 * @returns {import("./parts.js").DetailPage}
 */
export function describe_operator(context, index) {
  const { trace, go } = context;
  const op = trace.op(index);
  const { site, outputs, module, forward } = op;
  const text = read_expression(trace, site);
  const gradients = [...trace.op_forward.keys()].filter((i) => trace.op_forward[i] === index);
  const words = [`operator ${index}`, site.function.split(".").at(-1), PHASES[site.phase]];
  const rows = (some) => /** @type {any} */ (some);
  const drawn = make_call(trace, index, name_operands(trace, op, text));
  return {
    kind: "operator", title: shorten_op(op.signature.op),
    under: [make("span", { title: `${site.function}: ${op.signature.op}` }, words.filter(Boolean).join(" · "))],
    sections: [
      make_section("Asked for", [
        ["by", text && make_link(go, { kind: site.line ? "line" : "op", index: site.line || index }, text)],
        ["at", site.line > 0 && link_line(context, site.line),
          site.file && whisper(name_file(site.file, site.start))],
        ["module", module >= 0 && link_module(context, module)],
        ["gradient of", forward >= 0 && link_op(context, forward)],
        ["gradient by", gradients.length > 0 && list_links(gradients, (i) => link_op(context, i))],
      ]),
      make_section("Notes", rows(list_notes(context, read_op(trace, index)))),
      make_section("Inputs", rows(link_inputs(context, op))),
      make_section("Outputs", rows(outputs.map(({ geometry, ...tensor }, i) => [`${i}`,
        link_tensor(context, tensor.id, geometry),
        whisper([describe_layout(geometry), describe_alias(op, tensor, i)].filter(Boolean).join(", "))]))),
      drawn && make("div", {}, make("div", { class: "mm-caption" }, "What it does"), draw_picture(drawn)),
      make_section("Cost", rows(list_cost(read_op(trace, index)))),
    ],
  };
}
