// The family of a box, which gives it its colour: an embedding, a norm, a loss.
// Touches no document.

import { PHASES } from "../data.js";

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {{name: string, classes?: RegExp, ops?: RegExp, has_parts?: boolean}} Family
 *   `classes`: of modules without others in them, and with `has_parts` of all modules; `ops`: one of
 *   them in a box is enough, if none of an earlier family is there
 */

/** In the order in which they are looked for. @type {Family[]} */
const FAMILIES = [
  { name: "loss", has_parts: true, classes: /loss/i, ops: /loss|cross_entropy/ },
  { name: "embedding", has_parts: true, classes: /embed/i, ops: /embedding/ },
  { name: "attention", has_parts: true, classes: /attention|attn/i, ops: /attention/ },
  { name: "norm", classes: /norm/i, ops: /norm/ },
  { name: "recurrent", has_parts: true, classes: /lstm|gru|rnn|mamba|ssm/i, ops: /lstm|gru|rnn/ },
  { name: "convolution", ops: /conv/ },
  { name: "linear", ops: /\b(linear|matmul|einsum|(add|badd)?b?mm|(add)?mv|v?dot)\b/ },
  { name: "pooling", classes: /pool|upsample/i, ops: /pool|upsample|interpolate/ },
  {
    name: "activation", classes: /activation|softm|swish/i,
    ops: /[rgcs]elu|\belu|silu|mish|[^c]glu|hardswish|sigmoid|tanh|softmax|softplus|softmin|threshold/,
  },
  {
    name: "reshape", classes: /flatten|shuffle/i,
    ops: /view|reshape|permute|transpose|\bm?t\b|flatten|squeeze|expand|cat\b|stack|split|chunk|getitem|select|slice|narrow|pad|contiguous|clone|repeat|roll|unfold|unbind|movedim/,
  },
];

/** A box with only one of them has its colour, whatever else is in it. */
const MAIN = ["embedding", "attention", "linear", "convolution", "recurrent", "container"];

/** As the legend has them. */
export const FAMILY_NAMES = ["input, output", ...FAMILIES.slice(1).map(({ name }) => name), "loss", "container"];

/** The class of a family in CSS. @param {string} family */
export const classify_family = (family) => (family ? `mm-family-${family.split(",")[0]}` : "");

/** The family of an item; "" for what is of none. @param {import("./boxes.js").Boxes} boxes @param {Item} item @returns {string} */
export function find_family(boxes, item) {
  item.family ??= find_own_family(boxes, item);
  return item.family;
}

/** By the name of an operator or function. @type {Map<string, string>} */
const families_of_ops = new Map();

/** @param {string} name @returns {string} */
function find_by_name(name) {
  if (!families_of_ops.has(name)) families_of_ops.set(name, FAMILIES.find(({ ops }) => ops.test(name))?.name ?? "");
  return families_of_ops.get(name);
}

const has_modules = (/** @type {Item} */ { kind, items }) => kind === "module" || kind !== "op" && items.some(has_modules);

/** @param {import("./boxes.js").Boxes} boxes @param {Item} item @returns {string} */
function find_own_family(boxes, item) {
  const { trace, values } = boxes;
  const { kind, items, module } = item;
  const has_parts = items.some(has_modules);
  const class_name = kind === "module" ? trace.modules[module].class_name : "";
  const named = class_name && FAMILIES.find(({ classes, has_parts: is_any }) =>
    classes?.test(class_name) && (is_any || !has_parts));
  if (named) return named.name;
  if (has_parts || ["run", "turn", "part"].includes(kind)) {
    const families = [...new Set(items.map((inner) => find_family(boxes, inner)))];
    const mains = families.length > 1 ? families.filter((family) => MAIN.includes(family)) : families;
    return mains.length === 1 && mains[0] || "container";
  }
  const ops = list_own_ops(item);
  const texts = [...new Set(ops.map(({ op }) => trace.signature(op).op)), item.title];
  const is_source = kind !== "module" && PHASES[trace.site(item.last_op).phase] !== "optimizer"
    && ops.every(({ op }) => !values.reads[op].length);
  if (is_source) return "input, output";
  const found = new Set(texts.map(find_by_name));
  return FAMILIES.find(({ name }) => found.has(name))?.name ?? "";
}

const list_own_ops = (/** @type {Item} */ item) => (item.kind === "op" ? [item] : item.items.flatMap(list_own_ops));
