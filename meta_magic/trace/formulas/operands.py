"""The arguments of a call by name, as formulas read them: shapes, not tensors."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Final, TypeAlias

from meta_magic.trace.signature import Argument, Geometry, Signature, TensorArgument

Shape: TypeAlias = tuple[int, ...]


class Operands:
    """The arguments of a signature by their names in the operator's schema."""

    __slots__ = ("_arguments", "signature")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._arguments = dict(signature.arguments)

    def __contains__(self, name: str) -> bool:
        return self._arguments.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Return an argument; ``default`` if the call does not give it."""
        return self._arguments.get(name, default)

    def shape(self, *names: str) -> Shape:
        """Return the shape of the tensor argument with the first of some names."""
        for name in names:
            value = self._arguments.get(name)
            if isinstance(value, TensorArgument):
                return self.signature.inputs[value.index].shape
        raise LookupError(f"{self.signature.op} has no tensor {' or '.join(names)}")

    def shapes(self, name: str) -> list[Shape]:
        """Return the shapes of an argument that is a list of tensors, or a tensor."""
        value = self._arguments.get(name)
        items = value if isinstance(value, tuple) else (value,)
        inputs = self.signature.inputs
        return [inputs[i.index].shape for i in items if isinstance(i, TensorArgument)]

    @property
    def made(self) -> Shape:
        """Shape of the first output."""
        return self.signature.outputs[0].shape

    @property
    def largest(self) -> int:
        """Elements of the largest input or output."""
        tensors = (*self.signature.inputs, *self.signature.outputs)
        return max([prod(g.shape) for g in tensors], default=0)


Formula: TypeAlias = Callable[[Operands], int]
"""Returns the FLOPs of a call."""


def name_of(signature: Signature) -> str:
    """Return the name of an operator without its overload, such as ``aten.mm``."""
    namespace, _, rest = signature.op.partition(".")
    return f"{namespace}.{rest.partition('.')[0]}"


@lru_cache(maxsize=4096)
def short_name(op: str) -> str:
    """Return an operator's plain name: ``to_copy`` of ``aten._to_copy.default``."""
    return op.split(".")[1].removeprefix("_")


# What several parts of the package must know of operators. Names are short ones, but
# for those of COPIES.

EMPTY: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted"}
    | {"new_empty", "new_empty_strided"}
)
"""Operators that return uninitialized memory."""

VIEWS_IN_PLACE: Final = frozenset(
    {"detach_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_"}
    | {"swapaxes_", "swapdims_"}
)
"""Operators that change only the metadata of a tensor, not its storage."""

COPIES: Final = frozenset({"aten.clone.default", "aten._to_copy.default"})
"""Operators that return a copy of their tensor."""

SHAPE_ONLY: Final = frozenset(
    {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
    | {"randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones"}
    | {"new_full"}
)
"""Operators that take only the metadata of a tensor."""


def name_all(names: str) -> tuple[str, ...]:
    """Return the names of torch's operators from a text without ``aten``."""
    return tuple(f"aten.{name}" for name in names.split())


def of_all(names: str, formula: Formula) -> dict[str, Formula]:
    """Return a table with one formula for several operators; see ``name_all``."""
    return dict.fromkeys(name_all(names), formula)


def shape_of(value: Argument, tensors: Sequence[Geometry]) -> Any:
    """Return an argument with shapes in place of tensors, also in lists."""
    if isinstance(value, TensorArgument):
        return tensors[value.index].shape
    if isinstance(value, tuple):
        return tuple(shape_of(item, tensors) for item in value)
    return value
