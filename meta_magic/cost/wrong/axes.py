"""Which dimensions of a program's tensors are the same dimension.

A dimension is a tuple of *atoms*, each a number and a size, in memory order. A view
that merges two dimensions makes one of both; a view that splits one cuts an atom;
``permute`` moves them; what a reduction removes is gone. An operator that is not in
``STEPS`` works element by element or makes new atoms. So ``x.view(b, heads, t, d)`` of
``(b, t, heads, d)``, which runs for any sizes, is seen to keep no dimension whole. Read
``Axes.step`` and ``regroup`` first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.cost.wrong.read_calls import Atom, Axis, Mixed, Shape
from meta_magic.cost.wrong.read_calls import Axes as Given
from meta_magic.trace.signature import short_name

if TYPE_CHECKING:
    from meta_magic.trace.signature import Signature


def size_of(axis: Axis) -> int:
    """Return the size of a dimension; of one atom its own, which may have a name."""
    return axis[0][1] if len(axis) == 1 else prod([size for _, size in axis])


class Axes:
    """Follows the dimensions of tensors from call to call.

    Attributes:
        of: The dimensions of each tensor, by its number.
        read: The dimensions of what each call reads, by the call's number.
        mixed: What a call deals out anew, by the call's number.
        whole: For an atom that was cut out of another one, that one.
        channels: Atoms that are the channels of a convolution.
        stacked: Atoms that number stacked tensors.
        constant: Atoms of tensors of one number, as a first state of zeros: what is
            computed with them has the dimensions of the other operand.
    """

    def __init__(self, signatures: "Sequence[Signature]" = ()) -> None:
        self.of: dict[int, tuple[Axis, ...]] = {}
        self.read: dict[int, Given] = {}
        self.mixed: dict[int, tuple[Mixed, ...]] = {}
        self.whole: dict[int, Atom] = {}
        self.channels: set[int] = set()
        self.stacked: set[Atom] = set()
        self.constant: set[Atom] = set()
        self._shapes: dict[int, Shape] = {}
        self._signatures = [(short_name(one.op), one) for one in signatures]
        self._numbers = count()

    def make(self, size: int) -> Axis:
        """Return a dimension that is no other's."""
        return () if size == 1 else ((next(self._numbers), size),)

    def step(
        self, row: int, number: int, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Take a call of a signature: its results get their dimensions."""
        name, signature = self._signatures[number]
        of, seen = self.of, self._shapes
        for tensor, geometry in zip(inputs, signature.inputs, strict=True):
            if seen.get(tensor) != geometry.shape:
                of[tensor] = tuple(map(self.make, geometry.shape))
                seen[tensor] = geometry.shape
        given = self.read[row] = tuple([of[tensor] for tensor in inputs])
        found, mixed = follow(self, name, signature, given)
        if mixed:
            self.mixed[row] = mixed
        if not inputs and name in {"zeros", "ones", "full"}:
            self.constant.update(atom for axis in found[0] for atom in axis)
        for tensor, geometry, axes in zip(
            outputs, signature.outputs, found, strict=True
        ):
            of[tensor], seen[tensor] = tuple(axes), geometry.shape


def follow(
    axes: Axes, name: str, signature: "Signature", given: Given
) -> tuple[list[Sequence[Axis]], tuple[Mixed, ...]]:
    """Return the dimensions of each result, and what a view deals out anew."""
    shapes = [one.shape for one in signature.outputs]
    step = STEPS.get(name) if given and shapes else None
    mixed: tuple[Mixed, ...] = ()
    if step is follow_view:
        axis, mixed = regroup(axes, given[0], shapes[0])
        return [axis for _ in shapes], mixed
    made = None if step is None else step(axes, signature, given)
    if made is None:
        return [merge(axes, given, shape) for shape in shapes], ()
    return [[*fit(axes, made, shape)] for shape in shapes], ()


def fit(axes: Axes, made: Iterable[Axis], shape: Shape) -> Iterator[Axis]:
    """Yield the dimensions of a result; new ones where the size is another."""
    for axis, size in zip((*made, *[()] * len(shape)), shape, strict=False):
        yield axis if size_of(axis) == size else axes.make(size)


def merge(axes: Axes, given: Given, shape: Shape) -> list[Axis]:
    """Return the dimensions of a result that is computed element by element.

    Each is of the operand that has it; parameters, with fewer dimensions, come last,
    and constants after them.
    """
    if len(given) == 1 and len(given[0]) == len(shape):
        return [*fit(axes, given[0], shape)]
    constant = axes.constant
    ranked = sorted(given, key=len, reverse=True)
    found: list[Axis] = []
    for at in range(-len(shape), 0):
        here = [dims[at] for dims in ranked if len(dims) >= -at]
        fits = all(size_of(axis) in {1, shape[at]} for axis in here)
        axis = next((a for a in here if a), ()) if fits else ()
        if constant and not constant.isdisjoint(axis):
            others = (a for a in here if a and constant.isdisjoint(a))
            axis = next(others, axis)
        found.append(axis if size_of(axis) == shape[at] else axes.make(shape[at]))
    return found


FollowAxes: TypeAlias = "Callable[[Axes, Signature, Given], Iterable[Axis] | None]"
"""Returns the dimensions of results; None if they are computed element by element."""


def follow_view(axes: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow a view of other sizes."""
    return regroup(axes, given[0], one.outputs[0].shape)[0]


def follow_transpose(_: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``transpose``."""
    found = [*given[0]]
    if found:
        first, second = read(one, "dim0"), read(one, "dim1")
        found[first], found[second] = found[second], found[first]
    return found


def read(one: "Signature", name: str, default: Any = None) -> Any:
    """Return an argument of a signature."""
    return dict(one.arguments).get(name, default)


def insert(axes: Iterable[Axis], dim: int, axis: Axis) -> list[Axis]:
    """Return dimensions with one more."""
    found = [*axes]
    found.insert(dim + len(found) + 1 if dim < 0 else dim, axis)
    return found


def list_dims(value: Any, n: int) -> set[int]:
    """Return the dimensions that an argument names; all of them for None and ()."""
    if value is None or value == ():
        return {*range(n)}
    return {dim % max(n, 1) for dim in ((value,) if isinstance(value, int) else value)}


def follow_squeeze(_: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``squeeze``."""
    shape = one.inputs[0].shape
    dims = list_dims(read(one, "dim"), len(shape))
    gone = {dim for dim in dims if dim < len(shape) and shape[dim] == 1}
    return [axis for dim, axis in enumerate(given[0]) if dim not in gone]


def follow_select(_: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``select`` and ``unbind``, which remove a dimension."""
    gone = read(one, "dim", 0) % max(1, len(given[0]))
    return [axis for dim, axis in enumerate(given[0]) if dim != gone]


def follow_expand(_: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``expand``."""
    return (*[()] * (len(one.outputs[0].shape) - len(given[0])), *given[0])


def follow_reduction(_: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow what sums or selects over dimensions."""
    gone = list_dims(read(one, "dim"), len(given[0]))
    is_kept = read(one, "keepdim")
    pairs = [*enumerate(given[0])]
    return [() if dim in gone else a for dim, a in pairs if is_kept or dim not in gone]


def follow_product(_: Axes, __: "Signature", given: Given) -> Iterable[Axis]:
    """Follow a product of matrices."""
    left, right = given[-2:] if len(given) > 1 else (given[0], given[0])
    return [*left[:-1], right[-1]] if len(left) == len(right) > 1 else ()


def follow_cat(axes: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``cat``: equal parts lie one after the other."""
    made = one.outputs[0].shape
    dim = read(one, "dim", 0) % max(1, len(made))
    found: list[Axis] = [()] * len(made)
    if len(given[0]) == len(made):
        found = [*given[0]]
    is_even = len({part.shape for part in one.inputs}) == 1 and len(given) > 1
    if is_even and made:
        found[dim] = (*axes.make(len(given)), *found[dim])
    elif made:
        found[dim] = axes.make(made[dim])
    return found


def follow_stack(axes: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow ``stack``."""
    number = axes.make(len(given))
    axes.stacked.update(number)
    return insert(given[0], read(one, "dim", 0), number)


def follow_convolution(axes: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow a convolution, which keeps the batch alone."""
    found = [given[0][0], *map(axes.make, one.outputs[0].shape[1:])]
    axes.channels.update(number for number, _ in found[1])
    return found


def follow_embedding(axes: Axes, one: "Signature", given: Given) -> Iterable[Axis]:
    """Follow the rows of a table."""
    return [*given[1], *map(axes.make, one.outputs[0].shape[len(given[1]) :])]


def follow_attention(_: Axes, __: "Signature", given: Given) -> Iterable[Axis]:
    """Follow fused attention: queries, and the features of values."""
    return [*given[0][:-1], given[2][-1]]


NAMED: Final[Sequence[tuple[str, FollowAxes]]] = (
    ("view unsafe_view reshape reshape_alias", follow_view),
    ("transpose", follow_transpose),
    ("t", lambda _, __, given: given[0][::-1]),
    ("permute", lambda _, one, given: [given[0][dim] for dim in read(one, "dims")]),
    ("unsqueeze", lambda _, one, given: insert(given[0], read(one, "dim"), ())),
    ("squeeze", follow_squeeze),
    ("select unbind", follow_select),
    ("expand", follow_expand),
    ("sum mean amax amin var std any all prod argmax argmin max min", follow_reduction),
    ("logsumexp norm linalg_vector_norm", follow_reduction),
    ("mm bmm addmm baddbmm", follow_product),
    ("cat", follow_cat),
    ("stack", follow_stack),
    ("convolution mkldnn_convolution", follow_convolution),
    ("embedding", follow_embedding),
    ("scaled_dot_product_flash_attention_for_cpu", follow_attention),
    ("scaled_dot_product_flash_attention", follow_attention),
    ("scaled_dot_product_efficient_attention", follow_attention),
    (  # all dimensions stay, though some become smaller
        "slice split split_with_sizes unsafe_split topk sort cumsum",
        lambda _, __, given: given[0],
    ),
    ("mkldnn_rnn_layer", lambda _, __, given: given[0][:2]),
)
STEPS: Final = {name: step for names, step in NAMED for name in names.split()}
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
        if pending and pending[0][1] == size:
            found.append((pending.pop(0),))
            continue
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
