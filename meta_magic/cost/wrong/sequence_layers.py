"""Rules about layers of sequences: steps and samples, their ends, and masks.

Each yields mistakes on the calls of a ``Flow``; ``mistakes`` says how sure each is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Final

from meta_magic.cost.wrong.axes import size_of
from meta_magic.cost.wrong.flow import (
    Flow,
    Mistake,
    is_dropout,
    is_view,
    last_part,
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
    "embedding mm addmm bmm add log_softmax relu gelu silu tanh native_dropout mul div "
    "native_layer_norm view unsafe_view transpose t permute clone alias detach "
    "squeeze unsqueeze slice to_copy expand"
)
"""Operators that compute each row of their result from one row of an operand."""

LABELING: Final = name_set("masked_fill masked_fill_ index_put_ constant_pad_nd")
"""Operators that leave most of the targets as they are."""

FILLING: Final = ("masked_fill", "masked_fill_")
CELLS: Final = frozenset({"LSTMCell", "GRUCell", "RNNCell"})


def list_layers(
    flow: Flow, names: frozenset[str] = SEQUENTIAL
) -> "Iterator[tuple[ModuleCall, str, bool]]":
    """Yield the calls of layers of sequences, their names, and ``batch_first``."""
    for layer in flow.find_layers(names):
        name = last_part(layer.class_name)
        is_batched = layer.inputs and len(layer.inputs[0][1].shape) == 3
        if is_batched and layer.outputs:
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
    """Yield masks of past steps that are a factor, or the wrong way round."""
    is_drawn = {"tril", "triu"}.isdisjoint(flow.calls.names)
    for call in () if is_drawn else flow.named((*FILLING, "mul")):
        is_fill = call.name != "mul"
        value = call.arguments.get("value")
        if is_fill and not (isinstance(value, (int, float)) and value <= HIDDEN):
            continue
        mask = find_triangle(flow, call)
        if mask is None or not (call.is_own or mask.is_own):
            continue
        what = "fills what the mask keeps, and in one row all of it: invert the mask"
        if not is_fill:
            given = flow.origin(call, 0, lambda c: is_view(c) or is_dropout(c))
            readers = [flow.calls[row] for row in flow.read_by[call.outputs[0]]]
            is_after = given is not None and given.name == "softmax"
            if is_after and not {"sum", "linalg_vector_norm"} & {
                c.name for c in readers
            }:
                what = (
                    "masks weights that add up to one with what it hides: mask scores"
                )
            elif "softmax" in {c.name for c in readers}:
                what = "multiplies scores by a mask: exp(0) is 1, and nothing is masked"
            else:
                continue
        yield Mistake(
            call if call.is_own else mask,
            f"{call.label} {what}",
            f"{mask.label} makes ones where a step may look (line {mask.line})",
            (mask,),
        )


def find_triangle(flow: Flow, call: ReadCall) -> ReadCall | None:
    """Return what makes a mask of ones at each step and all before it, or after it."""
    mask = flow.maker(call, 1)  # it may be made when the module is
    while mask is not None and mask.inputs and is_view(mask):
        mask = flow.maker(mask, 0)
    if mask is None or mask.name not in {"tril", "triu"}:
        return None
    ones, diagonal = flow.maker(mask, 0), mask.arguments.get("diagonal", 0)
    has_diagonal = diagonal >= 0 if mask.name == "tril" else diagonal <= 0
    is_ones = ones is not None and ones.name in {"ones", "full"}
    return mask if is_ones and has_diagonal else None


def find_cut_masks(flow: Flow) -> Iterator[Mistake]:
    """Yield causal attention whose queries are fewer than its keys, as with a cache."""
    names = {name for name in flow.calls.names if "scaled_dot_product" in name}
    for call in flow.named(names, is_own=True):
        n_queries, n_keys = (shape[-2] for shape in call.shapes[:2])
        if call.arguments.get("is_causal") and n_queries < n_keys:
            yield Mistake(
                call,
                f"is_causal counts from the first key: {n_queries} queries see the "
                f"first {n_queries} of {n_keys} keys; the last ones need a mask, and "
                "one query none",
                "torch aligns the mask at its upper left corner",
            )


def find_lost_states(flow: Flow) -> Iterator[Mistake]:
    """Yield cells that are called step by step, and never get their own state."""
    by_line: dict[object, list[ModuleCall]] = defaultdict(list)
    for layer in flow.find_layers(CELLS):
        by_line[layer.root, layer.module, layer.parent, layer.line].append(layer)
    for layers in by_line.values():
        is_fresh = all(len({path[0] for path, _ in one.inputs}) == 1 for one in layers)
        given = {one.inputs[0][1].tensor_id for one in layers if one.inputs}
        if is_fresh and len(given) > 1:
            name = last_part(layers[0].class_name)
            yield Mistake(
                flow.calls[layers[0].first_op],
                f"{name} begins each of {len(given)} steps with a state of zeros: give "
                "it the state that it returned",
                "its second argument is missing in each call of this line",
                line=layers[0].line,
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
    """Yield losses of each step whose targets are its own input, or two steps later."""
    if "embedding" not in flow.calls.names:
        return
    layers = {
        layer.outputs[0][1].tensor_id: layer
        for layer, _, _ in list_layers(flow, RECURRENT)
    }
    is_causal = not {"tril", "triu"}.isdisjoint(flow.calls.names) or any(
        dict(one.arguments).get("is_causal") for one in flow.program.signatures
    )
    names = ("nll_loss_forward", "gather") if layers or is_causal else ()
    for loss in flow.named(names):
        soft = flow.origin(loss, 0, is_view) if loss.name == "gather" else None
        if loss.name == "gather" and (soft is None or soft.name != "log_softmax"):
            continue
        read = find_read_tokens(flow, loss, layers)
        if read is None or not (is_causal or read[1]):
            continue
        call, _, start = read
        given, at = find_elements(flow, call, 1)
        wanted, to = find_elements(flow, loss, 1, LABELING)
        shift = to - start - at
        if given != wanted or shift not in {0, 2} or (shift and loss.is_own):
            continue
        text = (
            "the targets are what the model reads: each step is to return what it is "
            "given; shift the targets by one step"
        )
        if shift:
            text = (
                "the targets are shifted twice, as the loss of this model shifts them, "
                "too: give it the same tokens as inputs and as labels"
            )
        made = (flow.maker(loss, 1), call)
        yield Mistake(
            loss,
            text,
            f"the tokens are read at line {call.line}",
            tuple(m for m in made if m is not None),
        )


def find_read_tokens(
    flow: Flow, loss: ReadCall, layers: "Mapping[int, ModuleCall]"
) -> "tuple[ReadCall, bool, int] | None":
    """Return the embedding from whose rows a loss's rows are computed, one from one.

    Also whether a recurrent layer is between them, and how many first steps are cut.
    """
    call, at, is_recurrent, start = loss, 0, False, 0
    while call.name != "embedding":
        layer = layers.get(call.inputs[at])
        made = flow.maker(call, at)
        if layer is not None:
            is_recurrent, made = True, find_reader(flow, layer)
        if made is None or not made.inputs or not (layer or is_handing(made)):
            return None
        if made.name == "slice" and made.arguments["dim"] % len(made.shapes[0]) == 1:
            start += made.arguments.get("start") or 0
        call, at = made, find_step_operand(flow, made)
    return call, is_recurrent, start


def is_handing(call: ReadCall) -> bool:
    """Whether each row of a result is computed of one row of an operand."""
    return call.name in HANDING or "scaled_dot_product" in call.name


def find_step_operand(flow: Flow, call: ReadCall) -> int:
    """Return the operand of a call whose rows are the steps."""
    if "scaled_dot_product" in call.name:
        return 2
    if call.name in {"addmm", "embedding"}:
        return 1
    made = flow.origin(call, 0, lambda c: is_view(c) or is_dropout(c))
    is_weight = made is None or made.name == "softmax"
    return int(is_weight and len(call.inputs) > 1)


def find_reader(flow: Flow, layer: "ModuleCall") -> ReadCall | None:
    """Return the first call within a layer that reads its input; None for none."""
    tensor = layer.inputs[0][1].tensor_id
    rows = (row for row in flow.read_by[tensor] if layer.first_op <= row < layer.end_op)
    row = next(rows, None)
    return None if row is None else flow.calls[row]


def find_elements(
    flow: Flow, call: ReadCall, operand: int, passed: frozenset[str] = frozenset()
) -> tuple[object, int]:
    """Return the tensor from which an operand's elements come, and the first of them.

    Operands with the same elements have equal tensors. ``passed`` are operators that
    are looked through, although they replace some of the elements.
    """
    made, first = flow.maker(call, operand), 0
    while made is not None and made.inputs:
        is_whole = prod(made.shapes[0]) == prod(made.made_shapes[0]) and is_view(made)
        if made.name == "slice":
            start, n = made.arguments.get("start") or 0, max(made.shapes[0], default=0)
            first += start if start >= 0 else start + n
        elif made.name == "constant_pad_nd" and "constant_pad_nd" in passed:
            first -= made.arguments["pad"][0]
        elif made.name in {"select", "stack", "cat"}:
            parts = [find_elements(flow, made, k) for k in range(len(made.inputs))]
            first += parts[0][1]
            each = [(part, at - parts[0][1]) for part, at in parts]
            return (made.name, [*made.arguments.items()], each), first
        elif not is_whole and made.name not in passed:
            return made.outputs[0], first
        call, operand = made, 0
        made = flow.maker(made, 0)
    return call.inputs[operand], first


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
