"""Rules about losses: operands of two shapes, probabilities for logits, lost terms.

Each yields mistakes on the calls of a ``Flow``; ``mistakes`` says how sure each is.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Final

from meta_magic.cost.wrong.flow import FORWARD, Flow, Mistake, is_view, name_set
from meta_magic.cost.wrong.read_calls import ReadCall
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.cost.wrong.read_calls import Shape

FUNCTIONAL: Final = "torch.nn.functional."
"""The module of the losses that expand their arguments."""

PAIRWISE: Final = name_set(
    "add sub mul div pow eq ne gt lt ge le maximum minimum rsub soft_margin_loss"
)
"""Operators of two tensors, element by element."""

SQUARING: Final = name_set(
    "one_hot outer ger einsum cdist tril triu meshgrid cov corrcoef vander"
)
"""Functions of torch whose purpose is to make a square of a column and a row."""

MAX_BACK: Final = 12
"""How many calls back the maker of an operand is looked for."""

SOFT: Final = {"softmax": "softmax", "sigmoid": "sigmoid"}
LOSSES: Final = name_set(
    "nll_loss_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits"
)
SUMS: Final = name_set("add sub rsub add_ sub_")
DETACHING: Final = name_set("detach __get__ data")
LINEAR: Final = name_set("addmm mm bmm convolution mkldnn_convolution relu")


def find_loss_sizes(flow: Flow) -> Iterator[Mistake]:
    """Yield where a loss of torch expands its operands to each other."""
    last = -1
    losses = {name for name in flow.calls.functions if name.endswith("loss")}
    for call in flow.named(("expand",), losses):
        name = "" if call.site is None else call.site.function or ""
        is_loss = name.startswith(FUNCTIONAL)
        if not is_loss or call.shapes[0] == call.made_shapes[0] or call.index == last:
            continue
        operands = find_operands(flow, call)
        if len(operands) < 2 or 1 in [prod(shape) for shape, _ in operands]:
            continue  # a loss to one number is meant
        last = call.index + 1  # the other operand may be expanded, too
        first, second = (format_shape(shape) for shape, _ in operands)
        large = max(operands, key=lambda one: prod(one[0]))
        yield Mistake(
            call,
            f"{call.function} broadcast {first} with {second} to "
            f"{format_shape(call.made_shapes[0])}: give both one shape",
            "each element is compared with several of the other tensor: "
            + ", ".join(describe_maker(*one) for one in operands),
            tuple(find_widened(flow, *large)),
        )


def find_operands(
    flow: Flow, expand: ReadCall
) -> "list[tuple[Shape, ReadCall | None]]":
    """Return the shapes of a loss's two operands, each with the call that made it."""
    later = flow.calls[expand.index + 1 : expand.index + 3]
    loss = next((c for c in later if c.name != "expand" and len(c.inputs) > 1), None)
    if loss is None or loss.site is not expand.site:
        return []
    found = []
    for operand in (0, 1):
        call, shape = flow.maker(loss, operand), loss.shapes[operand]
        if call is not None and call.name == "expand" and call.site is expand.site:
            shape, call = call.shapes[0], flow.maker(call, 0)
        found.append((shape, call))
    return found


def describe_maker(shape: "Shape", call: ReadCall | None) -> str:
    """Return a shape, and the line that made its tensor."""
    is_known = call is not None and call.line
    return format_shape(shape) + (f" of line {call.line}" if call and is_known else "")


def find_widened(
    flow: Flow, shape: "Shape", call: ReadCall | None
) -> Iterator[ReadCall]:
    """Yield the makers of a tensor, back to where its shape came from."""
    for _ in range(MAX_BACK):
        if call is None or shape not in call.made_shapes:
            return
        if call.is_own:
            yield call
        same = [k for k, one in enumerate(call.shapes) if one == shape]
        call = flow.maker(call, same[0]) if same else None


def find_broadcasts(flow: Flow) -> Iterator[Mistake]:
    """Yield broadcasts of a column with a row, ``(n, 1)`` and ``(n,)``, unasked."""
    for call in flow.named(PAIRWISE, is_own=True):
        shapes = call.shapes
        if len(shapes) != 2 or call.function in SQUARING:
            continue
        one, other = shapes
        if len(one) == len(other) or not is_column_and_row(one, other):
            continue
        if is_pairs(flow, call):
            continue
        yield Mistake(
            call,
            f"{call.label} broadcast {format_shape(one)} with {format_shape(other)} to "
            f"{format_shape(call.made_shapes[0])}: a column and a row",
            "the sizes are the same and not aligned: squeeze one of them, or write "
            "None where a dimension is meant",
            tuple(m for k in (0, 1) if (m := flow.maker(call, k)) is not None),
        )


def is_column_and_row(one: "Shape", other: "Shape") -> bool:
    """Whether two shapes have the same sizes but ones, and broadcast to more."""
    long, short = (one, other) if len(one) > len(other) else (other, one)
    sizes = [n for n in long if n != 1]
    if not sizes or sizes != [n for n in short if n != 1]:
        return False
    padded = (*[1] * (len(long) - len(short)), *short)
    made = prod([max(pair) for pair in zip(long, padded, strict=True)])
    return made > prod(sizes)


def is_pairs(flow: Flow, call: ReadCall) -> bool:
    """Whether a column is broadcast with a row on purpose.

    The dimension of size one was asked for on the same line; or anywhere, and the
    operands are functions of one tensor, or are multiplied: an outer product. Or one of
    two equal reductions keeps its dimensions, and the other does not.
    """
    makers = [flow.maker(call, operand) for operand in (0, 1)]
    if all(made is not None and "dim" in made.arguments for made in makers):
        names = {made.name for made in makers if made is not None}
        kept = {made.arguments.get("keepdim", False) for made in makers if made}
        if len(names) == 1 and len(kept) > 1:
            return True
    (first, first_asked), (second, second_asked) = (
        find_root(flow, call, operand) for operand in (0, 1)
    )
    asked = first_asked | second_asked
    is_other = first != second and call.name not in {"mul", "pow"}
    return bool(asked) and (not is_other or call.line in asked)


def find_root(
    flow: Flow, call: ReadCall, operand: int
) -> tuple[object, set[int | None]]:
    """Return what an operand is a view of, and the lines that asked for a one."""
    made, asked = flow.maker(call, operand), set[int | None]()
    tensor = call.inputs[operand]
    while made is not None and is_view(made) and made.inputs:
        is_given = made.is_own and made.name in {"unsqueeze", "view", "unsafe_view"}
        if is_given and made.made_shapes[0].count(1) > made.shapes[0].count(1):
            asked.add(made.line)
        tensor = made.inputs[0]
        made = flow.maker(made, 0)
    if made is not None and made.function in {"arange", "linspace"}:
        return (made.function, made.made_shapes[0]), asked  # equal numbers
    return tensor if made is None else made.index, asked


def find_doubled(flow: Flow) -> Iterator[Mistake]:
    """Yield where probabilities reach a loss that makes them of logits itself."""
    for call in flow.named(("log_softmax", "binary_cross_entropy_with_logits")):
        if call.name == "log_softmax" and "cross_entropy" not in call.function:
            continue
        own = "softmax" if call.name == "log_softmax" else "sigmoid"
        yield from find_soft(flow, call, 0, f"which has a {own} of its own")
    for call in flow.named(("nll_loss_forward", "nll_loss2d_forward")):
        if call.function.startswith("nll_loss"):
            yield from find_soft(flow, call, 0, "which wants logarithms")
    for call in flow.named(("mul",), {"kl_div"}):
        if len(call.inputs) > 1:
            yield from find_soft(flow, call, 1, "whose input is to be logarithms")


def find_soft(flow: Flow, call: ReadCall, operand: int, what: str) -> Iterator[Mistake]:
    """Yield a mistake if an operand of a loss is the result of a softmax or sigmoid."""
    made = flow.origin(call, operand, is_handed_on)
    name = None if made is None else SOFT.get(made.name)
    if made is None or name is None or not (made.is_own or call.is_own):
        return
    if name == "sigmoid" and call.name == "log_softmax":
        return  # scores between 0 and 1 may be meant
    where = f" (line {call.line})" if call.line != made.line else ""
    yield Mistake(
        made,
        f"{name} before {call.label}{where}, {what}: leave the {name} out",
        "the loss is computed of probabilities as if they were logits"
        if "own" in what
        else "the loss is computed of probabilities: log_softmax gives logarithms",
        (call,),
        line=flow.find_built(made),
    )


def is_handed_on(call: ReadCall) -> bool:
    """Whether a call selects or moves elements of its first operand."""
    return is_view(call) or call.name in {"index", "gather", "index_select", "unbind"}


def find_raw_scores(flow: Flow) -> Iterator[Mistake]:
    """Yield where ``nll_loss`` gets the results of a layer, which are no logarithms."""
    for call in flow.named(("nll_loss_forward", "nll_loss2d_forward"), is_own=True):
        if not call.function.startswith("nll_loss"):
            continue
        made = flow.origin(call, 0, is_handed_on)
        if made is not None and made.name in LINEAR and made.phase == "forward":
            yield Mistake(
                call,
                f"{call.function} wants logarithms of probabilities and gets the "
                f"result of {made.label}: use cross_entropy, or log_softmax before it",
                "without log_softmax the loss has no lower bound",
                (made,),
            )


def find_crossed_rows(flow: Flow) -> Iterator[Mistake]:
    """Yield losses whose scores and targets number the same samples differently.

    One has the samples of a step next to each other, the other the steps of a sample.
    """
    for call in flow.named(("nll_loss_forward",)):
        rows, targets = call.axes[0][0], call.axes[1][0]
        sizes = [[n for _, n in one] for one in (rows, targets)]
        at = [(k, targets.index(a)) for k, a in enumerate(rows) if a in targets]
        if not at and len(rows) == 2 and sizes[0] == sizes[1][::-1] != sizes[1]:
            at = [(0, 1)]  # other tensors, whose sizes are the same the other way round
        if len(at) != 1 or len(rows) < 2 or len(targets) < 2:
            continue
        after, wanted = (
            prod(one[k + 1 :]) for one, k in zip(sizes, at[0], strict=True)
        )
        if after != wanted and 1 in {after, wanted}:
            n_samples, n_rows = sizes[0][at[0][0]], call.shapes[0][0]
            yield Mistake(
                call,
                f"{call.function} compares {n_rows} rows in two orders: the scores of "
                f"sample 1 of {n_samples} are row {after}, its targets row {wanted}: "
                "transpose one of both, or stack the steps as dimension 1",
                f"{format_shape(call.shapes[0])} and {format_shape(call.shapes[1])} "
                "have the same size, and not the same order",
                tuple(m for k in (0, 1) if (m := flow.maker(call, k)) is not None),
            )


def find_swapped(flow: Flow) -> Iterator[Mistake]:
    """Yield where ``binary_cross_entropy`` has its arguments in the wrong order."""
    for call in flow.named(("binary_cross_entropy",), is_own=True):
        made = [flow.maker(call, operand) for operand in (0, 1)]
        has_gradient = [m is not None and m.index in flow.differentiated for m in made]
        if has_gradient == [False, True]:
            yield Mistake(
                call,
                f"{call.function} gets the targets first: the prediction is its first "
                "argument",
                "the second argument has a gradient, and the first has none",
            )


def find_weighted_means(flow: Flow) -> Iterator[Mistake]:
    """Yield where weights of samples multiply a loss that is one number already."""
    for call in flow.named(("mul",), is_own=True):
        if len(call.inputs) != 2 or prod(call.made_shapes[0]) < 2:
            continue
        for operand, shape in enumerate(call.shapes):
            made = flow.maker(call, operand)
            if shape or made is None or "loss" not in made.name:
                continue
            weights = flow.maker(call, 1 - operand)
            if weights is None or weights.index not in flow.differentiated:
                yield Mistake(
                    call,
                    f"each of {prod(call.made_shapes[0])} weights multiplies the same "
                    f"number, the mean that {made.label} returns (line {made.line}): "
                    'reduction="none" keeps a loss for each sample',
                    "the result depends on the sum of the weights alone",
                    (made,),
                )


def find_dropped_losses(flow: Flow) -> Iterator[Mistake]:
    """Yield losses that a later one of the same line replaces, unread.

    Both rest on one run of a layer, as the steps of a sequence do.
    """
    by_site: dict[object, list[ReadCall]] = defaultdict(list)
    for call in flow.named(LOSSES):
        if call.index in flow.differentiated and call.site and not call.made_shapes[0]:
            by_site[call.site].append(call)
    starts = flow.backwards
    for calls in by_site.values():
        if not 0 < len(starts) < len(calls):
            continue
        left = [call for call in calls if is_left(flow, call)]
        first = next((call for call in left if is_resumed(flow, call)), None)
        if first is not None and len(left) < len(calls):
            yield Mistake(
                first,
                f"{len(left)} of {len(calls)} losses of this line are never used: each "
                "replaces the one before; add them up",
                f"backward() is called {len(starts)} times, of other losses",
                (starts[0],),
            )


def is_left(flow: Flow, call: ReadCall) -> bool:
    """Whether nothing reads the number that a call returns, but to compute others."""
    readers = [flow.calls[row] for row in flow.read_by.get(call.outputs[0], ())]
    return all(
        one.name in {"mul", "div", "neg"} and is_left(flow, one) for one in readers
    )


def is_resumed(flow: Flow, loss: ReadCall) -> bool:
    """Whether what a loss was computed of is read again after it, in the forward."""
    todo, seen = [loss], set[int]()
    while todo and len(seen) < MAX_BACK:
        call = todo.pop(0)
        seen.add(call.index)
        for operand, tensor in enumerate(call.inputs):
            made = flow.maker(call, operand)
            if made is None or made.index not in flow.differentiated:
                continue
            later = [row for row in flow.read_by[tensor] if row > loss.index]
            if any(flow.calls[row].phase == "forward" for row in later):
                return True
            todo += [made] if made.index not in seen else []
    return False


def find_cut_terms(flow: Flow) -> Iterator[Mistake]:
    """Yield where a term without its gradient is added to what is differentiated."""
    for start in flow.backwards:
        todo = [flow.maker(start, 0)]
        seen: set[int] = set()
        while todo:
            call = todo.pop()
            if call is None or call.index in seen:
                continue
            seen.add(call.index)
            if is_cut(flow, call):
                yield Mistake(
                    call,
                    "a term of the loss is detached or a number: no gradient changes",
                    f"backward() differentiates a sum with it (line {start.line})",
                    (start,),
                )
            elif call.name in SUMS:
                todo += [flow.maker(call, k) for k in range(len(call.inputs))]
            elif call.name in {"mul", "div", "neg"} and len(call.inputs) == 1:
                todo.append(flow.maker(call, 0))


def is_cut(flow: Flow, call: ReadCall) -> bool:
    """Whether a call detaches a number that has a gradient, or adds its ``item()``.

    The user's own code does that.
    """
    if not call.is_own or call.shapes[0]:
        return False
    if call.name in SUMS:
        read = flow.calls[call.index - 1]
        if call.inputs[1:] or read.function != "item" or read.line != call.line:
            return False
        call = read
    elif call.name not in {"detach", "alias"} or call.function not in DETACHING:
        return False
    made = flow.maker(call, 0)
    return made is not None and made.index in flow.differentiated


def find_sums_beside_means(flow: Flow) -> Iterator[Mistake]:
    """Yield where a sum over the samples is added to a mean over them.

    ``F.mse_loss(y, x) - 0.5 * torch.sum(...)``; a sum with a weight may be meant.
    """
    for call in flow.named(("add", "add_", "sub"), is_own=True):
        if call.made_shapes[0] or len(call.inputs) < 2:
            continue
        terms = [flow.origin(call, operand, is_halved) for operand in (0, 1)]
        summed, mean = sorted(terms, key=lambda one: one is None or one.name != "sum")
        if summed is None or mean is None or summed.name != "sum" or not summed.is_own:
            continue
        is_whole = len(summed.shapes[0]) > 1 and not summed.arguments.get("dim")
        is_mean = mean.name == "mean" and not mean.arguments.get("dim")
        is_loss = mean.name in LOSSES and mean.arguments.get("reduction", 1) == 1
        rows = summed.axes[0][0]
        is_same = rows and {*rows} <= {atom for axis in mean.axes[0] for atom in axis}
        is_differentiated = {summed.index, mean.index} <= flow.differentiated
        if is_whole and is_same and is_differentiated and (is_mean or is_loss):
            n = summed.shapes[0][0]
            yield Mistake(
                summed,
                f"a sum over {n} samples is added to a mean over them (line "
                f"{call.line}): it grows with the batch, so divide it by the batch, or "
                "use the mean",
                f"{mean.label} (line {mean.line}) is a mean",
                (call, mean),
            )


def is_halved(call: ReadCall) -> bool:
    """Whether a call changes the sign of its operand, halves or doubles it."""
    factor = call.arguments.get("other")
    is_plain = isinstance(factor, (int, float)) and abs(factor) in {0.5, 1, 2}
    return call.name == "neg" or (call.name in {"mul", "div"} and is_plain)


def find_own_neighbors(flow: Flow) -> Iterator[Mistake]:
    """Yield losses over products of vectors with themselves, whose diagonal is left."""
    for loss in flow.named(("nll_loss_forward",)):
        product = flow.origin(loss, 0, is_scaled)
        if product is None or product.name not in {"mm", "bmm"} or not loss.is_own:
            continue
        sources = [find_source(flow, product, operand) for operand in (0, 1)]
        if is_filled(flow, loss):
            continue
        if sources[0] == sources[1] and product.made_shapes[0][-1] > 2:
            n = product.made_shapes[0][-1]
            yield Mistake(
                loss,
                f"each of {n} vectors is compared with itself, too, and is most like "
                "itself: fill the diagonal with -inf",
                f"the product at line {product.line} is of one tensor with itself",
                (product,),
            )


def is_filled(flow: Flow, loss: ReadCall) -> bool:
    """Whether scores of a loss, or what they are computed of, are written by a view.

    ``fill_diagonal_`` writes a view, so it is not the call that made the scores.
    """
    made = flow.maker(loss, 0)
    while made is not None and made.inputs and is_scaled(made):
        storage = flow.storages[made.inputs[0]]
        if flow.is_written(storage, range(made.index)):
            return True
        made = flow.maker(made, 0)
    return False


def is_scaled(call: ReadCall) -> bool:
    """Whether a call scales scores, or takes the logarithm of their softmax."""
    is_scale = call.name in {"mul", "div"} and len(call.inputs) == 1
    return is_view(call) or is_scale or call.name == "log_softmax"


def find_source(flow: Flow, call: ReadCall, operand: int) -> int:
    """Return the tensor that an operand is a view of."""
    made, tensor = flow.maker(call, operand), call.inputs[operand]
    while made is not None and made.inputs and is_view(made):
        tensor = made.inputs[0]
        made = flow.maker(made, 0)
    return tensor


def find_other_noise(flow: Flow) -> Iterator[Mistake]:
    """Yield losses whose target is new noise, and not the noise that was added."""
    drawn = [
        c for c in flow.named(("randn_like", "rand_like"), is_own=True) if c.inputs
    ]
    for loss in flow.named(LOSSES) if len(drawn) > 1 else ():
        target = flow.maker(loss, 1) if len(loss.inputs) > 1 else None
        is_drawn = target is not None and target.name in {"randn_like", "rand_like"}
        if target is None or not (is_drawn and target.is_own and target.inputs):
            continue
        readers = [flow.calls[row].phase for row in flow.read_by[target.outputs[0]]]
        if len([phase for phase in readers if phase in FORWARD]) > 1:
            continue
        like = find_source(flow, target, 0)
        others = (c for c in drawn if c.index < target.index)
        noise = [c for c in others if find_source(flow, c, 0) == like]
        if noise:
            yield Mistake(
                loss,
                "the target is noise that is drawn here, and nothing else reads it: "
                f"give the loss the noise of line {noise[-1].line}",
                f"{target.label} draws other numbers each time",
                (noise[-1],),
            )


def find_zero_differences(flow: Flow) -> Iterator[Mistake]:
    """Yield a tensor minus itself: zero, and its gradient, too."""
    for call in flow.named(("sub", "div"), is_own=True):
        if len(call.inputs) < 2 or call.index not in flow.differentiated:
            continue
        if call.inputs[0] == call.inputs[1]:
            what = "zero" if call.name == "sub" else "one"
            yield Mistake(
                call,
                f"{call.label} of a tensor and itself is {what}, and gives no "
                "gradient: detach one where it is to stay as it is",
                "both operands are the same tensor",
                tuple(m for m in (flow.maker(call, 0),) if m is not None),
            )


def find_moving_targets(flow: Flow) -> Iterator[Mistake]:
    """Yield temporal differences whose target is differentiated, too.

    The target adds a reward to the largest value of the network that is trained.
    """
    for loss in flow.named(("mse_loss", "smooth_l1_loss", "huber_loss"), is_own=True):
        made = flow.maker(loss, 1) if len(loss.inputs) > 1 else None
        if made is None or made.name != "add" or made.index not in flow.differentiated:
            continue
        parts = [follow_gradient(flow, made, k) for k in range(len(made.inputs))]
        best = next((c for c in parts if c and c.name in {"max", "amax"}), None)
        if best is not None:
            yield Mistake(
                made,
                "the target of the loss is differentiated, too: compute it within "
                "torch.no_grad(), or detach it",
                f"it adds to a maximum of line {best.line} that has a gradient",
                (loss, best),
            )


def follow_gradient(flow: Flow, call: ReadCall, operand: int) -> ReadCall | None:
    """Return the call before views and products from which a gradient comes."""
    made = flow.maker(call, operand)
    while made is not None and (is_view(made) or made.name == "mul"):
        before = [flow.maker(made, k) for k in range(len(made.inputs))]
        made = next((c for c in before if c and c.index in flow.differentiated), None)
    return made if made is not None and made.index in flow.differentiated else None


def find_blended_classes(flow: Flow) -> Iterator[Mistake]:
    """Yield numbers of classes that are interpolated: the mean of 1 and 3 is 2."""
    names = [f"upsample_{kind}2d" for kind in ("bilinear", "bicubic")]
    for call in flow.named(names):
        given = flow.maker(call, 0)
        while given is not None and given.inputs and is_view(given):
            before = given.signature.inputs[0].dtype
            if given.name == "to_copy" and not before.is_floating_point:
                made = [c.signature.outputs[0].dtype for c in list_readers(flow, call)]
                if not all(dtype.is_floating_point for dtype in made):
                    yield Mistake(
                        call,
                        f"{call.label} of numbers of classes makes other classes "
                        'between them: mode="nearest"',
                        f"they are {before} before and integers afterwards",
                        (given,),
                    )
                break
            given = flow.maker(given, 0)


def list_readers(flow: Flow, call: ReadCall) -> list[ReadCall]:
    """Return the views of a call's result, and of these."""
    todo, found = [call], list[ReadCall]()
    while todo and len(found) < MAX_BACK:
        for row in flow.read_by.get(todo.pop().outputs[0], ()):
            if is_view(flow.calls[row]) or flow.calls[row].name == "round":
                found.append(flow.calls[row])
                todo.append(flow.calls[row])
    return found
