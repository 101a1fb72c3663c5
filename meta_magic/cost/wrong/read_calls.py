"""An operator call as rules read it, and the dimensions of its tensors.

Read :class:`Call` first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from meta_magic.trace.signature import CallSite, Signature

Atom: TypeAlias = tuple[int, int]
"""The number of an atom, and its size."""

Axis: TypeAlias = tuple[Atom, ...]
"""A dimension; () for one of size 1."""

Shape: TypeAlias = tuple[int, ...]


class Mixed(NamedTuple):
    """Dimensions that a view deals out anew: none of them is whole afterwards.

    Attributes:
        before: Their atoms.
        after: Their sizes after it, without ones.
    """

    before: Axis
    after: Shape


@dataclass(slots=True, eq=False)
class Call:
    """An operator call.

    Attributes:
        index: Its number.
        signature: What it shares with calls like it.
        name: The operator's name, such as ``softmax`` for ``aten._softmax.default``.
        arguments: Its arguments by name; see ``Signature``.
        site: Its call site; None for none.
        function: The last part of the torch function that made it; "" for none.
        phase: What the program was doing.
        inputs: The number of each tensor that it reads.
        outputs: The number of each tensor that it returns.
        module_call: The number of the module call that it ran in; None for none.
        is_own: Whether the user's own code made it.
        axes: The dimensions of ``inputs``; () outside of the forward.
        mixed: Dimensions that it deals out anew.
    """

    index: int
    signature: "Signature"
    name: str
    arguments: Mapping[str, Any]
    site: "CallSite | None"
    function: str
    phase: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    module_call: int | None
    is_own: bool
    axes: tuple[tuple[Axis, ...], ...] = ()
    mixed: tuple[Mixed, ...] = ()

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each tensor that it reads."""
        return [geometry.shape for geometry in self.signature.inputs]

    @property
    def made_shapes(self) -> list[Shape]:
        """The shape of each tensor that it returns."""
        return [geometry.shape for geometry in self.signature.outputs]

    @property
    def line(self) -> int | None:
        """The line of the cell."""
        return None if self.site is None else self.site.line

    @property
    def label(self) -> str:
        """The name of the function, or else of the operator."""
        return self.function or self.name
