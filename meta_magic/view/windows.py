"""Which convolution or pooling comes before another one, so that pictures go on.

An element of a second convolution is computed from a window of the elements of the
first, and each of them from a window of the image. Read :func:`find_previous_windows`
first.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from meta_magic.trace.signature import Signature
from meta_magic.view.pictures import find_picture, is_pointwise

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

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
