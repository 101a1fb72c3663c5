"""What a recording must know of a library."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from meta_magic.recording.signatures.entries import Args, Kwargs

Adopt: TypeAlias = Callable[[Args, Kwargs], Tensor | None]
"""Takes the arguments of a function of torch; returns a real tensor, to be put on the
device of the cell, or None to call torch's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The functions of one library that get another answer than torch would give.

    Functions are known by the name of their code: the library need not be imported, and
    copies of its code are known, too.

    Attributes:
        make_real: Names of functions in which factories make real tensors, because the
            function checks the device of the result.
        reported_device: Names of functions to which a tensor's ``device`` is the device
            whose kernels are recorded, because they choose kernels by it.
        find_writers: Returns a module, and the names of its functions that take a
            dictionary of tensors and lay it out for a file; None if the module cannot
            be imported.
        adopted: By torch's function, a function that makes a tensor of the library's
            memory.
        initialize: Names of the methods by which its models initialize a submodule;
            ``init="reset"`` calls them.
    """

    make_real: frozenset[str] = frozenset()
    reported_device: frozenset[str] = frozenset()
    find_writers: Callable[[], tuple[Any, Sequence[str]] | None] = lambda: None
    adopted: Mapping[Any, Adopt] = field(default_factory=dict)
    initialize: tuple[str, ...] = ()
