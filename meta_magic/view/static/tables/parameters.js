// Parameters, buffers and attributes as rows below their module, closed at first. Touches no
// document.

import { format_shape, shorten_dtype } from "../dom.js";

/** @typedef {import("../data.js").TraceView} TraceView */

/**
 * The rows of what a module holds itself: below other modules one row for all.
 * @param {TraceView} trace @param {number} index
 * @returns {{modules: number[], tensors: number[]}[]}
 */
export function list_held(trace, index) {
  const { first_tensor, tensors, children } = trace.modules[index];
  const numbers = tensors.map((_, i) => first_tensor + i);
  if (children.length && numbers.length) return [{ modules: [index], tensors: numbers }];
  return split_held({ modules: [index], tensors: numbers });
}

/** A row for each. @param {{modules: number[], tensors: number[]}} row */
export const split_held = ({ modules, tensors }) =>
  tensors.map((number) => ({ modules, tensors: [number] }));

/** The kind and marks of a module's tensor. @param {import("../data.js").OwnTensor} tensor */
export const describe_held = ({
  kind, requires_grad, is_persistent, is_lazy, is_real, tied_to, sharding,
}) => [
  kind === "parameter" ? requires_grad ? "trainable" : "frozen" : kind,
  kind === "buffer" && !is_persistent && "not persistent", is_lazy && "lazy",
  is_real && !is_lazy && "real", tied_to && `tied to ${tied_to}`,
  sharding,
].filter(Boolean).join(" · ");

/**
 * What is shown of one tensor, or of all that a module holds itself.
 * @param {TraceView} trace @param {{modules: number[], tensors: number[]}} row
 */
export function read_held_row(trace, { modules: [index], tensors: numbers }) {
  const { first_tensor, tensors } = trace.modules[index];
  const held = numbers.map((number) => tensors[number - first_tensor]);
  const [{ name, shape, dtype, place }] = held;
  const add_up = (read) => held.reduce((sum, tensor) => sum + read(tensor), 0);
  const is_group = held.length > 1;
  const values = {
    name: is_group ? held.map((tensor) => tensor.name).join(", ") : name,
    class: is_group ? `${held.length} tensors of its own` : `${format_shape(shape)} ${shorten_dtype(dtype)}`,
    parameters: add_up(({ kind, numel, tied_to }) => (kind === "parameter" && !tied_to ? numel : 0)),
    bytes: add_up(({ nbytes, tied_to }) => (tied_to ? 0 : nbytes)),
    place: place ?? "", marks: is_group ? "" : describe_held(held[0]),
  };
  return Object.fromEntries(trace.columns.modules.map((column) =>
    [column.name, values[column.name] ?? ""]));
}
