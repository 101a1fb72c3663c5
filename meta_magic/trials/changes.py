"""What advice asks for, done to code that was not written so, while a block runs again.

Each is a context around the block, in the child that ends with its trial.
"""

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer

from meta_magic.trials.changed_calls import Act, ChangedCalls, list_spots

if TYPE_CHECKING:
    from meta_magic.cost.advice.advice_records import Advice
    from meta_magic.trace.program import Program

__all__ = ["make_change"]

Context: TypeAlias = AbstractContextManager[object]

MATRIX: Final = 2
"""Dimensions of a weight; the bias that the same line makes has one."""

DROPOUT: Final = "dropout_p"
ARGUMENTS: Final = ("query", "key", "value", "attn_mask", DROPOUT, "is_causal")
"""Of attention, by position: torch's function does not tell."""

KERNELS: Final = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def make_change(advice: "Advice", program: "Program") -> Context | None:
    """Return a context in which a block is as an advice wants it, or None."""
    make = CHANGES.get(advice.kind)
    return None if make is None else make(advice, program)


def spare_copies(advice: "Advice", program: "Program") -> Context:
    """Have copies be what they are copies of."""

    def spare(_function: object, copied: Any, *_: object, **__: object) -> Any:
        return copied

    return ChangedCalls(list_spots(program, advice.places), spare)


def detach_results(advice: "Advice", program: "Program") -> Context:
    """Have results forget the graph that made them."""

    def detach(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs).detach()

    return ChangedCalls(list_spots(program, advice.places), detach)


def empty_parameters(advice: "Advice", program: "Program") -> Context:
    """Have parameters be made without elements: of what is tied, the matrices alone."""
    least = MATRIX if advice.kind == "tying" else 0

    def make(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        sizes = args if args and isinstance(args[0], int) else args[0]
        sizes = (0, *sizes[1:]) if len(sizes) >= least else sizes
        return function(sizes, **kwargs)

    return ChangedCalls(list_spots(program, advice.places), make)


def narrow_factories(advice: "Advice", program: "Program") -> Context:
    """Have tensors be made of the dtype that a choice names."""
    dtype = getattr(torch, str(advice.choice).rpartition("=")[2])

    def make(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs | {"dtype": dtype})

    return ChangedCalls(list_spots(program, advice.places), make)


def change_attention(advice: "Advice", program: "Program") -> Context:
    """Give attention what a fused kernel takes."""
    return ChangedCalls(list_spots(program, advice.places), MENDS[str(advice.choice)])


def attend_without_dropout(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend, and drop nothing; a whole layer of attention may be meant."""
    names = [*ARGUMENTS]
    if function is not scaled_dot_product_attention:
        names = [*inspect.signature(function).parameters]
    return function(**dict(zip(names, args, strict=False)) | kwargs | {DROPOUT: 0.0})


def attend_by_any_kernel(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend by whatever kernel there is, even if it was switched off."""
    with sdpa_kernel(KERNELS):
        return function(*args, **kwargs)


def attend_together(
    function: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Attend to copies whose heads are not spread."""
    tensors = (tensor.contiguous() for tensor in (query, key, value))
    return function(*tensors, *args, **kwargs)


MENDS: Final[Mapping[str, Act]] = MappingProxyType(
    {
        "dropout_p=0": attend_without_dropout,
        "all kernels": attend_by_any_kernel,
        ".contiguous()": attend_together,
    }
)
"""What attention does instead, by choice."""


@contextmanager
def freeze_others(_advice: "Advice", _program: "Program") -> Iterator[None]:
    """Want no gradient of parameters that no optimizer steps, once there is one."""
    known = WeakSet(o for o in gc.get_objects() if isinstance(o, Optimizer))
    init, call = Optimizer.__init__, nn.Module.__call__
    depth = 0

    @wraps(init)
    def init_known(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        init(optimizer, *args, **kwargs)
        known.add(optimizer)

    @wraps(call)
    def call_frozen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth and known:
            freeze(module, known)
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1

    Optimizer.__init__ = init_known  # type: ignore[method-assign,assignment]
    nn.Module.__call__ = call_frozen  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.__init__ = init  # type: ignore[method-assign]
        nn.Module.__call__ = call  # type: ignore[method-assign]


def freeze(module: nn.Module, optimizers: "WeakSet[Optimizer]") -> None:
    """Want no gradient of a module's parameters that no optimizer steps."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in module.parameters():
        if id(parameter) not in stepped:
            parameter.requires_grad_(False)  # noqa: FBT003


CHANGES: Final[Mapping[str, Callable[["Advice", "Program"], Context]]] = (
    MappingProxyType(
        {
            "attention": change_attention,
            "copy": spare_copies,
            "dtype": narrow_factories,
            "gradient": freeze_others,
            "leak": detach_results,
            "no gradient": empty_parameters,
            "tying": empty_parameters,
        }
    )
)
"""What makes the change that is advised, by the kind of advice."""
