// The nets between the items of one box. Touches no document.

export const FEW_SOURCES = 3; // tensors of one kind, each shown alone

/**
 * @typedef {import("./values.js").Value} Value
 * @typedef {{kind: "flow" | "saved" | "parameter", from: number, to: number[],
 *   is_out: boolean, values: Value[], name: string}} Net
 *   values from one item that the same items read, by position; `from`: -1 if from outside
 *   the box. All but "flow" are shown next to their readers, without lines to them
 */

/** Join nets with the same ends, but not the few sources of one reader. */
export function merge_nets(nets) {
  const groups = new Map();
  for (const net of nets) {
    const key = `${net.kind}:${net.from}>${net.to}>${net.is_out}`;
    groups.set(key, [...(groups.get(key) ?? []), net]);
  }
  return [...groups.values()].flatMap((group) => {
    if (group[0].kind !== "flow" && group.length <= FEW_SOURCES) return group;
    return { ...group[0], values: group.flatMap((net) => net.values) };
  });
}
