"""What ``materialize`` did: a record of each tensor, and the text that is printed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch

from meta_magic.trace.signature import CPU
from meta_magic.trace.units import format_bytes

# Values of ``filled_by`` besides the names of ``init=``; their attribute in
# FilledTensor explains them.
UNINITIALIZED: Final = "uninitialized"
DRAWN_OTHERWISE: Final = "drawn otherwise"
KEPT: Final = "kept"
LEFT: Final = "left on meta"

WHY_OTHERWISE: Final = (
    "random numbers that the cell draws with a GPU's generator; the replay drew "
    "others, with the CPU's"
)

# The sources of content that a report lists first.
FIRST: Final = ("replay", "checkpoint", "reset")

# Kinds of tensors that are only used with a module, and how the report counts them.
COMPANIONS: Final = {
    "state": "of optimizers",
    "gradient": "gradients",
    "alias": "in the same memory",
}

MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledTensor:
    """One tensor of the module, or one that is used with it.

    Attributes:
        name: Name as ``state_dict`` keys it.
        kind: ``parameter``, ``buffer``, ``attribute``, ``state`` of an optimizer that
            holds the module's parameters (or its schedulers and scalers), ``gradient``,
            or ``alias``, of another tensor in the memory of one of these.
        filled_by: The source of its content: the ``init=`` that made it,
            ``checkpoint`` for a path or a state dict, ``uninitialized`` if nothing did,
            ``drawn otherwise`` for random numbers that the cell draws by the generator
            of an accelerator, where a replay draws others; ``kept`` if it was real
            already; ``left on meta`` if it could not be made real.
        shape: Size of each dimension.
        dtype: Element type.
        tied_to: Name of the tensor on whose storage it lies, if that came first.
        device: Where it is now.

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> materialize(layer).tensors[0].filled_by
        'replay'
    """

    name: str
    kind: str
    filled_by: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    tied_to: str | None
    device: torch.device = CPU

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeReport:
    """What :func:`meta_magic.materialize` did.

    Attributes:
        module: Class name of the module, or of another object that was made real.
        device: Where its content was made.
        tensors: All of its tensors.
        nbytes: Bytes of the storages that were made.
        peak_nbytes: The most bytes that were held at any moment, as planned.
        n_operators: Recorded operators that ran again.
        seconds: Wall time; not compared.
        notes: Notes and caveats.
        on_meta: What else is still on meta, as code with the caller's variables.

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> materialize(layer).names("replay")
        ('weight', 'bias')
    """

    module: str
    device: torch.device
    tensors: tuple[FilledTensor, ...]
    nbytes: int
    peak_nbytes: int
    n_operators: int
    seconds: float = field(compare=False)
    notes: tuple[str, ...] = ()
    on_meta: tuple[str, ...] = ()

    @property
    def uninitialized(self) -> tuple[str, ...]:
        """Names of the tensors that hold whatever was in memory before."""
        return self.names(UNINITIALIZED)

    @property
    def left(self) -> tuple[str, ...]:
        """Names of the tensors that are used with the module, and are on meta still."""
        return self.names(LEFT)

    @property
    def drawn_otherwise(self) -> tuple[str, ...]:
        """Names of the tensors with other random numbers than the cell draws."""
        return self.names(DRAWN_OTHERWISE)

    @property
    def places(self) -> str:
        """The devices of the tensors now, as text."""
        made = [str(t.device) for t in self.tensors if t.filled_by not in (KEPT, LEFT)]
        return " and ".join(dict.fromkeys(made)) or str(self.device)

    @property
    def ties(self) -> tuple[tuple[str, str], ...]:
        """(name, name of the first on the same storage) for all tied tensors."""
        return tuple((t.name, t.tied_to) for t in self.tensors if t.tied_to is not None)

    def names(self, filled_by: str) -> tuple[str, ...]:
        """Return the names of the tensors with content from ``filled_by``."""
        return tuple(t.name for t in self.tensors if t.filled_by == filled_by)

    def __str__(self) -> str:
        made = [t for t in self.tensors if t.filled_by not in (KEPT, LEFT)]
        red = (UNINITIALIZED, DRAWN_OTHERWISE)
        others = (t.filled_by for t in made if t.filled_by not in red)
        where = f"{self.module} on {self.places}: {len(made):,} tensors"
        lines = [f"{where}, {format_bytes(self.nbytes)}, in {self.seconds:.2f} s"]
        for filled_by in dict.fromkeys((*FIRST, *others, KEPT)):
            lines += self._list(filled_by)
        ties = [t.name for t in made if t.tied_to and t.kind not in COMPANIONS]
        if ties:
            lines.append(f"  ties kept: {format_names(ties)}")
        if self.uninitialized:
            lines.append(f"  UNINITIALIZED: {format_names(self.uninitialized)}")
        if self.drawn_otherwise:
            drawn = format_names(self.drawn_otherwise)
            lines.append(f"  DRAWN OTHERWISE: {drawn}: {WHY_OTHERWISE}")
        if self.left:
            lines.append(f"  LEFT ON META: {format_names(self.left)}")
        lines += (f"  {note}" for note in self.notes)
        if self.on_meta:
            lines.append(f"  {format_on_meta(self.on_meta)}")
        return "\n".join(lines)

    def _list(self, filled_by: str) -> Iterator[str]:
        """Yield the lines for one source: the module's own tensors, then companions."""
        filled = [t for t in self.tensors if t.filled_by == filled_by]
        own = [t.name for t in filled if t.kind not in COMPANIONS]
        others = Counter(t.kind for t in filled if t.kind in COMPANIONS)
        if own:
            yield f"  {filled_by}: {format_names(own)}"
        if others:
            counted = (f"{n:,} {COMPANIONS[kind]}" for kind, n in others.items())
            yield f"  {filled_by}, with it: {', '.join(counted)}"


def format_on_meta(names: Sequence[str]) -> str:
    """Return the line that names what is still on meta, and how to make it real."""
    return (
        f"still on meta: {format_names(names)}; mm.materialize(...) takes any of them, "
        "and %meta materialize --all takes all"
    )


def format_names(names: Sequence[str]) -> str:
    """Return how many names there are, and the first few."""
    more = ", ..." if len(names) > MAX_NAMES else ""
    return f"{len(names):,} ({', '.join(names[:MAX_NAMES])}{more})"
