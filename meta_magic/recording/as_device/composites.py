"""Run a device's decomposition of composite operators.

Torch composes some operators in C++, of others chosen by the device of the arguments,
or by whether a mode is on. Without this ``torch.linalg.svdvals(x)`` would be recorded
with vectors, which the CPU does not compute, and ``dropout`` as four operators, which
on CUDA are one. Functions here return ``NotImplemented`` for a call that torch itself
composes right. ``ON_CPU`` and ``ON_CUDA`` are the tables.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parameter import Parameter

from meta_magic.errors import MissingValueError
from meta_magic.recording.as_device.cpu_kernels import find_refusal_of_pooling
from meta_magic.recording.as_device.recurrent import PACKED_RECURRENT, RECURRENT
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    FUSED_RMS_NORM,
    DispatchKey,
    eigenvalues,
    loss_of_sequences,
    run_kernel,
    singular_values,
    symmetric_eigenvalues,
)
from meta_magic.torch_private.modes import functorch_interpreter
from meta_magic.torch_private.tensor_internals import name_nodes, suggest_memory_format
from meta_magic.trace.signature import CPU

aten = torch.ops.aten

# Products of elements: without these the gradient of ``x.prod()`` would be another in
# the last bits. Under a mode torch multiplies all other elements, on the CPU it divides
# the product by each. The formulas are those of ``prod_backward`` in
# ``FunctionsManual.cpp`` of torch 2.13.

NoteCaveat = Callable[[str], None]

UNCOUNTED: Final = (
    "the zeros that `prod` multiplies cannot be counted within the limits of values, "
    "so its gradient is computed without dividing: its last bits may differ"
)


def multiply(note: NoteCaveat, a: Tensor, **given: Any) -> Any:
    """Return the product of all elements."""
    apply = partial(_Product.apply, note)
    return _differentiate(apply, aten.prod.default, a, (), given)


def multiply_along(
    note: NoteCaveat,
    a: Tensor,
    dim: int,
    keepdim: bool = False,  # noqa: FBT001, FBT002  as in the schema
    **given: Any,
) -> Any:
    """Return products of the elements along a dimension."""
    apply = partial(_Products.apply, note)
    return _differentiate(apply, aten.prod.dim_int, a, (dim, keepdim), given)


def _differentiate(
    apply: Any, operator: Any, a: Tensor, where: Any, given: dict[str, Any]
) -> Any:
    is_plain = functorch_interpreter() is None and type(a) in {Tensor, Parameter}
    if not (needs_gradient(a) and is_plain and a.ndim) or (
        forward_ad.unpack_dual(a).tangent is not None
    ):
        return NotImplemented
    return apply(operator, a, where, given)


class _AnyProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, note: NoteCaveat, operator: Any, a: Tensor, where: Any, given: Any
    ) -> Tensor:
        made: Tensor = run_kernel(operator, DispatchKey.Autograd, (a, *where), given)
        ctx.save_for_backward(a, made)
        ctx.note_caveat, ctx.where = note, where
        return made


@name_nodes("ProdBackward0")
class _Product(_AnyProduct):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, made = ctx.saved_tensors
        a = a.to(grad.dtype)
        try:
            n_zeros = (a == 0).nonzero().shape[0]
        except MissingValueError:
            ctx.note_caveat(UNCOUNTED)
            n_zeros = 1
        if n_zeros == 0:
            found = grad * (made / a).conj()
        elif n_zeros > 1 and not torch.is_grad_enabled():
            found = torch.zeros_like(a, memory_format=torch.contiguous_format)
        else:
            found = multiply_others(grad, a.contiguous().view(-1), 0).view_as(a)
        return None, None, found, None, None


@name_nodes("ProdBackward1")
class _Products(_AnyProduct):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, made = ctx.saved_tensors
        dim, is_kept = ctx.where
        a, dim = a.to(grad.dtype), dim % a.ndim
        if not is_kept:
            grad, made = grad.unsqueeze(dim), made.unsqueeze(dim)
        try:
            n_zeros = (a == 0).sum(dim, keepdim=True).sum().item()
        except MissingValueError:
            ctx.note_caveat(UNCOUNTED)
            n_zeros = 1
        if n_zeros == 0:
            found = grad * (made / a).conj()
        else:
            found = multiply_others(grad, a, dim)
        return None, None, found, None, None


def multiply_others(grad: Tensor, a: Tensor, dim: int) -> Tensor:
    """Return a gradient times the product of all other elements, without dividing."""
    if not a.numel():
        return grad.expand_as(a)
    if a.shape[dim] == 1:
        return grad
    shape = [*a.shape]
    shape[dim] = 1
    ones = torch.ones(shape, dtype=grad.dtype, device=grad.device)
    before = torch.cat([ones, a.narrow(dim, 0, a.shape[dim] - 1)], dim).cumprod(dim)
    after = a.narrow(dim, 1, a.shape[dim] - 1).flip(dim)
    after = torch.cat([ones, after], dim).cumprod(dim).flip(dim)
    return grad * (before * after).conj()


# All others


def needs_gradient(a: Tensor) -> bool:
    """Whether autograd records operators on a tensor."""
    return torch.is_grad_enabled() and a.requires_grad


def svdvals(_: object, a: Tensor, *, driver: str | None = None) -> Any:
    """Return singular values; compute vectors only if a gradient needs them.

    Source: ``linalg_svdvals`` and ``linalg_eigvalsh`` in ``BatchLinearAlgebra.cpp`` of
    torch 2.13: under a mode it always computes them.
    """
    wants = needs_gradient(a)
    return singular_values(a, full_matrices=False, compute_uv=wants, driver=driver)[1]


def eigvalsh(_: object, a: Tensor, UPLO: str = "L") -> Any:  # noqa: N803  the schema's
    """Return eigenvalues. Source: as above."""
    return symmetric_eigenvalues(a, UPLO, compute_v=needs_gradient(a))[0]


def eigvals(_: object, a: Tensor) -> Any:
    """Return eigenvalues. Source: as above."""
    return aten.linalg_eig(a)[0] if needs_gradient(a) else eigenvalues(a)


def matrix_rank(overload: str, _: object, *args: Any, out: Tensor, **given: Any) -> Any:
    """Write ranks of matrices into ``out``.

    Source: ``matrix_rank_impl`` in ``LinearAlgebra.cpp`` of torch 2.13: under a mode it
    does not write ``out``, and returns another tensor.
    """
    operator = getattr(aten.linalg_matrix_rank, overload)
    key = DispatchKey.CompositeImplicitAutograd
    made = run_kernel(operator, key, args, {**given, "out": out})
    return out if made is out else out.copy_(made)


RANKS: Final[Mapping[str, Callable[..., Any]]] = {
    f"linalg_matrix_rank.{name}": partial(matrix_rank, name)
    for name in ("out", "out_tol_tensor", "atol_rtol_float_out", "atol_rtol_tensor_out")
}
"""By the operator's name."""

COMPOSITE: Final = DispatchKey.CompositeImplicitAutograd
MEAN: Final = 1


Keep = Callable[..., None]
"""Keeps the values of a tensor: takes it, the function that made it, its arguments."""


def group_norm(
    _: Keep,
    a: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,  # noqa: FBT001, FBT002, ARG001
) -> Any:
    """Normalize groups of channels, with channels last if the input is.

    Source:
        ``group_norm`` in ``group_norm.cpp``: on CUDA and meta the result is in rows.
    """
    layout = suggest_memory_format(a)
    if layout is torch.contiguous_format or num_groups < 1 or a.shape[1] % num_groups:
        return NotImplemented
    batch, channels, *sizes = a.shape
    a = a.contiguous(memory_format=layout)
    counts = (batch, channels, prod(sizes), num_groups)
    if not any(needs_gradient(t) for t in (a, weight, bias) if t is not None):
        return aten.native_group_norm(a, weight, bias, *counts, eps)[0]
    return _GroupNorm.apply(a, weight, bias, counts, eps)  # type: ignore[no-untyped-call]  # torch's has no types


@name_nodes("NativeGroupNormBackward0")
class _GroupNorm(torch.autograd.Function):
    """A group norm with channels last, also in its gradient.

    Source: ``native_group_norm`` in ``derivatives.yaml``: except on the CPU the
    gradient is put in rows first.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, weight: Any, bias: Any, counts: Any, eps: float
    ) -> Tensor:
        made, mean, rstd = aten.native_group_norm(a, weight, bias, *counts, eps)
        # Detached here and where they are read, as torch does with its own results.
        ctx.save_for_backward(a, weight, bias, mean.detach(), rstd.detach())
        ctx.counts, ctx.eps = counts, eps
        return made  # type: ignore[no-any-return]  # torch.ops has no types

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, weight, bias, *statistics = ctx.saved_tensors
        mean, rstd = (tensor.detach() for tensor in statistics)
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # to be differentiated again
            made = aten.native_group_norm(a, weight, bias, *ctx.counts, ctx.eps)[0]
            pairs = zip((a, weight, bias), wanted, strict=True)
            leaves = [tensor for tensor, is_wanted in pairs if is_wanted]
            found = iter(torch.autograd.grad(made, leaves, grad, create_graph=True))
            return *(next(found) if w else None for w in wanted), None, None
        grad = grad.contiguous(memory_format=suggest_memory_format(a))
        given = (grad, a, mean, rstd, weight, *ctx.counts, wanted)
        return *aten.native_group_norm_backward(*given), None, None


def one_hot(_: Keep, a: Tensor, num_classes: int = -1) -> Any:
    """Return a row for each class value, with a one at that index.

    Source: ``one_hot`` in ``Onehot.cpp``: on meta it does not read the values.
    """
    if not a.numel() or a.dtype is not torch.long:
        if num_classes <= 0 or a.numel():
            return NotImplemented
        sizes = [*a.shape, num_classes]
        return aten.empty.memory_format(sizes, dtype=a.dtype, device=a.device)
    try:
        least, most = (value.item() for value in aten.aminmax(a))
    except MissingValueError:
        if num_classes <= 0:
            raise
        least, most = 0, num_classes - 1
    if least < 0:
        raise RuntimeError("Class values must be non-negative.")
    if 0 < num_classes <= most:
        raise RuntimeError("Class values must be smaller than num_classes.")
    shape = [*a.shape, num_classes if num_classes > 0 else int(most) + 1]
    made = aten.zeros(shape, dtype=a.dtype, device=a.device)
    return aten.scatter_.value(made, -1, aten.unsqueeze(a, -1), 1)


def ctc_loss(
    keep: Keep,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Return the loss; its mean reads lengths that C++ writes into a new tensor.

    Source: ``ctc_loss`` in ``LossCTC.cpp``.
    """
    if reduction != MEAN:
        return NotImplemented
    if log_probs.ndim == 2:  # noqa: PLR2004  no batch
        log_probs = aten.unsqueeze(log_probs, 1)
    given = (input_lengths, target_lengths, blank, zero_infinity)
    losses = loss_of_sequences(log_probs, aten.to.dtype(targets, torch.long), *given)[0]
    if zero_infinity:
        zero = aten.zeros([], dtype=losses.dtype, device=losses.device)
        losses = aten.where(losses == inf, zero, losses)
    lengths = [float(n) for n in target_lengths]
    made = torch.tensor(lengths, dtype=losses.dtype, device="meta")
    keep(made, torch.tensor, (lengths,), {})
    return aten.mean(losses / aten.clamp_min(made, 1))


def ctc_loss_of_tensors(
    _: Keep,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Return the loss. Source: as above; under a mode torch reads no lengths."""
    lengths = [
        aten.to.device(tensor, CPU, torch.long).flatten().tolist()
        for tensor in (input_lengths, target_lengths)
    ]
    given = (*lengths, blank, reduction, zero_infinity)
    return aten.ctc_loss.IntList(log_probs, targets, *given)


def max_pool1d(_: Keep, a: Tensor, *args: Any, **given: Any) -> Any:
    """Return a pooled tensor in rows; refuse dtypes that the CPU has no kernel for.

    Source: ``max_pool1d`` in ``MaxPooling.cpp`` of torch 2.13: a kernel of its own
    where no gradient is wanted and no mode is on.
    """
    if needs_gradient(a):
        return NotImplemented
    refusal = find_refusal_of_pooling(a.dtype)
    if refusal is not None:
        raise NotImplementedError(refusal)
    made = run_kernel(aten.max_pool1d.default, COMPOSITE, (a, *args), given)
    return made.contiguous()


ON_CPU: Final[Mapping[str, Callable[..., Any]]] = {
    "linalg_svdvals": svdvals,
    "linalg_eigvalsh": eigvalsh,
    "linalg_eigvals": eigvals,
    "group_norm": group_norm,
    "max_pool1d": max_pool1d,
    "one_hot": one_hot,
    "prod": multiply,
    "prod.dim_int": multiply_along,
    "ctc_loss.IntList": ctc_loss,
    "ctc_loss.Tensor": ctc_loss_of_tensors,
    **RANKS,
    **RECURRENT,
    **PACKED_RECURRENT,
}
"""By the operator's name; each returns ``NotImplemented`` where torch does it."""


def fused_dropout(_: Keep, a: Tensor, p: float, train: bool) -> Any:  # noqa: FBT001
    """Return what a dropout of one operator leaves, whose mask has a byte an element.

    Source: ``is_fused_kernel_acceptable`` in ``Dropout.cpp`` of torch 2.13.
    """
    if not (train and 0 < p < 1 and a.numel()):
        return NotImplemented
    return aten.native_dropout(a, p, train)[0]


MOST_IMAGES: Final = {True: 880_801, False: 65_535}
"""The largest batch by whether it is trained."""


def cudnn_batch_norm(  # noqa: PLR0913, PLR0917  the operator's own
    _: Keep,
    a: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
    cudnn_enabled: bool,  # noqa: FBT001, ARG001  torch reads the flag itself
) -> Any:
    """Return the batch norm of cuDNN, where torch prefers it.

    Source: ``_select_batch_norm_backend`` and ``_batch_norm_impl_index`` in
    ``Normalization.cpp``; in float32 as on an H100 with torch 2.11.
    """
    if weight is None or bias is None or a.dtype is torch.bfloat16:
        return NotImplemented
    is_narrow = a.dtype is torch.float16 and weight.dtype is not torch.float32
    has_statistics = mean is not None and var is not None
    is_without = mean is None and var is None and training
    takes = (
        torch.backends.cudnn.enabled
        and weight.dtype is not torch.bfloat16
        and not is_narrow
        and (has_statistics or is_without)
        and a.ndim > 2  # noqa: PLR2004  it has a spatial dimension
        and a.shape[0] <= MOST_IMAGES[training]
        and 0 < a.numel() < 2**31
    )
    if not takes:
        return NotImplemented
    a = a.contiguous(memory_format=suggest_memory_format(a))
    given = (t if t is None else t.contiguous() for t in (weight, bias, mean, var))
    return aten.cudnn_batch_norm(a, *given, training, momentum, eps)[0]


ON_CUDA: Final[Mapping[str, Callable[..., Any]]] = {
    "dropout": fused_dropout,
    "batch_norm": cudnn_batch_norm,
}
"""As ``ON_CPU``."""

COUNTED: Final = frozenset({"one_hot"})
"""Operators that write in C++, where no mode sees it: the write is counted here."""

DIFFERENTIATED: Final = frozenset({"prod", "prod.dim_int"})
"""Operators that torch does not compose: autograd knows their gradients."""


def scale_by_root(a: Tensor, sizes: Sequence[int], *_: object) -> tuple[Tensor, Tensor]:
    """Return a tensor as large as ``a``, and a number for each row, in float32.

    Source: ``_fused_rms_norm_cuda`` in ``layer_norm_kernel.cu`` of torch 2.13.
    """
    rows = [*a.shape[: a.ndim - len(sizes)], *[1] * len(sizes)]
    return a.new_empty(a.shape), a.new_empty(rows, dtype=torch.float32)


WHOLE: Final[Mapping[str, Callable[..., Any]]] = {
    "mish_backward": aten.mul.Tensor,
    FUSED_RMS_NORM: scale_by_root,
}
"""Operators that torch composes on meta only; values return the same metadata.

Source: ``native_functions.yaml`` of torch 2.13: they have kernels for CPU and CUDA, and
a composition for other devices.
"""


def find_operator(name: str) -> Any:
    """Return an operator of ``aten`` by its name in the tables."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def name_of(operator: Any) -> str:
    """Return the name of an operator as in the tables."""
    return str(operator).removeprefix("aten.").removesuffix(".default")


def key_of(operator: Any, kernels: str) -> DispatchKey:
    """Return the key of torch's own kernel for an operator of the table."""
    name = name_of(operator)
    is_fused = name == FUSED_RMS_NORM and kernels == "cuda"
    return DispatchKey.Autograd if is_fused or name in DIFFERENTIATED else COMPOSITE


class DeviceComposites(RecordingReplacements):
    """Makes composite operators on meta run as on a device, within the block."""

    def __init__(self, write: Writers) -> None:
        super().__init__(write)
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        if self._plan.kernels == "meta":
            return
        names = (*ON_CPU, *ON_CUDA, FUSED_RMS_NORM)
        operators = {name: find_operator(name) for name in names}
        above = {name: partial(self._run_here, it) for name, it in operators.items()}
        self.override_kernels(above, WHOLE)

    def makes(self, operator: Any) -> bool:
        """Whether an operator has another decomposition on a device."""
        name = name_of(operator)
        return name in ON_CPU or name in ON_CUDA or name == FUSED_RMS_NORM

    def run(self, operator: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run a composite operator."""
        name = name_of(operator)
        kernels = self._plan.kernels_of(args)
        make = {"cpu": ON_CPU, "cuda": ON_CUDA}.get(kernels, {}).get(name)
        sizes = args[1] if name in PACKED_RECURRENT else None  # batch sizes are real
        returned: Any = NotImplemented
        if make is not None and all(t.is_meta or t is sizes for t in tensors_in(args)):
            is_differentiated, write = name in DIFFERENTIATED, self._write
            caveat, keep = write.diagnostics.note_caveat, write.constants.note_values
            note: Callable[..., None] = caveat if is_differentiated else keep
            returned = make(note, *args, **kwargs)
            if name in COUNTED and returned is not NotImplemented and returned.numel():
                write.registry.count_write(returned)
        if returned is NotImplemented:  # if some arguments are real, torch refuses
            # Not its own decompose(), which prefers decompositions of torch.compile.
            return run_kernel(operator, key_of(operator, kernels), args, kwargs)
        return returned

    def _run_here(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:  # another thread is not recorded
            return run_kernel(operator, key_of(operator, "meta"), args, kwargs)
        return self.run(operator, args, kwargs)
