"""Rules about dimensions: the wrong one is normalized, selected, merged or reduced.

Each yields mistakes on the calls of a ``Flow``; ``mistakes`` says how sure each is.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Final

from meta_magic.cost.wrong.axes import list_dims, size_of
from meta_magic.cost.wrong.flow import (
    FORWARD,
    VIEWS,
    Flow,
    Mistake,
    is_dropout,
    is_view,
    name_set,
)
from meta_magic.cost.wrong.losses import PAIRWISE
from meta_magic.cost.wrong.read_calls import Atom, Axis, Mixed, ReadCall
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall

PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm"})
RESHAPING: Final = name_set(
    "einsum matmul __matmul__ linear bilinear tensordot gru lstm rnn_tanh rnn_relu "
    "multi_head_attention_forward pixel_shuffle pixel_unshuffle group_norm "
    "scaled_dot_product_attention unfold fold interpolate kron conv_tbc "
    "channel_shuffle one_hot instance_norm batch_norm"
)
"""Functions of torch that reshape their operands as they need."""

SKEWING: Final = name_set("constant_pad_nd cat as_strided copy_ new_zeros")
REDUCING: Final = name_set(
    "sum mean amax amin var std max min logsumexp linalg_vector_norm"
)
KEEPING: Final = name_set("sqrt rsqrt exp log clamp clamp_min add clone")
MAX_STEPS: Final = 6


def atoms_of(*axes: Axis) -> set[Atom]:
    """Return the atoms of some dimensions."""
    return {atom for axis in axes for atom in axis}


# Softmax


def is_weights(call: ReadCall) -> bool:
    """Whether a call hands the weights of a softmax on."""
    return is_view(call) or is_dropout(call)


def find_softmax_of_one(flow: Flow) -> Iterator[Mistake]:
    """Yield lines where each softmax, or argmax, is over a dimension of size one."""
    seen: dict[tuple[object, str], list[tuple[int, ReadCall]]] = defaultdict(list)
    for call in flow.named(("softmax", "log_softmax", "argmax"), is_own=True):
        shape = call.shapes[0]
        if shape and call.arguments.get("dim") is not None:
            dim = call.arguments["dim"] % len(shape)
            seen[call.site, call.label].append((shape[dim], call))
    for (_, label), found in seen.items():
        call = found[0][1]
        if any(size != 1 for size, _ in found) or prod(call.shapes[0]) == 1:
            continue
        yield Mistake(
            call,
            f"{label} of {format_shape(call.shapes[0])} is over a dimension of "
            "size one: the result does not depend on what it is given",
            f"dim={call.arguments['dim']} has size 1 in each of {len(found)} calls",
            line=flow.find_built(call),
        )


def find_softmax_axes(flow: Flow) -> Iterator[Mistake]:
    """Yield softmaxes over another dimension than their weights are summed over."""
    softmaxes = next(flow.calls.find(("softmax",), FORWARD, is_own=True), None)
    for call in flow.named(PRODUCTS) if softmaxes else ():
        if len(call.inputs) < 2 or (softmaxes and call.index < softmaxes.index):
            continue
        for operand in (len(call.inputs) - 2, len(call.inputs) - 1):
            soft = flow.origin(call, operand, is_weights)
            if soft is not None and soft.name == "softmax" and soft.is_own:
                yield from judge_product(flow, call, operand, soft)
    for call in flow.named(("sum",)) if softmaxes else ():
        yield from judge_weighted_sum(flow, call)
    for call in flow.named(("nll_loss_forward", "nll_loss2d_forward")):
        made = flow.origin(call, 0, is_view)
        if made is not None and made.name == "log_softmax" and made.is_own:
            yield from judge_classes(flow, call, made)


def judge_classes(flow: Flow, call: ReadCall, soft: ReadCall) -> Iterator[Mistake]:
    """Yield a mistake if ``nll_loss`` has its classes in another dimension."""
    axes, normalized = call.axes[0], {*soft_axis(soft)}
    classes = axes[1 if len(axes) > 1 else 0]
    if normalized <= atoms_of(*axes) - {*classes} and normalized:
        yield describe_softmax(flow, soft, call, size_of(classes), "not the classes")


def find_other_classes(flow: Flow) -> Iterator[Mistake]:
    """Yield where ``cross_entropy`` gets targets whose classes are the last dimension.

    It takes dimension 1 for the classes, and they are known by ``one_hot``.
    """
    for call in flow.named(("mul",), {"cross_entropy"}):
        if len(call.made_shapes[0]) < 3:
            continue
        for operand in range(len(call.inputs)):
            hot = flow.origin(
                call, operand, lambda c: is_view(c) and c.shapes[0] == c.made_shapes[0]
            )
            if hot is not None and hot.function == "one_hot":
                n, shape = call.made_shapes[0][1], format_shape(call.made_shapes[0])
                yield Mistake(
                    call,
                    f"cross_entropy takes dimension 1 of {shape}, of {n}, for the "
                    "classes, and one_hot makes them the last: transpose(1, -1) both",
                    f"one_hot is at line {hot.line}",
                    (hot,),
                )


def find_normalized(flow: Flow) -> Iterator[Mistake]:
    """Yield products of tensors whose norms are along another dimension."""
    has_norms = "linalg_vector_norm" in flow.calls.names
    for call in flow.named(("mm", "bmm")) if has_norms else ():
        summed = {*call.axes[0][-1], *call.axes[1][-2]}
        norms = [n for k in (0, 1) if (n := find_norm(flow, call, k)) is not None]
        axes = [
            atoms_of(
                *[n.axes[0][d] for d in list_dims(n.arguments["dim"], len(n.axes[0]))]
            )
            for n in norms
        ]
        kept = atoms_of(*call.axes[0], *call.axes[1]) - summed
        other = [one for one, a in zip(norms, axes, strict=True) if a and a <= kept]
        if len(norms) == 2 and other and other[0].is_own:
            yield Mistake(
                other[0],
                f"{call.label} (line {call.line}) sums over {size_of(call.axes[0][-1])}"
                " elements of vectors that are normalized over another dimension: "
                "normalize over that one",
                "the products are no cosines",
                (call,),
            )
    for norm in flow.named(("linalg_vector_norm",), is_own=True):
        if norm.function != "cosine_similarity" or len(norm.shapes[0]) != 2:
            continue
        made, (rows, size) = flow.origin(norm, 0, is_view), norm.shapes[0]
        is_row = made is not None and made.name in {"mm", "addmm"}
        if is_row and [*norm.arguments["dim"]] == [0]:
            yield Mistake(
                norm,
                f"compares {size} columns of {rows} samples each, not {rows} vectors "
                f"of {size}: normalize over dimension 1",
                "its operands are results of a layer, one row for each sample",
            )
            return


def find_norm(flow: Flow, call: ReadCall, operand: int) -> ReadCall | None:
    """Return the norm that an operand of a call is divided by."""
    made = flow.origin(call, operand, is_view)
    if made is not None and made.name == "mul" and () in made.shapes:  # a temperature
        made = flow.origin(made, int(made.shapes[0] == ()), is_view)
    if made is None or made.name != "div" or len(made.inputs) < 2:
        return None
    norm = flow.origin(made, 1, lambda c: is_view(c) or c.name in KEEPING)
    return norm if norm is not None and norm.name == "linalg_vector_norm" else None


def judge_product(
    flow: Flow, call: ReadCall, operand: int, soft: ReadCall
) -> Iterator[Mistake]:
    """Yield a mistake if a product sums weights over a dimension of no softmax."""
    weights = call.axes[operand]
    is_left = operand == len(call.inputs) - 2
    summed_at, kept_at = (-1, -2) if is_left else (-2, -1)
    summed, normalized = weights[summed_at], {*soft_axis(soft)}
    position = find_position(flow, call, operand, soft)
    if not normalized or size_of(summed) < 2 or position == summed_at:
        return
    if position == kept_at and is_attention(flow, soft):
        text = "the one of the queries"
    elif not normalized & {*summed} and normalized & atoms_of(*weights[:-2]):
        text = "which the whole product shares"
    else:
        return
    yield describe_softmax(flow, soft, call, size_of(summed), text)


def find_position(
    flow: Flow, call: ReadCall, operand: int, soft: ReadCall
) -> int | None:
    """Return which of the last two dimensions of an operand a softmax normalized.

    Atoms do not say it: in self-attention, queries and keys are one and the same. The
    result is -1, -2, or None for another one, or if it is not clear.
    """
    chain: list[ReadCall] = []
    made = flow.maker(call, operand)
    while made is not None and made is not soft:
        chain.append(made)
        made = flow.maker(made, 0)
    shape = soft.made_shapes[0]
    at = soft.arguments["dim"] % len(shape)
    for step in reversed(chain):
        before, after = step.shapes[0], step.made_shapes[0]
        if step.name in {"t", "transpose", "permute"}:
            dims = list(range(len(before)))
            one, two = (step.arguments.get(f"dim{k}", k) % len(before) for k in (0, 1))
            dims[one], dims[two] = two, one
            if step.name == "permute":
                dims = [dim % len(before) for dim in step.arguments["dims"]]
            at = dims.index(at)
        elif before != after:
            left, size = prod(before[:at]), before[at]
            kept = (k for k, n in enumerate(after) if n == size > 1)
            at = next((k for k in kept if prod(after[:k]) == left), -1)
        if at < 0 or prod(before) != prod(after):
            return None
        shape = after
    return at - len(shape) if at >= len(shape) - 2 else None


def soft_axis(soft: ReadCall) -> Axis:
    """Return the dimension that a softmax normalizes."""
    axes = soft.axes[0]
    return axes[soft.arguments["dim"] % len(axes)] if axes else ()


def is_attention(flow: Flow, soft: ReadCall) -> bool:
    """Whether a softmax is of products of two activations, scaled or masked."""
    made, steps = flow.maker(soft, 0), 0
    while made is not None and steps < MAX_STEPS and made.name not in PRODUCTS:
        is_passed = is_view(made) or made.name in {"div", "mul", "add", "masked_fill"}
        made = flow.maker(made, 0) if is_passed else None
        steps += 1
    if made is None or made.name not in {"bmm", "mm", "baddbmm"}:
        return False
    parameters = {*flow.program.facts.parameters}
    return not any(flow.storages[tensor] in parameters for tensor in made.inputs)


def describe_softmax(
    flow: Flow, soft: ReadCall, call: ReadCall, n_summed: int, what: str
) -> Mistake:
    """Return the mistake on a softmax over the wrong dimension."""
    size = size_of(soft_axis(soft))
    where = f" (line {call.line})" if call.line != soft.line else ""
    return Mistake(
        soft,
        f"{soft.label} is over a dimension of {size}, {what}, and the weights are then "
        f"summed over another one, of {n_summed}{where}: softmax over that one, not "
        f"over dim={soft.arguments['dim']}",
        f"weights {format_shape(soft.made_shapes[0])} do not add up to one where "
        f"{call.label} sums them",
        (call,),
        line=flow.find_built(soft),
    )


def judge_weighted_sum(flow: Flow, call: ReadCall) -> Iterator[Mistake]:
    """Yield a mistake if ``(weights * values).sum(dim)`` sums another dimension."""
    made = flow.maker(call, 0)
    dims = call.arguments.get("dim")
    if made is None or made.name != "mul" or len(made.inputs) < 2 or not dims:
        return
    softs = [flow.origin(made, operand, is_weights) for operand in (0, 1)]
    if [s is not None and s.name == "softmax" for s in softs].count(True) != 1:
        return
    operand = 0 if softs[0] is not None and softs[0].name == "softmax" else 1
    soft = softs[operand]
    if soft is None or not soft.is_own:
        return
    if prod(made.made_shapes[0]) <= prod(made.shapes[operand]):
        return  # an expectation of weights over themselves
    axes, values = call.axes[0], made.axes[1 - operand]
    gone = atoms_of(*[axes[dim] for dim in list_dims(dims, len(axes))])
    normalized = {*soft_axis(soft)}
    is_batch = values[:1] == (soft_axis(soft),)
    is_stacked = normalized <= atoms_of(*values) and gone <= flow.axes.stacked
    if normalized and (is_batch or is_stacked) and not normalized & gone:
        n_summed = prod(size for _, size in gone)
        yield describe_softmax(flow, soft, call, n_summed, "which the sum keeps")


# Views


def find_scrambles(flow: Flow) -> Iterator[Mistake]:
    """Yield views that deal dimensions out anew, where ``permute`` was meant."""
    for row, found in flow.axes.mixed.items():
        call = flow.calls[row]
        if not call.is_own or call.function in RESHAPING:
            continue
        mixed = [
            one
            for one in found
            if not (is_regrouped(flow, one) or is_last_cut(flow, call, one))
        ]
        if not mixed or is_skew(flow, call):
            continue
        sizes = format_shape([size for _, size in mixed[0].before])
        after = format_shape(mixed[0].after)
        yield Mistake(
            call,
            f"{call.label} of {format_shape(call.shapes[0])} to "
            f"{format_shape(call.made_shapes[0])} mixes dimensions: {sizes} are dealt "
            f"out as {after}; permute or transpose moves dimensions",
            f"in memory {sizes} and {after} have no boundary in common: no dimension "
            "keeps its elements",
            tuple(m for m in (flow.maker(call, 0),) if m is not None),
        )


def is_regrouped(flow: Flow, mixed: Mixed) -> bool:
    """Whether what a view deals out was one dimension before it was cut."""
    whole = {flow.axes.whole.get(atom[0], atom) for atom in mixed.before}
    if len(whole) == 1:
        return True
    return len([size for _, size in mixed.before if size != 1]) < 2


def is_last_cut(flow: Flow, call: ReadCall, mixed: Mixed) -> bool:
    """Whether a view cuts the last dimension, which was moved there before.

    ``(batch, h, w, anchors * 4)`` to ``(batch, -1, 4)``, as detectors do.
    """
    moved = flow.origin(call, 0, lambda c: c.name in {"clone", "contiguous"})
    last = mixed.before[-1][1]
    is_moved = moved is not None and moved.name in {"permute", "transpose"}
    is_cut = last % mixed.after[-1] == 0 and last == call.shapes[0][-1]
    return is_moved and is_cut and len(mixed.after) > 1


def is_skew(flow: Flow, call: ReadCall) -> bool:
    """Whether a view slants a matrix, as relative positions do.

    It is padded before it, or cut afterwards.
    """
    made, steps = flow.maker(call, 0), 0
    while made is not None and steps < MAX_STEPS:
        if made.name in SKEWING:
            return made.name != "cat" or len({*made.shapes}) > 1
        made = flow.maker(made, 0) if is_view(made) else None
        steps += 1
    tensors = {*call.outputs}
    for _ in range(2):
        readers = {index for tensor in tensors for index in flow.read_by[tensor]}
        cuts = [flow.calls[index] for index in readers]
        if any(c.name == "slice" and c.shapes[0] != c.made_shapes[0] for c in cuts):
            return True
        tensors = {tensor for c in cuts if is_view(c) for tensor in c.outputs}
    return False


def find_merged_batches(flow: Flow) -> Iterator[Mistake]:
    """Yield views that merge samples and channels, if the model returns that."""
    for outer in flow.outer_calls if flow.axes.channels else ():
        if not outer.inputs or not outer.outputs:
            continue
        given, made = outer.inputs[0][1], outer.outputs[0][1]
        axes = flow.axes.of.get(made.tensor_id)
        batch = flow.axes.of.get(given.tensor_id)
        if not axes or not batch or not {*batch[0]} & {*axes[0]}:
            continue
        merged = {number for number, _ in axes[0]} & flow.axes.channels
        call = find_merge(flow, outer, axes[0]) if merged else None
        if call is not None:
            yield Mistake(
                call,
                f"{call.label} of {format_shape(call.shapes[0])} to "
                f"{format_shape(call.made_shapes[0])} makes rows of samples and "
                f"channels: the model returns {made.shape[0]} rows for "
                f"{given.shape[0]} samples; flatten(1) keeps samples apart",
                "the first dimension of the result is batch times channels",
            )


def find_merge(flow: Flow, outer: "ModuleCall", axis: Axis) -> ReadCall | None:
    """Return the user's view in a module call that first has a dimension in front."""
    rows = range(outer.first_op, outer.end_op)
    for call in flow.calls.find(VIEWS, rows=rows, is_own=True):
        if call.function not in RESHAPING:
            axes = flow.axes.of.get(call.outputs[0], ())
            if axes and axes[0] == axis and call.axes[0][0] != axis:
                return call
    return None


def find_bare_squeezes(flow: Flow) -> Iterator[Mistake]:
    """Yield where ``squeeze()`` drops a batch of one, in a module or beside larger."""
    found = flow.named(("squeeze",), is_own=True)
    kept = {c.site for c in found if c.shapes[0][:1] == c.made_shapes[0][:1] != (1,)}
    for call in found:
        shape, made = call.shapes[0], call.made_shapes[0]
        is_known = call.module_call is not None or call.site in kept
        if "dim" in call.arguments or not is_known:
            continue
        if len(shape) > 2 and shape[:2] == (1, 1):
            continue  # one step of one sample, as decoders take: both may be meant
        if shape[:1] == (1,) and len(made) < len(shape) - 1 + (len(shape) == 1):
            yield Mistake(
                call,
                f"squeeze() of {format_shape(shape)} drops dimension 0, too, a batch "
                "of one: name the dimension, as in squeeze(-1)",
                f"the result is {format_shape(made)}; with two samples it has a "
                "dimension more",
            )


# Reductions, scales


def find_crossed(flow: Flow) -> Iterator[Mistake]:
    """Yield reductions whose result is aligned with another dimension than its own."""
    for call in flow.named(PAIRWISE, is_own=True):
        if len(call.inputs) != 2:
            continue
        long, short = sorted((0, 1), key=lambda k: -len(call.shapes[k]))
        if len(call.shapes[long]) == len(call.shapes[short]):
            continue
        reduced = flow.origin(call, short, lambda c: c.name in KEEPING)
        if reduced is None or reduced.name not in REDUCING or not reduced.is_own:
            continue
        wide, left = call.axes[long], call.axes[short]
        dims = list_dims(reduced.arguments.get("dim"), len(wide))
        is_its_own = reduced.inputs[0] == call.inputs[long] and max(dims) >= len(dims)
        pairs = zip(wide[len(wide) - len(left) :], left, strict=True)
        for above, below in pairs:
            is_other = above and below and (is_its_own or not {*above} & {*below})
            if is_other and {*below} <= atoms_of(*wide):
                yield Mistake(
                    reduced,
                    f"what {reduced.label} leaves is a dimension of {size_of(below)}, "
                    f"and is aligned with another one of that size (line {call.line}): "
                    "keepdim=True keeps it where it was",
                    f"{format_shape(call.shapes[long])} and "
                    f"{format_shape(call.shapes[short])} are aligned from the right",
                    (call,),
                )
                break


def find_scales(flow: Flow) -> Iterator[Mistake]:
    """Yield where scores are scaled by the size of all heads, or by the keys."""
    for call in flow.named(("div", "mul"), is_own=True):
        factor = call.arguments.get("other")
        if not isinstance(factor, (int, float)) or factor <= 0:
            continue
        product = flow.origin(call, 0, is_view)
        if product is None or product.name not in {"bmm", "mm"}:
            continue
        root = 1 / factor if call.name == "mul" else factor
        n, k = round(root * root), size_of(product.axes[-2][-1])
        heads = [size for size in call.made_shapes[0][:-2] if size > 1]
        is_root = abs(root * root - n) < 1e-6 * n and k > 1
        what = "the size of all heads" if any(n == k * h for h in heads) else ""
        if n == call.made_shapes[0][-1] != k and product.name == "bmm":
            what = what or "the number of keys"
        if is_root and what:
            yield Mistake(
                call,
                f"scores of {k} products each are divided by the root of {n}, {what}: "
                f"divide by the root of {k}",
                f"the product at line {product.line} sums over a dimension of {k}",
                (product,),
            )
    for call in flow.named(("multinomial",), is_own=True):
        made = flow.maker(call, 0)
        is_scaled = made is not None and made.name in {"div", "mul"}
        soft = flow.origin(made, 0, is_view) if made and is_scaled else None
        if made and soft and soft.name == "softmax" and len(made.inputs) == 1:
            yield Mistake(
                made,
                "multinomial draws the same from probabilities times a number: divide "
                "the scores before the softmax",
                f"the softmax is at line {soft.line}, so the temperature does nothing",
                (call, soft),
            )
