"""Which element lies where: its index, its number row by row, its address in memory."""

from collections.abc import Sequence
from itertools import product
from math import prod

from meta_magic.teach.lines import Shape
from meta_magic.trace.calls import TensorMetadata


def describe_address(index: Sequence[int], tensor: TensorMetadata) -> str:
    """Return the way from an index to an address, as a sentence without its end."""
    steps = zip(index, tensor.stride or (), strict=True)
    terms = [f"{i}·{step}" for i, step in steps]
    first = tensor.storage_offset or 0
    start = f"It begins at {first}. " if first else ""
    path = " + ".join([*([str(first)] * bool(first)), *terms])
    return f"{start}The strides lead to {path} = {to_address(index, tensor)}"


def describe_index(name: str, tensor: TensorMetadata, number: int) -> str:
    """Return which element of a variable has a number, row by row."""
    if not name.isidentifier() or len(tensor.shape) < 2:  # noqa: PLR2004
        return f"number {number} of {name}"
    steps = [prod(tensor.shape[dim + 1 :]) for dim in range(len(tensor.shape))]
    index = [number // s % n for s, n in zip(steps, tensor.shape, strict=True)]
    at = f"{name}[{', '.join(map(str, index))}]"
    if to_address(index, tensor) - (tensor.storage_offset or 0) != number:
        terms = " + ".join(f"{i}·{step}" for i, step in zip(index, steps, strict=True))
        return f"{at}, number {terms} = {number} of {name}"
    return f"{at}, number {number} of {name}"


def to_number(index: Sequence[int], shape: Shape) -> int:
    """Return the number of an element, row by row."""
    number = 0
    for i, size in zip(index, shape, strict=True):
        number = number * size + i
    return number


def choose_element(given: TensorMetadata, made: TensorMetadata) -> tuple[Shape, int]:
    """Return an index of a view, and the number there, which counts the input.

    An index at which reading row by row gives another number, if there is one.
    """
    small = product(*(range(min(size, 2)) for size in made.shape))
    found: tuple[Shape, int] | None = None
    for index in sorted(small, key=lambda i: (sum(i), *(-n for n in i))):
        is_order = made.storage_id != given.storage_id
        rows = to_number(index, made.shape)
        number = rows
        if not is_order:
            number = to_number(find_index(to_address(index, made), given), given.shape)
        if sum(index) and (found is None or number != rows):
            found = (index, number)
            if number != rows:
                return found
    return found or ((0,) * len(made.shape), 0)


def find_index(address: int, tensor: TensorMetadata) -> Shape:
    """Return the index of the element that lies at an address."""
    rest, index = address - (tensor.storage_offset or 0), [0] * len(tensor.shape)
    stride = tensor.stride or ()
    for dim in sorted(range(len(index)), key=lambda d: -stride[d]):
        if stride[dim]:
            index[dim] = min(rest // stride[dim], tensor.shape[dim] - 1)
            rest -= index[dim] * stride[dim]
    return tuple(index)


def to_address(index: Sequence[int], tensor: TensorMetadata) -> int:
    """Return where an element lies in memory, counted in elements."""
    steps = zip(index, tensor.stride or (), strict=True)
    return (tensor.storage_offset or 0) + sum(i * step for i, step in steps)
