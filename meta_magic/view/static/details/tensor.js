// Details of a tensor or parameter: the operators that make, read, write and free it.

import { format_bytes, format_shape, make } from "../dom.js";
import { name_values } from "./lineage.js";
import { describe_held } from "../tables/parameters.js";
import { describe_layout, link_module, link_op, link_sizes, link_tensor, list_links, make_link, make_section, whisper } from "./parts.js";

/**
 * @typedef {import("./parts.js").DetailContext} DetailContext
 * @typedef {import("./parts.js").DetailPage} DetailPage
 */

/** The geometry of a tensor, as rows. @param {DetailContext} context @param {number} id @param {import("../data.js").Geometry} geometry */
const list_geometry = (context, id, geometry) => [
  ["shape", link_sizes(context, id, geometry.shape)], ["dtype", geometry.dtype],
  ["layout", describe_layout(geometry)], ["bytes", format_bytes(geometry.nbytes)],
  ["device", geometry.place ? `${geometry.device}, for ${geometry.place}` : geometry.device],
];

/** The row that says when a storage was freed. @param {DetailContext} context @param {number} freed */
const describe_death = (context, freed) =>
  ["freed after", freed >= 0 ? link_op(context, freed) : "not freed: it lives on"];

/** Links to operators. @param {DetailContext} context @param {number[]} ops */
const link_ops = (context, ops) =>
  ops.length > 0 && list_links(ops, (op) => link_op(context, op));

/** @param {DetailContext} context @param {number} id @param {number} [dim] whose size is explained @returns {DetailPage} */
export function describe_tensor(context, id, dim) {
  const { lineage, go } = context;
  const { storage, geometry, maker, base, readers, writers, views, freed } = lineage.tensor(id);
  const owned = lineage.find_owned(storage);
  const link = (other) => link_tensor(context, other, lineage.tensor(other).geometry);
  const rows = (some) => /** @type {any} */ (some);
  return {
    kind: "tensor", title: `${format_shape(geometry.shape)} ${geometry.dtype}`,
    under: [`tensor ${id} on storage ${storage}`],
    sections: [
      dim >= 0 && make("div", {}, make("div", { class: "mm-caption" }, `Why ${geometry.shape[dim]}, dimension ${dim}`),
        context.whys.explain(id, dim)),
      make_section("Tensor", rows(list_geometry(context, id, geometry))),
      make_section("Life", rows([
        ["parameter", owned >= 0
          && make_link(go, { kind: "parameter", index: owned }, lineage.owned(owned).fqn)],
        ["made by", maker >= 0 ? link_op(context, maker) : "nothing here: it came from outside"],
        ["view of", base >= 0 && link(base)],
        ["read by", link_ops(context, readers) || (views.length ? "nothing but its views" : "nothing")],
        ["written by", link_ops(context, writers)],
        ["views", views.length > 0 && list_links(views, link)],
        describe_death(context, freed),
      ])),
      context.make_values(lineage.find_slot(storage, (tensor) => tensor.id === id), geometry.shape),
    ],
  };
}

/** The tensors of an operator, as slots number them. @param {import("../data.js").Operator} op */
const list_seen = ({ inputs, outputs }) => [...inputs, ...outputs];

/** The operators that made the first values of a parameter. @param {DetailContext} context */
function describe_initial(context, { storage, tensor: { is_real, is_lazy } }) {
  const { trace, lineage } = context;
  if (is_lazy) return ["none yet"];
  const made = lineage.find_initial(storage);
  if (!made.length) return [is_real ? "real, from outside" : "made before this cell"];
  return made.flatMap((op, i) => [i ? ", then " : "",
    make_link(context.go, { kind: "op", index: op.index }, name_values(trace, op), `operator ${op.index}`)]);
}

/** @param {DetailContext} context @param {number} index @returns {DetailPage} */
export function describe_parameter(context, index) {
  const { lineage } = context;
  const owned = lineage.owned(index);
  const { tensor, module, storage, fqn } = owned;
  const { readers, writers, tensors, freed } = lineage.storage(storage);
  const { shape, dtype, numel, nbytes, kind, place, name } = tensor;
  const is_it = ({ geometry }) => geometry.dtype === dtype
    && format_shape(geometry.shape) === format_shape(shape);
  const slot = storage >= 0 && lineage.find_slot(storage, is_it);
  const seen = slot && list_seen(context.trace.op(slot.op))[slot.slot];
  const rows = (some) => /** @type {any} */ (some);
  return {
    kind, title: fqn, under: [`${name} of `, link_module(context, module)],
    sections: [
      make_section("Tensor", rows([
        ["shape", seen ? link_sizes(context, seen.id, shape) : format_shape(shape)], ["dtype", dtype],
        ["elements", numel.toLocaleString("en")], ["bytes", format_bytes(nbytes)],
        ["state", describe_held(tensor)], ["device", place && `for ${place}`],
        ["first values", ...describe_initial(context, owned)],
      ])),
      storage >= 0 && make_section("Life", rows([
        ["read by", link_ops(context, readers) || "nothing"],
        ["written by", link_ops(context, writers)],
        ["aliases", tensors.length > 0 && list_links(tensors, (id) =>
          link_tensor(context, id, lineage.tensor(id).geometry)), whisper(`on storage ${storage}`)],
        freed >= 0 && describe_death(context, freed),
      ])),
      context.make_values(slot || null, shape),
    ],
  };
}
