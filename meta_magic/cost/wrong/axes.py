"""Which dimensions of a program's tensors are the same dimension.

A dimension is a tuple of *atoms*, each a number and a size, in memory order. A view
that merges two dimensions makes one of both; a view that splits one cuts an atom;
``permute`` moves them; what a reduction removes is gone. An operator that is not in
``STEPS`` works element by element or makes new atoms. So ``x.view(b, heads, t, d)`` of
``(b, t, heads, d)``, which runs for any sizes, is seen to keep no dimension whole. Read
``Axes.step`` and ``regroup`` first.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from meta_magic.cost.wrong.read_calls import Atom, Axis, Call, Mixed, Shape


def size_of(axis: Axis) -> int:
    """Return the size of a dimension."""
    return prod([size for _, size in axis])


class Axes:
    """Follows the dimensions of tensors from call to call.

    Attributes:
        of: The dimensions of each tensor, by its number.
        whole: For an atom that was cut out of another one, that one.
        channels: Atoms that are the channels of a convolution.
        stacked: Atoms that number stacked tensors.
    """

    def __init__(self) -> None:
        self.of: dict[int, tuple[Axis, ...]] = {}
        self.whole: dict[int, Atom] = {}
        self.channels: set[int] = set()
        self.stacked: set[Atom] = set()
        self._numbers = count()

    def make(self, size: int) -> Axis:
        """Return a dimension that is no other's."""
        return () if size == 1 else ((next(self._numbers), size),)

    def get(self, tensor: int, shape: Shape) -> tuple[Axis, ...]:
        """Return the dimensions of a tensor; new ones at its first sight."""
        axes = self.of.get(tensor)
        if axes is None or tuple(map(size_of, axes)) != shape:
            axes = self.of[tensor] = tuple(map(self.make, shape))
        return axes

    def set(self, tensor: int, shape: Shape, axes: Iterable[Axis]) -> None:
        """Set the dimensions of a tensor; new ones where the size is another."""
        given = (*axes, *[()] * len(shape))
        self.of[tensor] = tuple(
            axis if size_of(axis) == size else self.make(size)
            for axis, size in zip(given, shape, strict=False)
        )

    def step(self, call: Call) -> None:
        """Take a call: its results get their dimensions."""
        shapes = call.shapes
        given = call.axes = tuple(map(self.get, call.inputs, shapes))
        made = call.made_shapes
        if not made:
            return
        follow = STEPS.get(call.name)
        if follow is not None and given:
            found = follow(self, call, given)
            if found is not None:
                for tensor, shape in zip(call.outputs, made, strict=True):
                    self.set(tensor, shape, found)
                return
        for tensor, shape in zip(call.outputs, made, strict=True):
            self.set(tensor, shape, self._merge(given, shape) if given else ())

    def repeat(self, call: Call, before: Call) -> None:
        """Take a call that is like one before it, as the next turn of a loop."""
        call.axes, call.mixed = before.axes, before.mixed
        for tensor, other in zip(call.outputs, before.outputs, strict=True):
            self.of[tensor] = self.of[other]

    def _merge(self, given: Sequence[tuple[Axis, ...]], shape: Shape) -> list[Axis]:
        """Return the dimensions of a result that is computed element by element.

        Each is that of the operand that has it; of activations before parameters, which
        have fewer dimensions.
        """
        ranked = sorted(given, key=len, reverse=True)
        found: list[Axis] = []
        for at in range(-len(shape), 0):
            here = [axes[at] for axes in ranked if len(axes) >= -at]
            fits = all(size_of(axis) in {1, shape[at]} for axis in here)
            axis = next((a for a in here if a), ()) if fits else ()
            found.append(axis if size_of(axis) == shape[at] else self.make(shape[at]))
        return found


Given: TypeAlias = tuple[tuple[Axis, ...], ...]
Step: TypeAlias = Callable[[Axes, Call, Given], Iterable[Axis] | None]
"""Returns the dimensions of results; None if they are computed element by element."""


def follow_view(axes: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow a view of other sizes, and note what it deals out anew."""
    found, call.mixed = regroup(axes, given[0], call.made_shapes[0])
    return found


def follow_transpose(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``transpose``."""
    found = [*given[0]]
    if found:
        first, second = call.arguments["dim0"], call.arguments["dim1"]
        found[first], found[second] = found[second], found[first]
    return found


def follow_permute(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``permute``."""
    return [given[0][dim] for dim in call.arguments["dims"]]


def insert(axes: Iterable[Axis], dim: int, axis: Axis) -> list[Axis]:
    """Return dimensions with one more."""
    found = [*axes]
    found.insert(dim + len(found) + 1 if dim < 0 else dim, axis)
    return found


def follow_unsqueeze(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``unsqueeze``."""
    return insert(given[0], call.arguments["dim"], ())


def list_dims(value: Any, n: int) -> set[int]:
    """Return the dimensions that an argument names; all of them for None and ()."""
    if value is None or value == ():
        return {*range(n)}
    return {dim % max(n, 1) for dim in ((value,) if isinstance(value, int) else value)}


def follow_squeeze(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``squeeze``."""
    shape = call.shapes[0]
    dims = list_dims(call.arguments.get("dim"), len(shape))
    gone = {dim for dim in dims if dim < len(shape) and shape[dim] == 1}
    return [axis for dim, axis in enumerate(given[0]) if dim not in gone]


def follow_select(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``select`` and ``unbind``, which remove a dimension."""
    gone = call.arguments.get("dim", 0) % max(1, len(given[0]))
    return [axis for dim, axis in enumerate(given[0]) if dim != gone]


def follow_expand(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``expand``."""
    return (*[()] * (len(call.made_shapes[0]) - len(given[0])), *given[0])


def follow_reduction(_: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow what sums or selects over dimensions."""
    gone = list_dims(call.arguments.get("dim"), len(given[0]))
    is_kept = call.arguments.get("keepdim", False)
    pairs = [*enumerate(given[0])]
    return [() if dim in gone else a for dim, a in pairs if is_kept or dim not in gone]


def follow_product(_: Axes, __: Call, given: Given) -> Iterable[Axis]:
    """Follow a product of matrices."""
    left, right = given[-2:] if len(given) > 1 else (given[0], given[0])
    return [*left[:-1], right[-1]] if len(left) == len(right) > 1 else ()


def follow_cat(axes: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``cat``: equal parts lie one after the other."""
    made = call.made_shapes[0]
    dim = call.arguments.get("dim", 0) % max(1, len(made))
    found: list[Axis] = [()] * len(made)
    if len(given[0]) == len(made):
        found = [*given[0]]
    is_even = len({*call.shapes}) == 1 and len(given) > 1
    if is_even and made:
        found[dim] = (*axes.make(len(given)), *found[dim])
    elif made:
        found[dim] = axes.make(made[dim])
    return found


def follow_stack(axes: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow ``stack``."""
    number = axes.make(len(given))
    axes.stacked.update(number)
    return insert(given[0], call.arguments.get("dim", 0), number)


def follow_convolution(axes: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow a convolution, which keeps the batch alone."""
    found = [given[0][0], *map(axes.make, call.made_shapes[0][1:])]
    axes.channels.update(number for number, _ in found[1])
    return found


def follow_embedding(axes: Axes, call: Call, given: Given) -> Iterable[Axis]:
    """Follow the rows of a table."""
    return [*given[1], *map(axes.make, call.made_shapes[0][len(given[1]) :])]


def follow_attention(_: Axes, __: Call, given: Given) -> Iterable[Axis]:
    """Follow fused attention: queries, and the features of values."""
    return [*given[0][:-1], given[2][-1]]


def follow_same(_: Axes, __: Call, given: Given) -> Iterable[Axis]:
    """Follow what keeps all dimensions, though some become smaller."""
    return given[0]


def follow_recurrent(_: Axes, __: Call, given: Given) -> Iterable[Axis]:
    """Follow a fused recurrent layer."""
    return given[0][:2]


def list_steps() -> dict[str, Step]:
    """Return how dimensions are followed through each operator."""
    named: dict[Step, str] = {
        follow_view: "view unsafe_view reshape reshape_alias",
        follow_transpose: "transpose",
        follow_permute: "permute",
        follow_unsqueeze: "unsqueeze",
        follow_squeeze: "squeeze",
        follow_select: "select unbind",
        follow_expand: "expand",
        follow_reduction: "sum mean amax amin var std any all prod argmax argmin max "
        "min logsumexp norm linalg_vector_norm",
        follow_product: "mm bmm addmm baddbmm",
        follow_cat: "cat",
        follow_stack: "stack",
        follow_convolution: "convolution mkldnn_convolution",
        follow_embedding: "embedding",
        follow_attention: "scaled_dot_product_flash_attention_for_cpu "
        "scaled_dot_product_flash_attention scaled_dot_product_efficient_attention",
        follow_same: "slice split split_with_sizes unsafe_split topk sort cumsum",
        follow_recurrent: "mkldnn_rnn_layer",
    }
    steps = {name: step for step, names in named.items() for name in names.split()}
    return {**steps, "t": lambda _, __, given: given[0][::-1]}


STEPS: Final = MappingProxyType(list_steps())
"""How dimensions are followed through operators, by their names."""


def regroup(
    axes: Axes, given: Sequence[Axis], shape: Shape
) -> tuple[list[Axis], tuple[Mixed, ...]]:
    """Return the dimensions of a view, and those that it deals out anew.

    Both are read in memory order. A dimension of the view takes whole atoms, or cuts
    one; where neither comes out even, all up to the next common boundary are mixed.
    """
    pending = [atom for axis in given for atom in axis]
    if 0 in shape or size_of(tuple(pending)) != prod(shape):
        return [*map(axes.make, shape)], ()
    found: list[Axis] = []
    mixed: list[Mixed] = []
    sizes = [*shape]
    while sizes:
        size = sizes.pop(0)
        taken: list[Atom] = []
        have = 1
        while have < size and pending and size % (have * pending[0][1]) == 0:
            taken.append(pending.pop(0))
            have *= taken[-1][1]
        if have == size:
            found.append(tuple(taken))
            continue
        if not taken and pending[0][1] % size == 0:
            atom = pending.pop(0)
            cut = axes.make(size) + axes.make(atom[1] // size)
            for number, _ in cut:
                axes.whole[number] = axes.whole.get(atom[0], atom)
            found.append(cut[:1])
            pending[:0] = cut[1:]
            continue
        after = [size]
        while have != prod(after):
            if have < prod(after):
                taken.append(pending.pop(0))
                have *= taken[-1][1]
            else:
                after.append(sizes.pop(0))
        mixed.append(Mixed(tuple(taken), tuple(n for n in after if n != 1)))
        found += map(axes.make, after)
    return found, tuple(mixed)
