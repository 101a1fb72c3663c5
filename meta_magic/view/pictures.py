"""Which elements of its inputs an operator reads for an element of its output.

The report draws that as a picture, in the details of a call: ``x.permute(1, 0)`` shows
its walk through memory, ``a[:, None] + b`` which elements are added. A picture has, for
each input, a *reach* for each of its dimensions, which ``static/pictures/reach.js``
reads:

- ``d``, a number: the index of the output in dimension ``d``; 0 if the size is 1
- ``-1``: all indices
- ``["upto", d]``: all indices up to and with that one; ``["flip", d]``: that index,
  counted from the end
- ``["shift", d, n]``: that index minus ``n``, if the input has it; ``["turn", d, n]``:
  that index minus ``n``, modulo the input's size
- ``["is", d, n]``, an extra entry after those of the dimensions: the input is read only
  where the output's index in dimension ``d`` is ``n``, as in ``stack``
- ``["window", d, step, padding, dilation, size]``: the window of that index
- ``["share", d, n]``: the ``n``-th part of all indices, ``n`` being the output's size
- ``["group", d, n, m]``: of groups of ``n`` outputs and ``m`` inputs, the same group

Read :func:`find_picture` first, and ``FAMILIES``.

An element of a second convolution is computed from a window of the first one's result:
:func:`find_previous_windows` finds it, so that the picture goes on to the image.
"""

from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch

from meta_magic.trace.calls import OpCall
from meta_magic.trace.signature import Signature

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


Reach: TypeAlias = int | list[Any]
Shape: TypeAlias = Sequence[int]
ALL: Final = -1


class Picture(NamedTuple):
    """What a call reads.

    Attributes:
        kind: What is drawn.
        reaches: For each input, the reach of each of its dimensions. A kind without
            reaches: ``memory``, where the browser follows the strides, and ``order``,
            where the n-th element stays the n-th.
        terms: Of a product, the letters of each input and of the output, as in
            ``ik,kj->ij``; ``*`` of an input that is added. Of windows, how many there
            are along the last dimension. Else "".
    """

    kind: str
    reaches: Sequence[list[Reach]] = ()
    terms: str = ""


class PicturedCall(NamedTuple):
    """What a family needs to know of a call."""

    name: str
    arguments: Mapping[str, Any]
    shapes: Sequence[Shape]
    out: Shape

    def dims(self, name: str = "dim") -> list[int]:
        """Return the dimensions that an argument names; all of them by default."""
        n, given = len(self.shapes[0]), self.arguments.get(name)
        if given is None or given == ():
            return [*range(n)]
        return [d % max(n, 1) for d in ((given,) if isinstance(given, int) else given)]


def find_picture(signature: Signature | OpCall) -> Picture | None:
    """Return what a call reads; None for operators without a picture."""
    *_, name, overload = ("", "", *signature.op.split("."))[-3:]
    geometries = (*signature.inputs, *signature.outputs)
    is_plain = all(g.stride is not None and not g.is_conj for g in geometries)
    if not is_plain or not signature.inputs or not signature.outputs:
        return None
    if signature.is_view or name == "_unsafe_view":
        dtypes = {g.dtype for g in geometries}
        return Picture("memory") if len(dtypes) == 1 else None
    shapes = [[*map(int, g.shape)] for g in signature.inputs]
    out = [*map(int, signature.outputs[0].shape)]
    call = PicturedCall(name, dict(signature.arguments), shapes, out)
    family = FAMILIES.get(name)
    if family is not None:
        return family(call)
    return broadcast(call) if is_pointwise(name, overload) else None


def is_pointwise(name: str, overload: str) -> bool:
    """Whether torch says that an operator works element by element."""
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, overload, None)
    return found is not None and torch.Tag.pointwise in found.tags


def align(shape: Shape, out: Shape) -> list[Reach]:
    """Return the reaches of an operand that is broadcast: aligned from the right."""
    return [len(out) - len(shape) + dim for dim in range(len(shape))]


def broadcast(call: PicturedCall) -> Picture | None:
    """Align all operands; a function of one tensor needs no picture."""
    if len(call.shapes) < 2:  # noqa: PLR2004
        return None
    return Picture("broadcast", [align(shape, call.out) for shape in call.shapes])


def read_terms(terms: str, call: PicturedCall) -> Picture | None:
    """Return a product from its letters, ``*`` being an operand that is added."""
    given, out = terms.split("->")
    reaches: list[list[Reach]] = []
    for term, shape in zip(given.split(","), call.shapes, strict=False):
        if term == "*":
            reaches.append(align(shape, call.out))
            continue
        summed = [letter for letter in term if letter not in out]
        if len(term) != len(shape) or len({*summed}) < len(summed):
            return None
        reaches.append([out.find(letter) for letter in term])
    return Picture("product", reaches, terms) if len(out) == len(call.out) else None


PRODUCTS: Final = {
    "mm": "ik,kj->ij",
    "bmm": "bik,bkj->bij",
    "mv": "ik,k->i",
    "dot": "k,k->",
    "vdot": "k,k->",
    "addmm": "*,ik,kj->ij",
    "addmv": "*,ik,k->i",
    "addr": "*,i,j->ij",
    "baddbmm": "*,bik,bkj->bij",
    "addbmm": "*,bik,bkj->ij",
}


def product(call: PicturedCall) -> Picture | None:
    """Return the picture of an operator that multiplies and sums."""
    return read_terms(PRODUCTS[call.name], call)


def matmul(call: PicturedCall) -> Picture | None:
    """Return the picture of ``a @ b``: batch dimensions are broadcast."""
    left, right = (len(shape) for shape in call.shapes[:2])
    batch = "".join(c for c in ascii_lowercase if c not in "ijk")
    n_batch = max(left, right, 2) - 2
    first = batch[:n_batch][n_batch - max(left - 2, 0) :] + "ik"[-min(left, 2) :]
    second = batch[:n_batch][n_batch - max(right - 2, 0) :] + "kj"[: min(right, 2)]
    out = batch[:n_batch] + "i" * (left > 1) + "j" * (right > 1)
    return read_terms(f"{first},{second}->{out}", call)


def linear(call: PicturedCall) -> Picture | None:
    """Return the picture of ``F.linear``, whose weight is (out, in)."""
    batch = "".join(c for c in ascii_lowercase if c not in "ijk")[: len(call.out) - 1]
    return read_terms(f"{batch}k,jk,*->{batch}j", call)


def reduction(call: PicturedCall) -> Picture | None:
    """Return the picture of a sum and the like, over some dimensions."""
    rank, dims = len(call.shapes[0]), call.dims()
    keepdim = len(call.out) == rank
    if len(call.out) not in {rank, rank - len({*dims})}:
        return None
    kept = [d for d in range(rank) if keepdim or d not in dims]
    reach: list[Reach] = [ALL if d in dims else kept.index(d) for d in range(rank)]
    return Picture("reduction", [reach, *[[] for _ in call.shapes[1:]]])


def line(call: PicturedCall) -> Picture | None:
    """Return the picture of a softmax or a sort: each element needs its whole line."""
    dim = call.arguments.get("dim", -1)
    if not isinstance(dim, int) or not call.out:
        return None
    reach: list[Reach] = [*range(len(call.out))]
    dim %= len(call.out)
    reach[dim] = ["upto", dim] if call.name.startswith(("cum", "logcum")) else ALL
    return Picture("line", [reach])


def layer_norm(call: PicturedCall) -> Picture | None:
    """Return the picture of a norm over the last dimensions."""
    rank = len(call.out)
    kept = rank - len(call.arguments["normalized_shape"])
    reach: list[Reach] = [d if d < kept else ALL for d in range(rank)]
    scales = [align(shape, call.out) for shape in call.shapes[1:]]
    return Picture("line", [reach, *scales])


def spread(call: PicturedCall, name: str, n: int, default: int = 1) -> list[int]:
    """Return an argument for each of ``n`` dimensions; one number stands for all."""
    given = call.arguments.get(name, ())
    given = (given,) if isinstance(given, int) else [*given] or [default]
    return [int(given[d % len(given)]) for d in range(n)]


def slide(reaches: Sequence[list[Reach]], call: PicturedCall) -> Picture:
    """Return the picture of windows, with their number along the last dimension."""
    reach, size, n = reaches[0][-1], call.shapes[0][-1], call.out[-1]
    if not isinstance(reach, list) or reach[0] != "window":
        return Picture("window", reaches)
    _, _, step, padding, dilation, width = reach
    span = dilation * (width - 1) + 1
    room = size + 2 * padding - span
    number = f"({size} + 2·{padding} - {span})"
    if n == room // step + 1:
        terms = f"{number} // {step} + 1 = {n}"
    else:
        terms = f"ceil({number} / {step}) + 1 = {n}"
    rest = room - padding - (n - 1) * step
    return Picture(
        "window",
        reaches,
        f"{terms}; no window has the last {rest}" if rest > 0 else terms,
    )


def convolution(call: PicturedCall) -> Picture | None:
    """Return the picture of a convolution, unless it is transposed."""
    if call.arguments.get("transposed"):
        return None
    given, weight = call.shapes[:2]
    steps, paddings, dilations = (
        spread(call, name, len(given) - 2, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    n_groups = call.arguments.get("groups", 1)
    channels: Reach = ALL
    if n_groups > 1:
        channels = ["group", 1, call.out[1] // n_groups, given[1] // n_groups]
    windows: list[Reach] = [
        ["window", d + 2, steps[d], paddings[d], dilations[d], weight[d + 2]]
        for d in range(len(given) - 2)
    ]
    filters: list[Reach] = [1, *[ALL] * (len(weight) - 1)]
    reaches: list[list[Reach]] = [[0, channels, *windows], filters, [1]]
    return slide(reaches[: len(call.shapes)], call)


def pooling(call: PicturedCall) -> Picture | None:
    """Return the picture of a pooling; batch and channels stay."""
    n = int(call.name[call.name.index("pool") + 4])
    before = len(call.shapes[0]) - n
    if "adaptive" in call.name:
        windows: list[Reach] = [
            ["share", before + d, call.out[before + d]] for d in range(n)
        ]
        return slide([[*range(before), *windows]], call)
    sizes = spread(call, "kernel_size", n)
    steps = spread(call, "stride", n) if call.arguments.get("stride") else sizes
    paddings, dilations = spread(call, "padding", n, 0), spread(call, "dilation", n)
    windows = [
        ["window", before + d, steps[d], paddings[d], dilations[d], sizes[d]]
        for d in range(n)
    ]
    return slide([[*range(before), *windows]], call)


def join(call: PicturedCall) -> Picture | None:
    """Return the picture of ``cat`` and ``stack``."""
    dim = call.arguments.get("dim", 0) % len(call.out)
    reaches: list[list[Reach]] = []
    start = 0
    for number, shape in enumerate(call.shapes):
        reach: list[Reach] = [*range(len(call.out))]
        if call.name == "stack":
            del reach[dim]
            reaches.append([*reach, ["is", dim, number]])
        elif len(shape) != len(call.out):  # an empty one, which cat ignores
            reaches.append([])
        else:
            reach[dim] = ["shift", dim, start]
            reaches.append(reach)
            start += shape[dim]
    return Picture("join", reaches)


def gather(call: PicturedCall) -> Picture | None:
    """Return the picture of ``gather``: the index says which of a line."""
    if not call.out or len(call.shapes[0]) != len(call.out):
        return None
    here: list[Reach] = [*range(len(call.out))]
    line: list[Reach] = [*here]
    line[call.arguments["dim"] % len(here)] = ALL
    return Picture("pick", [line, here])


def index_select(call: PicturedCall) -> Picture | None:
    """Return the picture of ``index_select``."""
    if len(call.shapes[1]) != 1 or not call.out:
        return None
    dim = call.arguments["dim"] % len(call.out)
    reach: list[Reach] = [*range(len(call.out))]
    reach[dim] = ALL
    return Picture("pick", [reach, [dim]])


def embedding(call: PicturedCall) -> Picture | None:
    """Return the picture of an embedding: a row for each index."""
    return Picture("pick", [[ALL, len(call.out) - 1], [*range(len(call.out) - 1)]])


def index(call: PicturedCall) -> Picture | None:
    """Return the picture of ``x[i, j]`` with tensors as indices."""
    given = call.arguments["indices"]
    dims = [d for d, i in enumerate(given) if i is not None]
    if not dims:
        return None
    rank = max(len(shape) for shape in call.shapes[1:])
    is_run = dims == [*range(dims[0], dims[-1] + 1)]
    first = dims[0] if is_run else 0
    if len(call.out) != len(call.shapes[0]) - len(dims) + rank:
        return None  # a mask: which elements are taken depends on its values
    others = [d for d in range(len(call.out)) if not first <= d < first + rank]
    rest = iter(others)
    reach: list[Reach] = [
        ALL if d in dims else next(rest) for d in range(len(call.shapes[0]))
    ]
    picked: list[list[Reach]] = [
        [first + rank - len(shape) + d for d in range(len(shape))]
        for shape in call.shapes[1:]
    ]
    return Picture("pick", [reach, *picked])


def moved(call: PicturedCall) -> Picture | None:
    """Return the picture of what moves or repeats elements: a copy, no view."""
    rank, before = len(call.out), len(call.shapes[0])
    reach: list[Reach] = [*range(rank)]
    if call.name == "flip":
        dims = call.dims("dims") if call.arguments["dims"] else []  # none flips none
        reach = [["flip", d] if d in dims else d for d in range(rank)]
    elif call.name == "repeat":
        reach = [["turn", d, 0] for d in range(rank - before, rank)]
    elif call.name == "roll":
        shifts, dims = call.arguments["shifts"], call.arguments.get("dims", ())
        if len(shifts) != len(dims) or len({*dims}) < len(dims):
            return None
        for dim, shift in zip(call.dims("dims"), shifts, strict=True):
            reach[dim] = ["turn", dim, shift]
    elif call.name == "constant_pad_nd":
        for at, start in enumerate(call.arguments["pad"][::2]):
            reach[rank - 1 - at] = ["shift", rank - 1 - at, start]
    return Picture("copy", [reach])


def attention(call: PicturedCall) -> Picture | None:
    """Return the picture of attention: a query reads all keys and values."""
    query, key, _, *masks = call.shapes
    n = len(query) - 2
    if len(call.out) != len(query) or [*key[:n]] != [*query[:n]]:
        return None
    batch: list[Reach] = [*range(n)]
    is_causal = bool(call.arguments.get("is_causal"))
    keys: Reach = ["upto", n] if is_causal else ALL
    reaches: list[list[Reach]] = [
        [*batch, n, ALL],
        [*batch, keys, ALL],
        [*batch, keys, n + 1],
    ]
    masked = [[*align(mask, call.out)[:-1], keys] for mask in masks[:1]]
    return Picture("attention", [*reaches, *masked])


def recurrent(call: PicturedCall) -> Picture | None:
    """Return the picture of a recurrent layer: a step knows the steps before it."""
    if call.arguments.get("reverse") or call.arguments.get("bidirectional"):
        return None
    reach: list[Reach] = [["upto", 0], 1, ALL]
    return Picture("recurrent", [reach, *[[] for _ in call.shapes[1:]]])


Family: TypeAlias = Callable[[PicturedCall], Picture | None]

BY_FAMILY: Final[Mapping[Family, str]] = {
    product: " ".join(PRODUCTS),
    matmul: "matmul",
    linear: "linear",
    reduction: "sum mean amax amin max min argmax argmin prod any all logsumexp var "
    "std var_mean std_mean linalg_vector_norm nansum median nanmedian mode kthvalue",
    line: "_softmax _log_softmax _safe_softmax sort argsort topk cumsum cumprod "
    "logcumsumexp cummax cummin",
    layer_norm: "native_layer_norm",
    convolution: "convolution",
    pooling: "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d "
    "avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d "
    "adaptive_max_pool3d",
    join: "cat stack",
    gather: "gather",
    index_select: "index_select",
    embedding: "embedding",
    index: "index",
    moved: "flip repeat roll constant_pad_nd clone tril triu",
    attention: "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    recurrent: "mkldnn_rnn_layer",
}
FAMILIES: Final = {n: f for f, names in BY_FAMILY.items() for n in names.split()}
"""The function that finds a picture, by the name of an operator or function."""


Field: TypeAlias = tuple[int, int, int]
"""``(step, low, bits)`` along one dimension: element ``i`` is computed from the indices
``low + i * step + b``, for each bit ``b`` of ``bits`` that is set."""


class Chain(NamedTuple):
    """How a tensor comes from the input of the first window before it.

    Attributes:
        first: The number of that input.
        window: The call of the newest window; -1 for the input itself.
        fields: For each dimension of a window.
    """

    first: int
    window: int
    fields: tuple[Field, ...]

    def contains(self, other: "Chain") -> bool:
        """Whether an element comes from all that it comes from in another chain."""
        pairs = zip(self.fields, other.fields, strict=False)
        return self.first == other.first and all(
            step == other_step and low <= at and not bits << (at - low) & ~own
            for (step, low, own), (other_step, at, bits) in pairs
        )

    def extend(self, window: int, reaches: Sequence[Any]) -> "Chain":
        """Return the chain of what a window makes, by its reaches."""
        fields = []
        for (step, low, bits), reach in zip(self.fields, reaches, strict=True):
            _, _, stride, padding, dilation, width = reach
            spread = 0
            for position in range(width):
                spread |= bits << position * dilation * step
            fields.append((step * stride, low - step * padding, spread))
        return Chain(self.first, window, tuple(fields))


def find_previous_windows(trace: "Trace") -> dict[int, int]:
    """Return the window before each window that has one, by the numbers of the calls.

    Between both are operators that keep the position of each element. Where several
    paths lead to an element, as around a residual block, the one counts that reads all
    that the others read; if none does, there is no window before.
    """
    signatures = trace.program.with_raised.signatures
    windows = [*map(find_windows, signatures)]
    if not any(windows):
        return {}
    columns = trace.columns
    tensors, starts = columns.tensor.tolist(), columns.first.tolist()
    calls = [*enumerate(columns.signature.tolist())]
    derived = {tensors[starts[call]] for call, number in calls if windows[number]}
    chains: dict[int, Chain] = {}
    previous: dict[int, int] = {}
    for call, number in calls:
        signature, reaches = signatures[number], windows[number]
        end = starts[call] + len(signature.inputs)
        given, made = tensors[starts[call] : end], tensors[end : starts[call + 1]]
        read = [n for n, tensor in enumerate(given) if tensor in derived]
        if read and not signature.op.startswith(("aten.new_", "aten.empty_like")):
            derived.update(made)
        if reaches:
            chain = chains.get(given[0]) or start(given[0], len(reaches))
            if len(chain.fields) != len(reaches):
                chain = start(given[0], len(reaches))
            if chain.window >= 0:
                previous[call] = chain.window
            found: Chain | None = chain.extend(call, reaches)
        else:
            found = keep(signature, given, read, chains)
        for tensor in made:
            chains.pop(tensor, None)
        if found:
            chains[made[0]] = found
    return previous


def find_windows(signature: Signature) -> Sequence[Any]:
    """Return the reach of each dimension of an operator's windows, if it has any."""
    is_window = "conv" in signature.op or "pool" in signature.op
    picture = find_picture(signature) if is_window else None
    reaches = picture.reaches[0] if picture and picture.reaches else ()
    named = [reach for reach in reaches if isinstance(reach, list)]
    return [reach for reach in named if reach[0] == "window"]


def start(tensor: int, n_dims: int) -> Chain:
    """Return the chain of the input of a first window: each element is itself."""
    return Chain(tensor, -1, ((1, 0, 1),) * n_dims)


def keep(
    signature: Signature,
    given: Sequence[int],
    read: Sequence[int],
    chains: Mapping[int, Chain],
) -> Chain | None:
    """Return the chain of what an operator makes that is no window, if it has one.

    Args:
        signature: Of the operator.
        given: Its tensors.
        read: Which of them come from the input of a window, or are it.
        chains: The chains of tensors.
    """
    _, name, overload = signature.op.split(".")[-3:]
    if "batch_norm" in name:
        read = [n for n in read if n == 0]
    elif not is_pointwise(name, overload):
        return None
    known = [chains[given[n]] for n in read if given[n] in chains]
    out = signature.outputs[0].shape
    if not known or any(signature.inputs[n].shape != out for n in read):
        return None
    n_dims = len(known[0].fields)
    found = [chains.get(given[n]) or start(given[n], n_dims) for n in read]
    found.sort(key=lambda chain: -chain.window)
    return next((one for one in found if all(map(one.contains, found))), None)
