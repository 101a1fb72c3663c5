"""What a recording must know of other libraries: a ``Library`` record for each.

The function mode and ``init="reset"`` ask the tables at the end. To support a function
of another library, write its record, add it to ``LIBRARIES``, and a test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch

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
        find_writers: Returns a module, the names of its functions that take a
            dictionary of tensors and lay it out for a file, and of those that take
            what was laid out, and a path if they write a file; None if the module
            cannot be imported.
        adopted: By torch's function, a function that makes a tensor of the library's
            memory.
        initialize: Names of the methods by which its models initialize a submodule;
            ``init="reset"`` calls them.
    """

    make_real: frozenset[str] = frozenset()
    reported_device: frozenset[str] = frozenset()
    find_writers: Callable[[], tuple[Any, Sequence[str], Sequence[str]] | None] = (
        lambda: None
    )
    adopted: Mapping[Any, Adopt] = field(default_factory=dict)
    initialize: tuple[str, ...] = ()


TRANSFORMERS: Final = Library(
    # Makes a tensor and reads its device: on meta it skips all initialization.
    make_real=frozenset({"get_torch_context_manager_or_global_device"}),
    # Chooses a dtype by the device, for its kernels.
    reported_device=frozenset({"grouped_mm_experts_forward"}),
    # Without it a reset would only call the layers' ``reset_parameters``, and report
    # other parameters as uninitialized.
    initialize=("_init_weights",),
)

WRITERS: Final = ("_flatten_as_ptr", "_flatten")
"""The first is of safetensors 0.8 and later."""


def adopt_storage(args: Args, kwargs: Kwargs) -> Tensor | None:
    """Return the tensor of a storage; None if ``asarray`` was given something else."""
    if not args or type(args[0]) is not torch.UntypedStorage:
        return None
    with DisableTorchDispatch():
        return torch.asarray(args[0], **{**kwargs, "device": args[0].device})


@cache
def find_writers() -> tuple[Any, Sequence[str], Sequence[str]] | None:
    """Return the functions that pass addresses of tensors to the library's Rust code.

    It is imported here (1 ms): a cell may be the first to do so, and others import
    ``save_file`` by name.
    """
    try:
        import safetensors.torch as module  # noqa: PLC0415  if it is there at all
    except ImportError:
        return None
    lay_out = [name for name in WRITERS if hasattr(module, name)]
    return module, lay_out, ("serialize", "serialize_file")


SAFETENSORS: Final = Library(
    adopted={torch.asarray: adopt_storage}, find_writers=find_writers
)

LIBRARIES: Final = (TRANSFORMERS, SAFETENSORS)

MAKE_REAL: Final = frozenset[str]().union(*(it.make_real for it in LIBRARIES))
"""Names of the functions in which factories make real tensors."""

REPORTED_DEVICE: Final = frozenset[str]().union(
    *(it.reported_device for it in LIBRARIES)
)
"""Functions in which ``x.device`` is the device whose kernels are recorded."""

ADOPTED: Final[dict[Any, Adopt]] = {
    function: adopt for it in LIBRARIES for function, adopt in it.adopted.items()
}
"""By torch's function: makes a tensor of memory that a library made."""

FIND_WRITERS: Final = tuple(it.find_writers for it in LIBRARIES)
"""Return the functions by which libraries write tensors to files."""

INITIALIZE: Final = tuple(name for it in LIBRARIES for name in it.initialize)
"""Names of the methods by which models initialize each of their submodules."""
