// Details of a module: settings, parameters, cost and source.

import { format_bytes, format_count, format_flops, format_share, format_shape, make, shorten_dtype } from "../dom.js";
import { describe_held } from "../tables/parameters.js";
import { list_tensors } from "../tables/rows.js";
import { link_line, link_module, list_links, make_link, make_section, name_file, whisper } from "./parts.js";

/**
 * @typedef {import("./parts.js").DetailContext} DetailContext
 * @typedef {import("../data.js").Module} Module
 */

const FIRST_CALLS = 4; // that are shown

/**
 * Split settings at their commas, but for those in brackets.
 * @param {string} text @returns {[string, string][]} names, "" for what has none, and values
 */
export function split_settings(text) {
  if (text.includes("\n")) return [["", text]];
  const parts = [""];
  let depth = 0;
  for (const char of text) {
    depth += Number("([{".includes(char)) - Number(")]}".includes(char));
    if (char === "," && !depth) parts.push("");
    else parts[parts.length - 1] += char;
  }
  const pairs = parts.map((part) => part.trim().match(/^(?:(\w+)\s*=\s*)?(.*)$/));
  const plain = pairs.filter(([, name]) => !name).map(([, , value]) => value).join(", ");
  const named = pairs.filter(([, name]) => name);
  /** @type {[string, string][]} */
  const rows = named.map(([, name, value]) => [name, value]);
  return plain ? [["", plain], ...rows] : rows;
}

/** The name of a class, leading to torch's page of it. @param {DetailContext} context */
function make_class({ trace: { details } }, /** @type {Module} */ { index, class_name }) {
  const { docs, path } = details.definitions[details.definition_of[index]] ?? {};
  if (!docs) return make("span", { title: path ?? "" }, class_name);
  const page = { href: docs, target: "_blank", rel: "noopener", title: "In torch's documentation" };
  return make("a", page, `${docs.split("/").at(-1).slice(0, -".html".length)} ↗`);
}

function link_tensors(/** @type {DetailContext} */ { go }, /** @type {Module} */ { first_tensor, tensors }) {
  return tensors.map((tensor, i) => {
    const { name, shape, dtype, nbytes } = tensor;
    const link = make_link(go, { kind: "parameter", index: first_tensor + i },
      `${format_shape(shape)} ${shorten_dtype(dtype)}`);
    return /** @type {const} */ ([name, link,
      whisper(`${format_bytes(nbytes)} · ${describe_held(tensor)}`)]);
  });
}

function link_calls(/** @type {DetailContext} */ { trace, go }, /** @type {number} */ module) {
  const calls = trace.calls.filter((call) => call.module === module);
  const rows = calls.slice(0, FIRST_CALLS).map(({ inputs, outputs, first_op, end_op, line }, i) => {
    const [taken, made] = [inputs, outputs].map((side) =>
      list_tensors(side.map(({ geometry }) => geometry)) || "nothing");
    const flow = `${taken} → ${made}`;
    return [`${i + 1}`, end_op > first_op
      ? make_link(go, { kind: "op", index: first_op }, flow, `operators ${first_op} to ${end_op - 1}`)
      : flow, line ? whisper(`line ${line}`) : ""];
  });
  const n_more = calls.length - rows.length;
  return n_more > 0 ? [...rows, ["…", `${n_more.toLocaleString("en")} more`]] : rows;
}

/**
 * @param {DetailContext} context @param {number} index
 * @returns {import("./parts.js").DetailPage}
 */
export function describe_module(context, index) {
  const { trace } = context;
  const module = trace.modules[index];
  const { details: { definitions, definition_of } } = trace;
  const { file, line } = definitions[definition_of[index]] ?? {};
  const { fqn, name, kind, parent, children, n_params, nbytes, flops, n_ops, n_calls } = module;
  const all = trace.roots.reduce((sum, root) => sum + trace.modules[root].flops, 0);
  const call = trace.calls[module.first_call];
  return {
    kind: "module", title: fqn || name || "(root)", under: [make_class(context, module)],
    sections: [
      make_section("Settings", split_settings(trace.settings(index)[0]).map(([term, value]) =>
        [term, make("code", {}, value)])),
      make_section("Tensors", /** @type {any} */ (link_tensors(context, module))),
      make_section(children.length ? "Cost, with all it holds" : "Cost", [
        ["parameters", n_params ? `${format_count(n_params)}` : "none",
          n_params >= 1000 && whisper(n_params.toLocaleString("en"))],
        ["bytes", nbytes && format_bytes(nbytes)],
        ["FLOPs", flops && format_flops(flops),
          flops > 0 && whisper(`${format_share(flops / all)} of all modules`)],
        ["operators", n_ops && n_ops.toLocaleString("en")],
        ["calls", n_calls ? n_calls.toLocaleString("en") : kind ? `not itself, it holds ${kind}` : "none"],
      ]),
      make_section("Calls", /** @type {any} */ (link_calls(context, index))),
      make_section("Position", [
        kind && ["holds", kind],
        ["in", parent >= 0 && link_module(context, parent)],
        ["modules", children.length > 0 && list_links(children, (i) => link_module(context, i))],
        ["same as", module.shared_with >= 0 && link_module(context, module.shared_with)],
        ["called at", call?.line > 0 && link_line(context, call.line)],
        ["forward", file && make("span", { title: file }, name_file(file, line))],
        ["device", module.place],
      ]),
    ],
  };
}
