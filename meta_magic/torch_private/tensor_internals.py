"""What tensors, storages and generators are below their public faces.

``attrgetter`` where a call of a Python function would be felt: the recorder asks for
addresses several times for each operator.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Generator, Tensor, TypedStorage, UntypedStorage

# Without it a materialized parameter is a new object, and an optimizer keeps the old.
from torch._C import _swap_tensor_impl as swap_tensor_impl

# Without it what a call is given is compared one attribute after the other.
from torch._C._dynamo.guards import TensorGuards

# Without it a convolution's output does not have the strides of any device.
from torch._prims_common import suggest_memory_format

# Without it a real tensor could not be lifted to meta as FakeTensorMode does it.
from torch._subclasses.meta_utils import MetaConverter

from meta_magic.torch_private.interrupts import unbroken

__all__ = [
    "TAKES_DATA",
    "MetaConverter",
    "address_of_generator",
    "address_of_storage",
    "base_of",
    "count_owners",
    "is_counted_with",
    "is_on_meta",
    "is_view",
    "is_zero_tensor",
    "make_guard",
    "negate_lazily",
    "number_counters",
    "parse_to",
    "suggest_memory_format",
    "swap_tensor_impl",
    "unravel_below",
    "untyped_of",
    "version_of",
]

address_of_storage: Final = attrgetter("_cdata")
"""Return the address of torch's storage object, unique while it lives. Without it
nobody knows which tensors of a recording share memory: on meta ``data_ptr()`` is 0."""

TAKES_DATA: Final[Any] = torch._has_compatible_shallow_copy_type
"""What modules ask before ``parameter.data = other``. Without it one that was built on
meta by name, or under ``inference_mode``, has other parameters after ``to_empty``."""

version_of: Final = attrgetter("_version")
"""Return how often a tensor was written in place. Without it a tensor that was changed
outside of any recording is replayed with its old values."""

is_on_meta: Final[Callable[[Tensor], bool]] = vars(torch._C.TensorBase)[
    "is_meta"
].__get__
"""Return whether a tensor is on meta. Without it the code of a tensor's own class runs,
and may raise, after a module was made real."""

parse_to: Final[Callable[..., Any]] = torch._C._nn._parse_to
"""Return device, dtype, ``non_blocking`` and memory format of what ``.to`` was given;
without it code of our own would tell its arguments apart."""


def address_of_generator(generator: Generator) -> int:
    """Return the address of torch's generator; an operator gets another wrapper.

    Without it a generator of the user's own is another one at each draw.
    """
    address: int = generator._cdata  # type: ignore[attr-defined]  # not in its stub
    return address


def count_owners(address: int) -> int:
    """Return how many tensors lie on the storage of an address, if that lives.

    Without it nobody would know when to look for a tensor that another one does not
    count the writes of.
    """
    # One more is the Python object of the storage itself.
    n_owners: int = torch._C._storage_Use_Count(address) - 1
    return n_owners


def is_counted_with(tensor: Tensor, other: Tensor) -> bool:
    """Whether a write of one tensor counts as one of another, too.

    Without what puts the count back, a tensor that was made by ``.data`` could not be
    told from a view, if both were written as often.
    """
    before = version_of(other)
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
        torch.autograd.graph.increment_version(tensor)
        return bool(version_of(other) != before)


@unbroken
def number_counters(tensors: Sequence[Tensor]) -> list[int]:
    """Return a number for each tensor, the same for those that count writes together.

    Each is given a count of its own for a moment, and then its former one. Without it
    all pairs of a model's parameters would have to be compared.
    """
    before = tuple(map(version_of, tensors))
    set_versions = torch._C._autograd._unsafe_set_version_counter
    set_versions(tuple(tensors), tuple(range(len(tensors))))
    numbers = [*map(version_of, tensors)]
    set_versions(tuple(tensors), before)
    return numbers


base_of: Final = attrgetter("_base")
"""Return what autograd takes a tensor for a view of, or None. Without it a linear layer
of three dimensions is never served: its result is a view."""


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes a tensor for a view.

    Without it one could be served as a new tensor, or autocast keep a copy of it.
    """
    return tensor._is_view()


def is_zero_tensor(tensor: Tensor) -> bool:
    """Whether a tensor stands for zeros without memory; one such is not served."""
    return tensor._is_zerotensor()


def make_guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return what says whether others are like some tensors, in type and metadata.

    In dtype, device, sizes, strides and ``requires_grad``, and in what torch would do
    of them: not those that are lazily conjugated, nor within a transform. It holds
    none of them. Where one of them stands again, it looks at the first place alone.
    """
    ids = [*map(id, tensors)]
    firsts = [index for index, one in enumerate(ids) if ids.index(one) == index]
    guards = TensorGuards(
        *[tensors[index] for index in firsts],
        dynamic_dims_sizes=None,
        dynamic_dims_strides=None,
    )
    check: Callable[..., bool] = guards.check
    if len(firsts) == len(ids):
        return check
    return lambda *others: check(*[others[index] for index in firsts])  # else it fails


def untyped_of(storage: UntypedStorage | TypedStorage) -> UntypedStorage:
    """Return the bytes of a storage; without it torch warns of some that are read."""
    return storage if isinstance(storage, UntypedStorage) else storage._untyped_storage


def unravel_below(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Do what ``torch.unravel_index`` does of tensors that no mode is asked about.

    Without it that makes constants of the shape which no mode sees.
    """
    return torch.functional._unravel_index(indices, shape).unbind(-1)


def negate_lazily(tensor: Tensor) -> Tensor:
    """Return a view whose negation is still to be done; without it none is replayed."""
    return torch._neg_view(tensor)
