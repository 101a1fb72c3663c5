"""Rules about layers of sequences: steps and samples, their ends, and masks.

Each yields mistakes on the calls of a ``Flow``; ``mistakes`` says how sure each is.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Final

from meta_magic.cost.wrong.axes import size_of
from meta_magic.cost.wrong.flow import (
    Flow,
    Mistake,
    is_dropout,
    is_view,
    name_set,
)
from meta_magic.cost.wrong.losses import LOSSES
from meta_magic.cost.wrong.read_calls import ReadCall
from meta_magic.cost.wrong.shapes import atoms_of
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall

RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
SEQUENTIAL: Final = RECURRENT | {"MultiheadAttention"}
HIDDEN: Final = -1e4
"""Scores up to this are of steps that attention does not see."""

HANDING: Final = name_set(
    "embedding mm addmm add log_softmax relu tanh native_dropout mul div "
    "native_layer_norm view unsafe_view transpose t permute clone alias detach "
    "squeeze unsqueeze slice"
)
"""Operators that compute each row of their result from one row of an operand."""


def list_layers(
    flow: Flow, names: frozenset[str] = SEQUENTIAL
) -> "Iterator[tuple[ModuleCall, str, bool]]":
    """Yield the calls of layers of sequences, their names, and ``batch_first``."""
    classes = {name.rpartition(".")[2] for _, _, name in flow.program.modules}
    for layer in () if classes.isdisjoint(names) else flow.module_calls:
        name = layer.class_name.rpartition(".")[2]
        is_batched = layer.inputs and len(layer.inputs[0][1].shape) == 3
        if name in names and is_batched and layer.outputs:
            node = flow.nodes.get((layer.root or 0, layer.module or ""))
            if node is not None and layer.root is not None:
                yield layer, name, "batch_first=True" in node.settings


def find_mixed_samples(flow: Flow) -> Iterator[Mistake]:
    """Yield layers whose steps are the samples of the loss, or of a table of steps."""
    losses = [call.axes[0] for call in flow.named(LOSSES) if call.axes[0]]
    adds = flow.named(("add",), is_own=True)
    sums = [call for call in adds if is_table(flow, call)]
    for layer, name, first in list_layers(flow):
        axes = flow.axes.of.get(layer.inputs[0][1].tensor_id, ())
        if len(axes) != 3 or not axes[0] or not axes[1]:
            continue
        steps, batch = (axes[1], axes[0]) if first else (axes[0], axes[1])
        for rows in losses:
            if rows[0] == steps and not {*batch} & atoms_of(*rows):
                call = flow.calls[layer.first_op]
                yield Mistake(
                    call,
                    f"{name} takes the {size_of(steps)} samples of the loss for steps "
                    f"of one sequence: it has batch_first={first}",
                    f"the {size_of(batch)} others are gone before the loss",
                    line=layer.line,
                )
        for call in sums:
            if call.axes[0][:2] == (batch, steps):
                yield Mistake(
                    call,
                    f"adds a row of a table to each of {size_of(batch)} samples, not "
                    f"to each of {size_of(steps)} steps: cut dimension 1 of the table",
                    f"{name} (line {layer.line}) has batch_first={first}",
                )


def is_table(flow: Flow, call: ReadCall) -> bool:
    """Whether the second operand is the first rows, ``(n, 1, d)``, of a tensor."""
    cut = flow.maker(call, 1)
    if cut is None or cut.name != "slice" or len(cut.made_shapes[0]) != 3:
        return False
    n_rows, size, _ = cut.made_shapes[0]
    return size == 1 < n_rows < cut.shapes[0][0]


def find_last_samples(flow: Flow) -> Iterator[Mistake]:
    """Yield where the last sample of a recurrent layer is taken for its last step."""
    made: dict[int, tuple[int, str, bool]] = {}
    for layer, name, first in list_layers(flow, RECURRENT):
        made[layer.outputs[0][1].tensor_id] = (0 if first else 1, name, first)
    for call in flow.named(("select",), is_own=True) if made else ():
        known = made.get(find_passed(flow, call))
        if known is None:
            continue
        (dim, name, first), shape = known, call.shapes[0]
        n, index = shape[dim], call.arguments["index"]
        if call.arguments["dim"] % len(shape) == dim and n > 1 and index in {-1, n - 1}:
            yield Mistake(
                call,
                f"takes the last of {n} samples, not of {shape[1 - dim]} steps: {name} "
                f"has batch_first={first}",
                f"its result {format_shape(shape)} has the batch as dimension {dim}",
            )


def find_inverted_padding(flow: Flow) -> Iterator[Mistake]:
    """Yield masks that hide all tokens but the padding."""
    tokens = dict[int, int]()  # by tensor, the number of padding
    for call in flow.named(("embedding",)) if "ne" in flow.calls.names else ():
        if call.shapes[1]:
            tokens[find_passed(flow, call, 1)] = call.arguments.get("padding_idx", 0)
    for call in flow.named(("masked_fill", "masked_fill_")) if tokens else ():
        value = call.arguments.get("value")
        if not isinstance(value, (int, float)) or value > HIDDEN:
            continue
        mask = flow.origin(call, 1, is_view)
        if mask is None or mask.name != "ne" or not mask.is_own:
            continue
        if mask.arguments.get("other") == tokens.get(find_passed(flow, mask)):
            yield Mistake(
                mask,
                "this mask is true at tokens, and attention hides where it is true: "
                f"write == {mask.arguments['other']} for the padding",
                f"{call.label} fills with {value} (line {call.line})",
                (call,),
            )
            return


def find_padded_steps(flow: Flow) -> Iterator[Mistake]:
    """Yield where the last step of padded sequences is taken: zeros of short ones."""
    padded: dict[int, int] = {}  # by tensor, which dimension is time
    sites = [site.function or "" for site in flow.program.call_sites]
    is_padded = any(name.endswith("pad_packed_sequence") for name in sites)
    for call in flow.named(("full", "transpose")) if is_padded else ():
        if call.function.endswith("pad_packed_sequence"):
            padded[call.outputs[0]] = int(call.name == "transpose")
    for call in flow.named(("select",), is_own=True) if padded else ():
        time, shape = padded.get(find_passed(flow, call)), call.shapes[0]
        if time == call.arguments["dim"] and call.arguments["index"] == -1:
            yield Mistake(
                call,
                f"takes the last of {shape[call.arguments['dim']]} steps of padded "
                "sequences: it is zero in all that are shorter; the second result of "
                "the layer has the last states",
                "pad_packed_sequence fills up the end of each sequence",
            )


def find_causal_masks(flow: Flow) -> Iterator[Mistake]:
    """Yield softmaxes whose mask of past steps is a factor, or the wrong way round."""
    for call in flow.named(("softmax",), is_own=True):
        made = flow.origin(call, 0, is_view)
        if made is None or made.name not in {"mul", "masked_fill"}:
            continue
        mask = flow.origin(made, 1, is_view) if len(made.inputs) > 1 else None
        if mask is None or mask.name not in {"tril", "triu"} or not made.is_own:
            continue
        ones = flow.maker(mask, 0)
        diagonal = mask.arguments.get("diagonal", 0)
        has_diagonal = diagonal >= 0 if mask.name == "tril" else diagonal <= 0
        if ones is None or ones.name not in {"ones", "full"} or not has_diagonal:
            continue
        what = "multiplies scores by a mask: exp(0) is 1, so that nothing is masked"
        if made.name == "masked_fill":
            what = (
                "fills what the mask keeps, and in one row all of it: invert the mask"
            )
        yield Mistake(
            made,
            f"{made.label} before softmax {what}",
            f"{mask.label} makes ones where a step may look (line {mask.line})",
            (mask, call),
        )


def find_passed(flow: Flow, call: ReadCall, operand: int = 0) -> int:
    """Return the tensor that a call selects from, before calls that keep all of it."""
    made, tensor = flow.maker(call, operand), call.inputs[operand]
    while made is not None and made.inputs and made.shapes[0] == made.made_shapes[0]:
        if not (is_view(made) or is_dropout(made)) or made.name in {"t", "transpose"}:
            break
        tensor = made.inputs[0]
        made = flow.maker(made, 0)
    return tensor


def find_copied_labels(flow: Flow) -> Iterator[Mistake]:
    """Yield losses whose targets are what a recurrent layer reads, step by step."""
    layers = {
        layer.outputs[0][1].tensor_id: layer
        for layer, _, _ in list_layers(flow, RECURRENT)
    }
    for loss in flow.named(("nll_loss_forward",)) if layers else ():
        call, at, layer = loss, 0, None
        while call.name != "embedding":
            found = layers.get(call.inputs[at])
            made = flow.maker(call, at)
            if found is not None:
                layer, made = found, find_reader(flow, found)
            if made is None or not (found or made.name in HANDING):
                break
            call, at = made, int(made.name in {"addmm", "embedding"})
        if layer is None or call.name != "embedding":
            continue
        if describe_source(flow, call, 1) == describe_source(flow, loss, 1):
            yield Mistake(
                loss,
                f"the targets are the inputs of {layer.class_name}: each step is to "
                "return what it is given; shift the targets by one step",
                f"{layer.class_name} (line {layer.line}) reads the same elements",
                tuple(m for m in (flow.maker(loss, 1), call) if m is not None),
            )


def find_reader(flow: Flow, layer: "ModuleCall") -> ReadCall | None:
    """Return the first call within a layer that reads its input; None for none."""
    tensor = layer.inputs[0][1].tensor_id
    rows = (row for row in flow.read_by[tensor] if layer.first_op <= row < layer.end_op)
    row = next(rows, None)
    return None if row is None else flow.calls[row]


def describe_source(flow: Flow, call: ReadCall, operand: int) -> object:
    """Return from what an operand was selected and joined, equal for equal elements."""
    made = flow.maker(call, operand)
    if made is None or not made.inputs:
        return call.inputs[operand]
    if prod(made.shapes[0]) == prod(made.made_shapes[0]) and is_view(made):
        return describe_source(flow, made, 0)
    if made.name in {"slice", "select", "stack", "cat"}:
        parts = [describe_source(flow, made, k) for k in range(len(made.inputs))]
        return (made.name, [*made.arguments.items()], parts)
    return made.outputs[0]


def find_one_key(flow: Flow) -> Iterator[Mistake]:
    """Yield lines where each attention has one key: it returns its values."""
    seen: dict[tuple[object, str], list[tuple[int, ReadCall]]] = defaultdict(list)
    names = {name for name in flow.calls.names if "scaled_dot_product" in name}
    for call in flow.named(names, is_own=True):
        if len(call.inputs) > 1 and "backward" not in call.name:
            seen[call.site, call.label].append((call.shapes[1][-2], call))
    for found in seen.values():
        call = found[0][1]
        batch = prod(call.shapes[0][:1])
        if batch > 1 and all(size == 1 for size, _ in found):
            yield Mistake(
                call,
                f"attention over a sequence of one, in a batch of {batch}: it returns "
                "its values, whatever the query is",
                f"keys {format_shape(call.shapes[1])}; are batch and sequence in the "
                "order that batch_first says?",
            )
