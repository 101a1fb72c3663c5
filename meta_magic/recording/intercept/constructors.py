"""Record tensors that constructors make: ``torch.Tensor(2, 3)``, ``nn.Parameter(x)``.

``torch.FloatTensor([1.0])`` ignores the default device and runs on the CPU, and no
function mode sees it; ``nn.Parameter`` and ``x.data = y`` run no operator. Without this
file a cell would hold real tensors, or parameters that no row made.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import META, is_default_on_meta
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.real_tensors.capturable import is_capturable
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.rows.written import OfRecording, Written
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.dispatcher import copy_to, is_python_excluded, read_scalar
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replaced import MAKE_SUBCLASS, MAKE_TENSOR
from meta_magic.torch_private.tensor_internals import set_lazy_bits, take_plain_data

aten = torch.ops.aten

EMPTY: Final = aten.empty.memory_format
LIFT_FRESH: Final = aten.lift_fresh.default
COPY: Final = copy_to
SET: Final = aten.set_.source_Storage
LEGACY: Final = frozenset[Any]({EMPTY, LIFT_FRESH, COPY, SET})

NUMBER_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    Tensor.__float__: float,
    Tensor.__int__: int,
    Tensor.__index__: int,
    Tensor.__bool__: bool,
    Tensor.__complex__: complex,
}
"""Methods that C++ calls for a tensor in a list of values, and their return types."""

N_POSITIONS: Final[dict[Any, int]] = {
    torch.sparse_coo_tensor: 1,
    torch.sparse_csr_tensor: 2,
    torch.sparse_csc_tensor: 2,
    torch.sparse_bsr_tensor: 2,
    torch.sparse_bsc_tensor: 2,
    torch.sparse_compressed_tensor: 2,
}
"""Constructors of sparse tensors, and how many of their arguments are positions."""

ONE_ELEMENT: Final = "only one element tensors can be converted to Python scalars"


def run_legacy(mode: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run on meta what a legacy constructor runs on the CPU."""
    if current_autograd_node() is not None or not is_default_on_meta():
        return NotImplemented
    device = kwargs.get("device")
    is_for_cpu = device is not None and device.type == "cpu"
    first = args[0]
    if func is EMPTY or func is COPY:
        is_ours = is_for_cpu and (func is EMPTY or first.is_meta)
        on_meta = {**kwargs, "device": META}
        return run(mode, func, args, on_meta) if is_ours else NotImplemented
    if func is LIFT_FRESH:
        return NotImplemented if first.is_meta else capture_real(mode, first)
    storage = args[1]
    if not first.is_meta or storage.device.type != "cpu":
        return NotImplemented
    real = torch.empty(0, dtype=first.dtype, device="cpu").set_(storage)
    return run(mode, SET, (first, capture_real(mode, real).untyped_storage()), {})


def run(mode: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run an operator instead of another one."""
    return mode.__torch_dispatch__(func, (), args, kwargs)


def capture_real(mode: Any, real: Tensor) -> Any:
    """Return a meta tensor with the values of a real one, which becomes a constant."""
    return run(mode, COPY, (real,), {"device": META})


def read_number(mode: Any, func: Any, tensor: Tensor) -> Any:
    """Return the number that a constructor reads from a tensor in its list of values.

    Torch hides this read from all modes. ``NotImplemented`` if torch itself reads it,
    or refuses.
    """
    is_refused = func is Tensor.__index__ and tensor.dtype.is_floating_point
    if not is_python_excluded() or tensor.numel() != 1 or is_refused:
        return NotImplemented
    return NUMBER_READERS[func](run(mode, read_scalar, (tensor,), {}))


def read_new(args: Args) -> tuple[Any, Args] | None:
    """Return the newer function that does what ``x.new(...)`` does, and its arguments.

    On meta torch drops the values, and makes no sparse tensors. None if torch's own
    method works, as for a tensor.
    """
    tensor, *given = args
    is_dense = tensor.layout is torch.strided
    if tensor.is_meta and not is_dense and isinstance([*given, None][0], Tensor):
        return torch.sparse_coo_tensor, given
    is_one = len(given) == 1 and isinstance(given[0], (list, tuple))
    if is_one and not isinstance(given[0], torch.Size):
        return Tensor.new_tensor, args
    sizes = given[0] if is_one else given
    is_own = tensor.is_meta and is_dense
    if is_own or not all(isinstance(size, int) for size in sizes):
        return None
    return Tensor.new_empty, (tensor, tuple(sizes) or (0,))


def read_sparse(
    func: Any, args: Args, kwargs: Kwargs, make: Callable[..., Tensor]
) -> tuple[Args, Kwargs]:
    """Return the arguments of a sparse constructor, with tensors for lists of values.

    On meta torch drops the lists.
    """
    n_positions, device = N_POSITIONS[func], kwargs.get("device")
    if len(args) <= n_positions and "values" not in kwargs:  # a size alone
        return args, kwargs

    def read(value: Any, *, is_position: bool) -> Any:
        dtype = None if is_position else kwargs.get("dtype")
        is_tensor = isinstance(value, Tensor)
        return (
            value if is_tensor else make((value,), {"dtype": dtype, "device": device})
        )

    given = [
        read(value, is_position=index < n_positions)
        for index, value in enumerate(args[: n_positions + 1])
    ]
    named = {
        name: read(value, is_position=name != "values")
        for name, value in kwargs.items()
        if name == "values" or name.endswith("indices")
    }
    return (*given, *args[n_positions + 1 :]), {**kwargs, **named}


def holds_planned(data: object) -> bool:
    """Whether a list of values holds tensors on meta."""
    is_list = isinstance(data, (list, tuple)) and len(data) > 0
    return is_list and any(tensor.is_meta for tensor in tensors_in(data))


def join_values(
    data: Sequence[Any], like: Tensor, make: Callable[[Any], Tensor]
) -> Tensor:
    """Return a tensor like ``like``, with the values of a list that has tensors."""
    parts = [make(value).reshape(-1) for value in flatten(data)]
    if sum(part.numel() for part in parts) != like.numel():
        raise ValueError(ONE_ELEMENT)
    joined = torch.cat(parts).reshape(like.shape)
    return joined.requires_grad_() if like.requires_grad else joined


def flatten(values: Any) -> list[Any]:
    """Return the numbers and tensors in nested lists, in order."""
    if not isinstance(values, (list, tuple)):
        return [values]
    return [value for item in values for value in flatten(item)]


class NewOfSubclass(OfRecording):
    """Context manager that sees each tensor of a subclass when it is made.

    A parameter, for example, shares the storage of its source. Without this class a
    parameter could get the number of a dead tensor with the same address, storage and
    geometry.

    ``Labeled(x)``, for a subclass of the user's, runs without a mode: under a mode
    torch refuses to change the class of a tensor.
    """

    def __enter__(self) -> None:
        for owner, name in MAKE_SUBCLASS:
            self.replace_here(owner, {name: self._make})
        self.wrap(MAKE_TENSOR, make_of_subclass)

    def _make(self, plain: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        made = plain(*args, **kwargs)
        self._write.registry.forget(id(made), None)
        return made


def make_of_subclass(before: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that makes tensors of a subclass by ``as_subclass``."""

    def make(kind: type[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if kind is Tensor or kwargs or not is_default_on_meta():
            return before(kind, *args, **kwargs)
        is_copy = len(args) == 1 and isinstance(args[0], Tensor)
        return (args[0] if is_copy else before(Tensor, *args)).as_subclass(kind)

    return make


DATA: Final[Any] = Tensor.data
BEFORE: Final = "change it before the cell, "


class DataAttribute:
    """Implements ``x.data`` and ``x.data = y``."""

    def __init__(self, write: Written, capture: ConstantCapture) -> None:
        self._registry, self._plan = write.registry, write.plan
        self._capture = capture

    def read_or_set(self, func: Any, tensor: Tensor, *source: Tensor) -> Any:
        """Return the data of a tensor, or set it."""
        if not source or not isinstance(source[0], Tensor):
            self._registry.note_alias(tensor)
            return func(tensor, *source)
        with DisableTorchFunction():
            given = self._find_source(tensor, source[0])
            is_plain = given.is_meta and given.layout is torch.strided
            adapted = adapt(tensor, given) if is_plain else given
        for alias in (tensor, given):
            self._registry.note_alias(alias)
        func(tensor, adapted)
        if adapted is not given:
            set_lazy_bits(tensor, given)
            self._registry.forget(id(tensor), None)
        return None

    def is_taken(self, func: Any, tensor: Tensor, source: Tensor) -> bool:
        """Return whether a tensor can take the data of another; modules ask this first.

        A tensor on meta by name cannot take data from a device, nor the other way.
        """
        with DisableTorchFunction():
            tensors = tensor, source
            if not all(t.is_meta and t.layout is torch.strided for t in tensors):
                return bool(func(*tensors))
            return len({*map(self._plan.is_on_meta, tensors)}) == 1

    def _find_source(self, tensor: Tensor, source: Tensor) -> Tensor:
        """Return the meta tensor for a source, if a tensor is on meta."""
        if tensor.is_meta:
            return self._capture.capture(source) if is_capturable(source) else source
        if source.is_meta and is_capturable(tensor):
            self._capture.refuse_write("`.data =`", tensor, BEFORE)
        return source


def kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return the facts that torch compares for two meta tensors, and not on the CPU."""
    return tensor.is_inference(), tensor.is_conj(), tensor.is_neg()


def adapt(tensor: Tensor, source: Tensor) -> Tensor:
    """Return a tensor on the source's memory that ``tensor.data =`` accepts.

    If their kinds differ, neither is lazily conjugated or negated afterwards.
    """
    if kind_of(tensor) == kind_of(source):
        return source
    if tensor.is_inference() and not source.is_inference():
        take_plain_data(tensor, source)
    made = make_alias(source, is_inference=tensor.is_inference())
    set_lazy_bits(tensor, made)
    return made


def make_alias(source: Tensor, *, is_inference: bool) -> Tensor:
    """Return a tensor on the source's memory, of inference mode or not."""
    with DisableTorchDispatch(), torch.inference_mode(mode=is_inference):
        made = torch.empty(0, dtype=source.dtype, device=META)
        geometry = source.storage_offset(), source.shape, source.stride()
        return made.set_(source.untyped_storage(), *geometry).data
