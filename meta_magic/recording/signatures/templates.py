"""What torch's functions do, as far as it was learnt."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.signatures.allowed_values import Allowed
from meta_magic.recording.signatures.entries import Entry

if TYPE_CHECKING:
    from meta_magic.recording.identities.tensors import Seen

__all__ = ["Draw", "Operands", "Output", "Template"]

Draw: TypeAlias = tuple[int, torch.device | None, Sequence[int]]
"""A row that would draw from a generator: its index, the device whose generator that
would be, as planned, if it is not the CPU's, and the row's tensors, each an argument
or the complement (``~i``) of a tensor made."""


Output: TypeAlias = tuple[int, int, LiveGeometry, tuple[int, LiveGeometry] | None]
"""A tensor that is returned: which of those made, its storage, its geometry, and, if it
is a view of another one that was made on that, which and its geometry."""


class Operands:
    """The tensors among a function's arguments.

    Attributes:
        tensors: They themselves.
        seens: What is known of each; of one that was never seen its geometry alone.
        numbers: Their numbers; ``UNSEEN`` of one that was never seen.
    """

    __slots__ = ("numbers", "seens", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.seens: list[Seen] = []
        self.numbers: list[int] = []

    def are_two_apart(self) -> bool:
        """Whether they are two that were seen on different storages, as most are."""
        if len(self.seens) != 2:  # noqa: PLR2004
            return False
        (_, first, _), (_, second, _) = self.seens
        return first is not second and first is not None and second is not None


class Template:
    """What a function does when called with certain metadata.

    The words of its rows are picked from one list: the numbers of ``entries``, then
    place and module word, the last word of the first row's header and that of others',
    then the numbers of the arguments, then those of the tensors made.

    Attributes:
        entries: The signatures of its operators, each once.
        pick: Returns the words of its rows, out of that list.
        n_rows: Operators that it makes.
        random_rows: Those of them that would draw from a generator.
        first_reads: (argument, tensors made before) in the order of first reading:
            an argument that was never seen gets its number at that moment.
        n_storages: Storages that it makes.
        storages: For each tensor made, the index of a storage that the function made,
            or the complement (``~i``) of the argument whose storage it shares.
        deaths: Pairs (operators made before, storage) of the storages that it frees.
        outputs: Each tensor that it returns.
        container: ``tuple`` or ``list`` if it returns one, None for a lone tensor.
        fits: Whether tensors have the type, dtype, sizes and strides of those that the
            last call was given, and torch the same modes for them.
        allowed: What some arguments may hold, by their index: operators refuse others.
        kernel: Which kernel it is, if it is attention; else "".
        is_native: Whether it makes views alone. Those are cheap and autograd tells
            them from other tensors: torch makes them, only the recording is spared.
        is_same: Whether it runs no operator, and returns its first tensor.
        is_write: Whether it writes its first tensor, and returns nothing.
    """

    __slots__ = (
        "allowed",
        "container",
        "deaths",
        "entries",
        "first_reads",
        "fits",
        "is_native",
        "is_same",
        "is_write",
        "kernel",
        "n_rows",
        "n_storages",
        "outputs",
        "pick",
        "random_rows",
        "storages",
    )
    entries: tuple[Entry, ...]
    pick: Callable[[Sequence[int]], tuple[int, ...]]
    n_rows: int
    random_rows: tuple[Draw, ...]
    n_storages: int
    first_reads: tuple[tuple[int, int], ...]
    storages: tuple[int, ...]
    deaths: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    container: type | None
    allowed: tuple[tuple[int, Allowed], ...]
    kernel: str
    is_native: bool
    is_same: bool
    is_write: bool
    fits: Callable[..., bool]

    def __init__(self, fits: Callable[..., bool], *, is_same: bool = False) -> None:
        self.kernel = ""
        self.fits = fits
        self.is_same = is_same
        self.is_write = False
        if is_same:
            self.allowed, self.is_native = (), False
