"""Tensors, storages, generators and autograd below their public interface.

Addresses, write counts, sparse parts, pickling, the text of a tensor; then autograd's
running node, the hooks and the graph of a tensor. ``attrgetter`` is used because a
Python function would be too slow: the recorder reads addresses several times for each
operator. Each comment says what breaks without the names below it.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

import torch
from torch import Generator, Tensor, TypedStorage, UntypedStorage, _tensor_str
from torch._prims_common import suggest_memory_format as memory_format
from torch._subclasses import fake_tensor, meta_utils
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as keeping_version
from torch.utils import checkpoint

from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    python_dispatch,
)

# A DTensor's shard cannot be found: the class names the tensors that it wraps.
is_wrapper: Final[Callable[[object], bool]] = (
    python_dispatch.is_traceable_wrapper_subclass
)

# A materialized parameter is a new object, and an optimizer keeps the old one.
swap_tensor_impl = torch._C._swap_tensor_impl

# Below an inference tensor that gets the data of a plain one, on meta; a recording
# replaces the method itself.
make_keyed: Final[Callable[..., Tensor]] = partial(Tensor._make_subclass, Tensor)

# A convolution's output does not have the strides of any device.
suggest_memory_format = memory_format

# A real tensor cannot be captured as FakeTensorMode does it.
MetaConverter = meta_utils.MetaConverter

# It refuses to make a fake tensor of one that is not on meta, as ``torch.export`` does.
FAKING: Final = fake_tensor.FakeTensor.__new__.__code__

# The address of torch's storage object, unique while the storage is live. Nobody knows
# which tensors share memory: on meta ``data_ptr()`` is 0.
address_of_storage: Final = attrgetter("_cdata")

# What modules ask before ``parameter.data = other``: a module that was built on meta by
# name, or under ``inference_mode``, has other parameters after ``to_empty``.
TAKES_DATA: Final[Any] = torch._has_compatible_shallow_copy_type

# How often a tensor was written in place. A tensor that was changed outside of any
# recording is replayed with its old values.
version_of: Final = attrgetter("_version")
set_versions: Final = torch._C._autograd._unsafe_set_version_counter


def has_version(tensor: Tensor) -> bool:
    """Whether torch counts the writes of a tensor; of inference tensors it does not.

    Nor of a parameter of inference mode that ``.to(dtype)`` made a plain tensor.
    """
    try:
        version_of(tensor)
    except RuntimeError:
        return False
    return True


def take_plain_data(tensor: Tensor, source: Tensor) -> None:
    """Run ``tensor.data = source``, of an inference tensor and a plain one, on meta.

    On the CPU the tensor is a plain one afterwards, whose writes torch does not count.
    On meta torch refuses data of another kind, so both tensors get the CPU's keys.
    """
    with DisableTorchDispatch():
        with torch.inference_mode():
            on_cpu = make_keyed(tensor, device_for_backend_keys=torch.device("cpu"))
        on_cpu.data = make_keyed(source, device_for_backend_keys=torch.device("cpu"))
        made = make_keyed(on_cpu, device_for_backend_keys=torch.device("meta"))
    made.requires_grad_(tensor.requires_grad)
    swap_tensor_impl(tensor, made)


# Whether a tensor is on meta: a subclass's own ``is_meta`` runs, and may raise after a
# module was made real.
is_on_meta: Final[Callable[[Tensor], bool]] = vars(torch._C.TensorBase)[
    "is_meta"
].__get__

# Device, dtype, ``non_blocking`` and memory format from the arguments of ``.to``.
parse_to: Final[Callable[..., Any]] = torch._C._nn._parse_to


def address_of_generator(generator: Generator) -> int:
    """Return the address of torch's generator; an operator gets another wrapper.

    Without it a generator of the user's own is another one at each draw.
    """
    return int(generator._cdata)  # type: ignore[attr-defined]  # not in its stub


def count_owners(address: int) -> int:
    """Return how many tensors use the storage at an address, if it is live.

    Or how many wrappers of a generator there are, but one. Without it nobody knows when
    to look for a tensor that counts its own writes, or who needs a generator's state.
    """
    # One more owner is the Python object of the storage itself.
    return int(torch._C._storage_Use_Count(address)) - 1


def is_counted_with(tensor: Tensor, other: Tensor) -> bool:
    """Whether a write of one tensor counts as a write of another, too.

    Without the counter's restoration, a tensor from ``.data`` could not be
    distinguished from a view if both were written equally often.
    """
    before = version_of(other)
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
        torch.autograd.graph.increment_version(tensor)
        return bool(version_of(other) != before)


def list_parts(tensor: Any) -> list[Tensor]:
    """Return the tensor, or the tensors that it wraps, such as a DTensor's shard."""
    if not is_wrapper(tensor):
        return [tensor]
    held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [p for one in held if isinstance(one, Tensor) for p in list_parts(one)]


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes a tensor for a view.

    Without it autocast keeps a copy of one.
    """
    return tensor._is_view()


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that a tensor is a view of; else the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def is_zero_tensor(tensor: Tensor) -> bool:
    """Whether a tensor represents zeros without memory; such calls are not cached."""
    return tensor._is_zerotensor()


def untyped_of(storage: UntypedStorage | TypedStorage) -> UntypedStorage:
    """Return the untyped storage; ``TypedStorage.untyped`` warns."""
    return storage if isinstance(storage, UntypedStorage) else storage._untyped_storage


def unravel_below(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Run the part of ``torch.unravel_index`` that modes do not see.

    Without it that function makes constants of the shape, which no mode sees.
    """
    return torch.functional._unravel_index(indices, shape).unbind(-1)


# ``torch.quasirandom.SobolEngine`` reads and writes memory, which meta has none of.
SOBOL_DRAW: Final = torch._sobol_engine_draw
SOBOL: Final = frozenset(
    {SOBOL_DRAW, torch._sobol_engine_ff_}
    | {torch._sobol_engine_initialize_state_, torch._sobol_engine_scramble_}
)


def negate_lazily(tensor: Tensor) -> Tensor:
    """Return a view that is negated lazily; without it none is replayed."""
    return torch._neg_view(tensor)


# Copying and pickling: the code objects by which a recording recognizes its caller.

# Rebuilds a pickled tensor on meta: copies by ``copy.copy`` and ``pickle`` silently
# lose their content.
REBUILDING: Final = torch._utils._rebuild_meta_tensor_no_storage.__code__
RECONSTRUCTING: Final = copy._reconstruct.__code__  # type: ignore[attr-defined]  # not in its stub

# Rebuild and reduce a tensor with values: what a cell pickles and loads again has no
# values, or is real and cannot be written to.
REBUILD: Final = (torch._utils, "_rebuild_tensor")
REDUCE: Final = (Tensor, "_reduce_ex_internal")

# Asks a tensor for its device: a copy of a tensor that is planned for a GPU fails.
PICKLING: Final = Tensor._reduce_ex_internal.__code__

# Compares a tensor with the one that checkpointing recomputes: a checkpoint on a
# planned GPU fails.
CHECKPOINTING: Final = checkpoint._default_meta_extractor.__code__


def copy_lazy_bits(made: Tensor, tensor: Tensor) -> None:
    """Conjugate or negate a tensor lazily as another one is, by way of ``pickle``.

    Without it a copy of ``x.conj()`` has the values of ``x``.
    """
    torch._utils.set_tensor_metadata(made, torch._utils.get_tensor_metadata(tensor))


def set_lazy_bits(made: Tensor, tensor: Tensor) -> None:
    """Give a tensor the lazy conjugation and negation of another one.

    Without it ``x.data = y.conj()`` fails on meta.
    """
    torch._C._set_conj(made, tensor.is_conj())
    torch._C._set_neg(made, tensor.is_neg())


def type_storage(storage: UntypedStorage, dtype: torch.dtype) -> Any:
    """Return the storage that a tensor is unpickled from; without it, it is real."""
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


# The values of a tensor as torch writes them after so many characters: no tensor on
# meta shows values.
write_values: Final[Callable[[Tensor, int], str]] = _tensor_str._tensor_str


def join_suffixes(text: str, suffixes: Sequence[str], indent: int) -> str:
    """Return the text of a tensor with suffixes, broken into lines as torch does."""
    return str(_tensor_str._add_suffixes(text, suffixes, indent, force_newline=False))


# Sparse tensors: positions, and values at them.

# The parts of a sparse tensor cannot be read in inference mode.
BelowAutograd = torch._C._AutoDispatchBelowAutograd

BY_ROWS: Final = frozenset({torch.sparse_csr, torch.sparse_bsr})
BY_COLUMNS: Final = frozenset({torch.sparse_csc, torch.sparse_bsc})
SPARSE: Final = BY_ROWS | BY_COLUMNS | {torch.sparse_coo}

# Operators that make a sparse tensor of positions and values, and share their memory.
CONSTRUCTORS: Final = frozenset(
    {"aten._sparse_coo_tensor_with_dims_and_tensors.default"}
    | {"aten.sparse_compressed_tensor.comp_plain_value_size"}
)

# Operators that return the positions of a sparse tensor.
POSITIONS: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_indices", "indices", "crow_indices", "col_indices"),
        *("ccol_indices", "row_indices"),
    )
)

# Operators on sparse tensors whose meta kernel is right: without the list, each is
# asked of the CPU, or copies what is shared.
RIGHT_ON_META: Final = POSITIONS | frozenset(
    f"aten.{name}.default"
    for name in (
        *("_values", "values", "_nnz", "is_coalesced", "sparse_dim", "dense_dim"),
        *("detach", "alias", "_coalesced_", "zero_", "zeros_like", "empty_like"),
        "_to_dense",
    )
)

# The first letters of operators that read which elements are not zero, or where.
READERS: Final = ("aten._to_sparse", "aten._spdiags.")


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the positions of a sparse tensor, and its values last; a dense one itself.

    All share the tensor's memory. Without it two sparse tensors of different numbers of
    elements cannot be distinguished.
    """
    if tensor.layout not in SPARSE:
        return (tensor,)
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        if tensor.layout in BY_ROWS:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        if tensor.layout in BY_COLUMNS:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
        return tensor._indices(), tensor._values()


def has_coalesced(tensor: Tensor) -> bool:
    """Whether a COO tensor is marked as coalesced."""
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        return tensor.layout is torch.sparse_coo and tensor.is_coalesced()


def build_sparse(
    like: Tensor, parts: Sequence[Tensor], *, is_coalesced: bool = False
) -> Tensor:
    """Return a sparse tensor of the size and layout of ``like``."""
    make: Callable[..., Tensor]
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        if like.layout is torch.sparse_coo:
            make = partial(torch.sparse_coo_tensor, is_coalesced=is_coalesced)
        else:
            make = partial(torch.sparse_compressed_tensor, layout=like.layout)
        return make(*parts, Tensor.size(like), check_invariants=False)


def plan_part(real: Tensor) -> Tensor:
    """Return a meta tensor with the strides of a real one, and as large a storage."""
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        planned = torch.empty(0, dtype=real.dtype, device="meta")
        storage = torch.UntypedStorage(real.untyped_storage().nbytes(), device="meta")
        offset = int(real.storage_offset())
        return planned.set_(storage, offset, real.shape, real.stride())


def storage_under(tensor: Tensor) -> UntypedStorage:
    """Return the storage of a tensor; of a sparse one on meta that of its values.

    Without it nobody knows which sparse tensor an operator reads.
    """
    try:
        return Tensor.untyped_storage(tensor)
    except NotImplementedError:
        if not tensor.is_meta or tensor.layout not in SPARSE:
            raise
        return parts_of(tensor)[-1].untyped_storage()


# Backward operators cannot be distinguished from forward operators.
current_autograd_node = torch._C._current_autograd_node

# A backward operator cannot be tied to its forward operator.
next_sequence_number = torch._C._autograd._get_sequence_nr
sequence_number_of: Final = attrgetter("_sequence_nr")

# Runs a backward pass: an error in it is reported as one of the forward pass.
DIFFERENTIATING: Final = torch.autograd.graph._engine_run_backward.__code__

Hooks: TypeAlias = tuple[dict[Any, Any] | None, dict[Any, Any] | None]
"""On the gradient of a tensor, and after its accumulation."""


def variable_of(node: Any) -> Tensor | None:
    """Return the tensor whose gradient a node accumulates; None of other nodes."""
    return getattr(node, "variable", None)


def release_retained(tensor: Tensor) -> Tensor:
    """Take a tensor that retains its gradient out of its graph; return its history.

    The node that made the tensor holds a weak reference to it, which moves to the node
    of the write here. Without ``keeping_version``, a backward pass that saved the
    tensor would refuse it as overwritten.
    """
    with keeping_version(tensor):
        with torch.enable_grad():
            history = tensor.clone()
            tensor.add_(0)
        tensor.detach_()
    return history


def restore_history(history: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor on the storage of a released one, with its history."""
    made = tensor.detach()
    with keeping_version(tensor), torch.enable_grad():
        return made.copy_(history)


class GraphOfMeta(torch.autograd.Function):
    """The history of a tensor whose graph was recorded on meta, without values."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(_ctx: Any, *_: Tensor) -> Any:
        """Refuse the backward pass."""
        raise RuntimeError(
            "no backward pass goes through this tensor: its graph was recorded on "
            "meta, and materialize made its value alone real. Compute it again from "
            "the real tensors"
        )


def mark_graph_lost(tensor: Tensor) -> None:
    """Give a tensor a history through which no backward pass goes."""
    with keeping_version(tensor), torch.enable_grad():
        apply: Callable[..., object] = GraphOfMeta.apply
        apply(torch.empty(0, requires_grad=True), tensor)


def name_nodes(name: str) -> Callable[[type[Any]], type[Any]]:
    """Return a decorator that names the nodes of a custom function.

    Without it a tensor shows another ``grad_fn`` than torch's own.
    """

    def decorate(function: type[Any]) -> type[Any]:
        function._backward_cls.__name__ = name
        return function

    return decorate


def read_hooks(tensor: Tensor) -> Hooks:
    """Return the hooks on a tensor's gradient, and those after its accumulation.

    Without them a materialized parameter loses its hooks.
    """
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: Tensor, hooks: Hooks) -> None:
    """Give a tensor the hooks that :func:`read_hooks` returned, where there are any."""
    on_gradient, after_accumulation = hooks
    if on_gradient is not None:
        tensor._backward_hooks = on_gradient
    if after_accumulation is not None:
        tensor._post_accumulate_grad_hooks = after_accumulation
