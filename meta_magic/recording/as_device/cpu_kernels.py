"""What the CPU's kernel returns, where torch has none for meta: the CPU is asked.

Once for each signature, with ones and zeros of the same metadata, or with no elements
if they are sparse. Who wants the answer for tensors of any size writes a correction
(see ``corrections``).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.entries import Args, Given, Kwargs
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.tensor_internals import (
    SPARSE,
    build_sparse,
    has_coalesced,
    is_view,
    negate_lazily,
    parts_of,
)
from meta_magic.trace.signature import Geometry

MAX_NBYTES: Final = 2**28
"""What the tensors that the CPU is asked with may take."""

LAYOUTS: Final = SPARSE | {torch.strided}

REFUSALS: Final = (RuntimeError, ValueError, IndexError, TypeError)
"""By these torch refuses arguments, on the CPU, too."""


def is_without_kernel(error: Exception) -> bool:
    """Whether torch has no kernel for meta, or one written in Python that broke."""
    return isinstance(error, NotImplementedError) or not isinstance(error, REFUSALS)


def ask_cpu(
    func: Any, args: Args, kwargs: Kwargs, *, wants_gradients: bool = False
) -> Any:
    """Return what an operator of torch returns, by its kernel on the CPU.

    Args:
        func: The operator.
        args: Its positional arguments.
        kwargs: Its others.
        wants_gradients: Whether it is to make what a backward needs.

    Returns:
        That, on meta, what it wrote being the argument itself; ``NotImplemented`` if
        the CPU cannot tell.
    """
    met = tensors_in(args, kwargs)
    is_inference = torch.is_inference_mode_enabled()
    with RealTorch():
        is_askable = str(func).startswith("aten.") and all(map(is_plain, met))
        if not met or not is_askable or sum(map(count_nbytes, met)) > MAX_NBYTES:
            return NotImplemented
        has_ones = torch.Tag.pointwise in func.tags or "divide" in str(func)
        proxies = {id(t): make_proxy(t, has_ones=has_ones) for t in met}
        try:
            with torch.set_grad_enabled(wants_gradients):
                returned = call_on(proxies, func, args, kwargs)
        except Exception:  # noqa: BLE001  then what meta said stands
            return NotImplemented
        with torch.inference_mode(is_inference):
            return take_over(returned, {id(proxies[id(t)]): t for t in met})


def call_on(
    proxies: Mapping[int, Tensor], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Call an operator on stand-ins; torch's generator stays where it is."""
    before = torch.default_generator.get_state()
    try:
        real_args, real_kwargs = (replace(v, proxies) for v in (args, kwargs))
        return func(*real_args, **real_kwargs)
    finally:
        torch.default_generator.set_state(before)


def lay_out_written(func: Any, given: Given) -> None:
    """Lay out what was written and changed its layout as the CPU does it.

    Args:
        func: The operator, which has run.
        given: What it was given, with what was known of that before.
    """
    with RealTorch():
        records = [(tensor, seen[2].record) for tensor, seen in given.inputs]
        changed = [
            t
            for t, r in records
            if (t.shape, t.stride()) != (r.shape, r.stride) or not t.numel()
        ]
        nbytes = sum(tensor.nbytes for tensor, _ in records)
        if not changed or not all(t.is_meta for t, _ in records) or nbytes > MAX_NBYTES:
            return
        for has_ones in (False, True):  # positions may begin with 1, as pivots do
            made = {id(t): put_on_cpu(r, has_ones=has_ones) for t, r in records}
            with suppress(Exception):  # then what meta made of it stands
                call_on(made, func, given.args, given.kwargs)
                for tensor in changed:
                    lay_out_as(made[id(tensor)], tensor)
                return


def lay_out_as(real: Tensor, tensor: Tensor) -> None:
    """Lay a tensor out as what stands for it on the CPU, which has written that."""
    if (tensor.shape, tensor.stride()) == (real.shape, real.stride()):
        return
    enlarge_storage(tensor, real.untyped_storage().nbytes())
    tensor.as_strided_(real.shape, real.stride())


def put_on_cpu(record: Geometry, *, has_ones: bool = False) -> Tensor:
    """Return a stand-in for a tensor that was of some geometry."""
    like = torch.empty(0, dtype=record.dtype, device="meta")
    made = like.as_strided(record.shape, record.stride or ())
    return make_proxy(made, has_ones=has_ones)


def is_plain(tensor: Tensor) -> bool:
    """Whether a stand-in can be made of a tensor."""
    return tensor.is_meta and tensor.layout in LAYOUTS


def count_nbytes(tensor: Tensor) -> int:
    """Return the bytes from a storage's start to a tensor's last element."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in pairs)
    return int(last + 1) * tensor.itemsize


def make_proxy(tensor: Tensor, *, has_ones: bool = False) -> Tensor:
    """Return ones, or zeros where they might be positions, laid out as a tensor.

    Args:
        tensor: The tensor.
        has_ones: Whether integers are no positions.
    """
    if tensor.layout in SPARSE:
        return make_sparse(tensor, "cpu")
    numel = count_nbytes(tensor) // tensor.itemsize
    is_number = has_ones or tensor.is_floating_point() or tensor.is_complex()
    flat = torch.empty([numel], dtype=tensor.dtype, device="cpu")
    made = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    made.fill_(int(is_number))  # few elements of a large storage take little
    made = made.conj() if tensor.is_conj() else made
    return negate_lazily(made) if tensor.is_neg() else made


def make_sparse(like: Tensor, device: str) -> Tensor:
    """Return a sparse tensor without elements."""
    *first, last, values = parts_of(like)
    at = 0 if like.layout is torch.sparse_coo else last.ndim - 1
    parts = [torch.zeros_like(part, device=device) for part in first]
    parts.append(torch.empty_like(last[..., :0], device=device))
    parts.append(torch.empty_like(values.narrow(at, 0, 0), device=device))
    return build_sparse(like, parts, is_coalesced=has_coalesced(like))


def replace(value: Any, proxies: Mapping[int, Tensor]) -> Any:
    """Return arguments with all that is on meta, or draws, on the CPU."""
    if isinstance(value, Tensor):
        return proxies[id(value)]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return torch.Generator()
    if isinstance(value, (list, tuple)):
        return [replace(item, proxies) for item in value]
    if isinstance(value, Mapping):
        return {name: replace(item, proxies) for name, item in value.items()}
    return value


def take_over(returned: Any, met: Mapping[int, Tensor]) -> Any:
    """Return what the CPU returned, on meta; ``NotImplemented`` if it is no new one.

    Args:
        returned: That.
        met: By the identity of a stand-in, the argument on meta.
    """
    tensors = tensors_in(returned)
    new = [tensor for tensor in tensors if id(tensor) not in met]
    is_new = all(
        t.layout in LAYOUTS
        and not (is_view(t) or t.is_quantized or t.is_nested)
        and not (t.is_conj() or t.is_neg())
        for t in new
    )
    if not is_new or is_value(returned):
        return NotImplemented
    for written in (t for t in tensors if id(t) in met):
        lay_out_as(written, met[id(written)])  # as addbmm_ grows a tensor
    return put_on_meta(returned, met)


def is_value(returned: Any) -> bool:
    """Whether an operator returned something else than tensors, known by data."""
    if isinstance(returned, (list, tuple)):
        return any(map(is_value, returned))
    return returned is not None and not isinstance(returned, Tensor)


def enlarge_storage(tensor: Tensor, nbytes: int) -> Tensor:
    """Return a new tensor on meta once its storage has at least so many bytes."""
    storage = tensor.untyped_storage()
    if storage.nbytes() < nbytes:
        storage.resize_(nbytes)
    return tensor


def put_on_meta(value: Any, known: Mapping[int, Tensor] | None = None) -> Any:
    """Return what an operator returned, its tensors without their data.

    Args:
        value: That.
        known: By their identity, what on meta stands for some tensors.
    """
    if isinstance(value, Tensor):
        if known and id(value) in known:
            return known[id(value)]
        if value.layout in SPARSE:
            return make_sparse(value, "meta")
        made = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        )
        return enlarge_storage(made, value.untyped_storage().nbytes())
    if isinstance(value, (list, tuple)):
        return type(value)([put_on_meta(item, known) for item in value])
    return value


class Listing:
    """Notes names of operators; a mixin, so that torch does not import dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Run an operator."""
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class ListingMode(Listing, TorchDispatchMode):
    """The mode that a call is run under."""


def list_operators(call: Callable[[torch.Tensor], object]) -> list[str]:
    """Return the operators that a call of one zero runs on the CPU, in order."""
    with RealTorch():
        zero = torch.zeros(1, 1, 1, device="cpu")
        listing = ListingMode()
        with listing:
            call(zero)
    return listing.names


@cache
def fills_with_numbers() -> bool:
    """Whether a number is written at an index as it is; a tensor is made of it else."""
    names = list_operators(lambda zero: zero.__setitem__(0, 1.0))
    return "aten.fill_.Scalar" in names


@cache
def adds_batch_to_attention() -> bool:
    """Whether attention of three dimensions is that of a batch of one; math else."""
    names = list_operators(lambda z: scaled_dot_product_attention(z, z, z))
    return names[0] == "aten.unsqueeze.default"


@cache
def runs_lstm_by_onednn(dtype: torch.dtype, *, has_gradients: bool) -> bool:
    """Whether oneDNN runs an LSTM of a dtype, which depends on the processor, too."""

    def call(zero: torch.Tensor) -> object:
        state, weight = zero.to(dtype), zero.new_zeros(4, 1, dtype=dtype)
        with torch.set_grad_enabled(has_gradients):
            options = False, 1, 0.0, False, False, False
            return torch.lstm(state, (state, state), (weight, weight), *options)

    return "aten.mkldnn_rnn_layer.default" in list_operators(call)


@cache
def find_refusal_of_pooling(dtype: torch.dtype) -> str | None:
    """Return what ``max_pool1d`` says of a dtype that it refuses without a gradient."""
    with RealTorch():
        try:
            torch.max_pool1d(torch.zeros(1, 1, 1, dtype=dtype, device="cpu"), 1)
        except NotImplementedError as error:
            return str(error)
    return None
