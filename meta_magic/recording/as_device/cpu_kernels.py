"""Run the CPU's kernel for metadata, where torch has none for meta.

Without this ``torch.geqrf(x)`` on meta would fail. ``ask_cpu`` runs the kernel once for
each signature, on proxy tensors of ones and zeros. Large tensors are not tried: they
need a correction (see ``adjustments``).

Also here: the strides of the CPU, which differ from those of torch's meta kernels,
written in Python, above all for dimensions of size 1; and facts that differ between
CPUs and versions of torch, such as whether oneDNN runs an LSTM. A tiny real call finds
each of them, once a process.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from meta_magic.recording.identities.storages import span_nbytes
from meta_magic.recording.identities.tensors import rebuild, tensors_in
from meta_magic.recording.signatures.entries import Args, Given, Kwargs
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    TorchDispatchMode,
)
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

MAX_NBYTES: Final = 2**28  # limit on the bytes of the proxy tensors

LAYOUTS: Final = SPARSE | {torch.strided}

REFUSALS: Final = (RuntimeError, ValueError, IndexError, TypeError)
"""Errors by which torch refuses arguments, also on the CPU."""


def ask_cpu(
    func: Any, args: Args, kwargs: Kwargs, *, wants_gradients: bool = False
) -> Any:
    """Return on meta what the CPU's kernel returns, or ``NotImplemented``.

    A written argument is returned itself. With ``wants_gradients`` the kernel makes
    what a backward needs.
    """
    tensors = tensors_in(args, kwargs)
    is_inference = torch.is_inference_mode_enabled()
    with RealTorch():
        if (
            not tensors
            or not str(func).startswith("aten.")
            or not all(t.is_meta and t.layout in LAYOUTS for t in tensors)
            or sum(map(count_nbytes, tensors)) > MAX_NBYTES
        ):
            return NotImplemented
        has_ones = torch.Tag.pointwise in func.tags or "divide" in str(func)
        proxies = {id(t): make_proxy(t, has_ones=has_ones) for t in tensors}
        try:
            with torch.set_grad_enabled(wants_gradients):
                returned = call_with_proxies(proxies, func, args, kwargs)
        except Exception:  # noqa: BLE001  the answer of meta stays
            return NotImplemented
        with torch.inference_mode(is_inference):
            return result_on_meta(returned, {id(proxies[id(t)]): t for t in tensors})


def call_with_proxies(
    proxies: Mapping[int, Tensor], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Call an operator on proxies; restore torch's generator."""
    before = torch.default_generator.get_state()
    try:
        real_args, real_kwargs = put_arguments_on_cpu((args, kwargs), proxies)
        return func(*real_args, **real_kwargs)
    finally:
        torch.default_generator.set_state(before)


def lay_out_written(func: Any, given: Given) -> None:
    """Give written tensors whose layout an operator changed the layout of the CPU."""
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
        for has_ones in (False, True):  # positions may begin with 1, as pivots
            made = {id(t): put_on_cpu(r, has_ones=has_ones) for t, r in records}
            with suppress(Exception):  # the layout of meta stays
                call_with_proxies(made, func, given.args, given.kwargs)
                for tensor in changed:
                    lay_out_as(made[id(tensor)], tensor)
                return


def lay_out_as(real: Tensor, tensor: Tensor) -> None:
    """Give a tensor the layout of its proxy on the CPU, after a write."""
    if (tensor.shape, tensor.stride()) == (real.shape, real.stride()):
        return
    enlarge_storage(tensor, real.untyped_storage().nbytes())
    tensor.as_strided_(real.shape, real.stride())


def put_on_cpu(record: Geometry, *, has_ones: bool = False) -> Tensor:
    """Return the proxy of a tensor that had a geometry."""
    like = torch.empty(0, dtype=record.dtype, device="meta")
    made = like.as_strided(record.shape, record.stride or ())
    return make_proxy(made, has_ones=has_ones)


def count_nbytes(tensor: Tensor) -> int:
    """Return the bytes from the start of the storage to the last element."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return 0
    return span_nbytes(tensor)


def make_proxy(tensor: Tensor, *, has_ones: bool = False) -> Tensor:
    """Return a proxy of ones, laid out as a tensor; integers may be zeros."""
    if tensor.layout in SPARSE:
        return make_sparse(tensor, "cpu")
    numel = count_nbytes(tensor) // tensor.itemsize
    is_number = has_ones or tensor.is_floating_point() or tensor.is_complex()
    flat = torch.empty([numel], dtype=tensor.dtype, device="cpu")
    made = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    made.fill_(int(is_number))  # touches the elements only, not the whole storage
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


def put_arguments_on_cpu(value: Any, real_by_id: Mapping[int, Tensor]) -> Any:
    """Return arguments with real tensors, the CPU as device, and a new generator."""

    def replace(value: Any) -> Any:
        if isinstance(value, Tensor):
            return real_by_id.get(id(value), value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return torch.Generator() if isinstance(value, torch.Generator) else value

    return rebuild(value, replace)


def result_on_meta(returned: Any, meta_by_id: Mapping[int, Tensor]) -> Any:
    """Return a result of the CPU on meta; ``NotImplemented`` for views and values."""
    tensors = tensors_in(returned)
    new = [tensor for tensor in tensors if id(tensor) not in meta_by_id]
    is_new = all(
        t.layout in LAYOUTS
        and not (is_view(t) or t.is_quantized or t.is_nested)
        and not (t.is_conj() or t.is_neg())
        for t in new
    )
    if not is_new or is_value(returned):
        return NotImplemented
    for written in (t for t in tensors if id(t) in meta_by_id):
        lay_out_as(written, meta_by_id[id(written)])  # as addbmm_ grows a tensor
    return put_on_meta(returned, meta_by_id)


def is_value(returned: Any) -> bool:
    """Whether an operator returned anything but tensors: it depends on data."""
    if isinstance(returned, (list, tuple)):
        return any(map(is_value, returned))
    return returned is not None and not isinstance(returned, Tensor)


def enlarge_storage(tensor: Tensor, nbytes: int) -> Tensor:
    """Return a tensor on meta after its storage has at least ``nbytes`` bytes."""
    storage = tensor.untyped_storage()
    if storage.nbytes() < nbytes:
        storage.resize_(nbytes)
    return tensor


def put_on_meta(value: Any, known: Mapping[int, Tensor] | None = None) -> Any:
    """Return a result on meta; ``known`` has tensors on meta, by ``id()``."""
    if isinstance(value, Tensor):
        if known and id(value) in known:
            return known[id(value)]
        if value.layout in SPARSE:
            return make_sparse(value, "meta")
        sizes = value.shape, value.stride()
        made = torch.empty_strided(*sizes, dtype=value.dtype, device="meta")
        return enlarge_storage(made, value.untyped_storage().nbytes())
    if isinstance(value, (list, tuple)):
        return type(value)([put_on_meta(item, known) for item in value])
    return value


class ListingMode(TorchDispatchMode):
    """Lists the names of operators."""

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


def list_operators(call: Callable[[torch.Tensor], object]) -> list[str]:
    """Return the operators that the CPU runs in a call with one zero, in order."""
    with RealTorch():
        zero = torch.zeros(1, 1, 1, device="cpu")
        listing = ListingMode()
        with listing:
            call(zero)
    return listing.names


@cache
def fills_with_numbers() -> bool:
    """Whether ``x[i] = 1.0`` writes the number, or makes a tensor of it first."""
    return "aten.fill_.Scalar" in list_operators(lambda zero: zero.__setitem__(0, 1.0))


@cache
def adds_batch_to_attention() -> bool:
    """Whether attention without batch is attention of a batch of one, or math."""
    names = list_operators(lambda z: scaled_dot_product_attention(z, z, z))
    return names[0] == "aten.unsqueeze.default"


@cache
def runs_lstm_by_onednn(dtype: torch.dtype, *, has_gradients: bool) -> bool:
    """Whether oneDNN runs an LSTM of a dtype; it depends on the processor as well."""

    def call(zero: torch.Tensor) -> object:
        state, weight = zero.to(dtype), zero.new_zeros(4, 1, dtype=dtype)
        with torch.set_grad_enabled(has_gradients):
            options = False, 1, 0.0, False, False, False
            return torch.lstm(state, (state, state), (weight, weight), *options)

    return "aten.mkldnn_rnn_layer.default" in list_operators(call)


@cache
def find_refusal_of_pooling(dtype: torch.dtype) -> str | None:
    """Return the error of ``max_pool1d`` for a dtype, without gradients; or None."""
    with RealTorch():
        try:
            torch.max_pool1d(torch.zeros(1, 1, 1, dtype=dtype, device="cpu"), 1)
        except NotImplementedError as error:
            return str(error)
    return None


# Strides

MAX_NUMEL: Final = 2**16
"""Limit on the elements of arguments and results of an operator that is asked."""

MAX_KNOWN: Final = 2**14

LAID_OUT_ALIKE: Final = (
    *("batch_norm", "binary_cross_entropy", "floor_divide", "huber_loss", "mse_loss"),
    *("log_sigmoid_forward", "roll", "rrelu_with_noise"),
    *("smooth_l1_loss", "soft_margin_loss"),
)
"""Parts of names of operators that lay out their results as elementwise operators do.

Strides follow from the order of the inputs' dimensions in memory, not from sizes.
"""

known_alike: set[object] = set()
"""Calls for which meta and the CPU agree on strides, at most ``MAX_KNOWN``."""


def match_cpu_if_needed(func: Any, given: Given, returned: Any) -> Any:
    """Return a result on meta with the strides of the CPU, if they may differ."""
    is_in_rows = all(seen[2].is_in_rows for _, seen in given.inputs)
    if is_in_rows and all(tensor.numel() for tensor in tensors_in(returned)):
        return returned
    return match_cpu_strides(func, given.args, given.kwargs, returned)


def match_cpu_strides(func: Any, args: Args, kwargs: Kwargs, returned: Any) -> Any:
    """Return a result on meta with the strides of the CPU.

    The CPU is asked once for each signature: of a large elementwise call with two
    elements in each dimension. Other large calls keep the strides of meta.
    """
    made, given = tensors_in(returned), tensors_in(args, kwargs)
    is_large = sum(tensor.numel() for tensor in (*made, *given)) > MAX_NUMEL
    is_asked = not is_large or is_laid_out_alike(func, made, given)
    if {*map(id, made)} <= {*map(id, given)} or not is_asked:
        return returned
    call = func, describe(args), describe(kwargs)
    if call in known_alike:
        return returned
    small = rebuild((args, kwargs), shrink) if is_large else (args, kwargs)
    asked = ask_cpu(func, *small)
    asked = grow(asked, returned) if is_large else asked
    laid_out = tensors_in(asked)
    types, wanted = (
        [(t.shape, t.dtype, t.layout, t.device) for t in tensors]
        for tensors in (laid_out, made)
    )
    is_other = [t.stride() for t in laid_out] != [t.stride() for t in made]
    if types == wanted and is_other:
        return asked
    if len(known_alike) >= MAX_KNOWN:
        known_alike.clear()
    known_alike.add(call)
    return returned


def is_laid_out_alike(func: Any, made: list[Tensor], given: list[Tensor]) -> bool:
    """Whether strides follow from the order of dimensions, as of elementwise ones."""
    name = str(func)
    if torch.Tag.pointwise in func.tags or any(one in name for one in LAID_OUT_ALIKE):
        return True
    shapes = {tensor.shape for tensor in (*made, *given)}
    return len(shapes) == 1 and "backward" in name  # activations have no tag for it


def shrink(value: Any) -> Any:
    """Return a tensor on meta with two elements in each long dimension."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    steps, sizes = value.stride(), [min(n, 2) for n in value.shape]
    pairs = zip(value.shape, steps, strict=True)
    if all(n == 1 or stride_at(step, value.shape, steps) == step for n, step in pairs):
        strides = [step and stride_at(step, sizes, steps) for step in steps]
    else:  # steps that differ stay different, also those of dimensions of size 1
        order = sorted({0, 1, *steps})
        strides = [step if step in {0, 1} else 2 ** order.index(step) for step in steps]
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


def stride_at(step: int, sizes: Sequence[int], steps: Sequence[int]) -> int:
    """Return the stride, without gaps, of the dimension that had ``step``."""
    pairs = zip(sizes, steps, strict=True)
    return prod(max(n, 1) for n, other in pairs if 0 < other < step)


def grow(small: Any, returned: Any) -> Any:
    """Return a result like ``returned``, its dimensions ordered as in ``small``."""
    made, like = tensors_in(small), tensors_in(returned)
    if [[min(n, 2) for n in t.shape] for t in like] != [[*t.shape] for t in made]:
        return NotImplemented
    grown = (
        torch.empty_strided(
            b.shape,
            [stride_at(step, b.shape, a.stride()) for step in a.stride()],
            dtype=a.dtype,
            device="meta",
        )
        for a, b in zip(made, like, strict=True)
    )
    return rebuild(returned, lambda v: next(grown) if isinstance(v, Tensor) else v)


def take_geometries(returned: Any, real: Any) -> Any:
    """Return a result on meta with the geometry of the result on the CPU."""
    made, wanted = tensors_in(returned), tensors_in(real)
    is_known = len(made) == len(wanted) and all(map(is_plain, wanted))
    if not is_known or [*map(geometry_of, made)] == [*map(geometry_of, wanted)]:
        return returned
    return put_on_meta(real)


def is_plain(tensor: Tensor) -> bool:
    """Whether meta can have a tensor like one on the CPU."""
    is_special = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return tensor.layout is torch.strided and not (is_special or tensor.is_nested)


def geometry_of(tensor: Tensor) -> tuple[object, ...]:
    """Return shape, dtype, and strides of dimensions with more than one element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, tensor.dtype, [step for n, step in steps if n > 1]


def describe(value: Any) -> object:
    """Return the metadata of an argument that decides the strides of a result."""
    if isinstance(value, Tensor):
        is_strided = value.layout is torch.strided
        steps = value.stride() if is_strided else value.layout
        return value.shape, steps, value.dtype, value.is_conj(), value.is_neg()
    if isinstance(value, (list, tuple)):
        return tuple(map(describe, value))
    if isinstance(value, dict):
        return tuple(value), describe((*value.values(),))
    return type(value), value


def copy_with_strides(real: Tensor, tensor: Tensor) -> Tensor:
    """Return the values of a tensor with its strides on meta, which numpy would see."""
    if real.dtype != tensor.dtype or real.stride() == tensor.stride():
        return real
    once = tuple(slice(1 if step == 0 else None) for step in tensor.stride())
    with DisableTorchFunction(), DisableTorchDispatch():
        flat = torch.zeros(span_nbytes(tensor), dtype=torch.uint8, device="cpu")
        made = flat.view(real.dtype)[tensor.storage_offset() :]
        made = made.as_strided(real.shape, tensor.stride())
        try:
            made[once].copy_(real[once])
        except RuntimeError:  # elements overlap, and not by a stride of 0
            return real
    return made
