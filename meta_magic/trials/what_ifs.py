"""Choices that change what a block costs, made in the child that runs it again.

A choice changes torch itself, for code that was not written for it: what follows is
what torch does then, no rule of thumb. It holds for good: a child ends with its trial.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from meta_magic.errors import TrialError
from meta_magic.trials.packed_adam import PackedAdam

__all__ = ["CHOICES", "Choice", "check_choices", "make_choices"]


Choice: TypeAlias = str | AbstractContextManager[object]
"""One of ``CHOICES`` by name, or a context that the block runs in."""


def make_choices(choices: Iterable[Choice], device: str) -> ExitStack:
    """Make choices, and return the context that the block is to run in.

    Args:
        choices: Them; those that have names are made for good.
        device: Type of the device whose autocast is meant.
    """
    stack = ExitStack()
    for choice in choices:
        if isinstance(choice, str):
            CHOICES[choice](device)
        else:
            stack.enter_context(choice)
    return stack


def check_choices(choices: Iterable[Choice]) -> None:
    """Make sure that choices are known.

    Raises:
        TrialError: One is not; the error lists those that are.
    """
    for choice in choices:
        if isinstance(choice, str) and choice not in CHOICES:
            known = ", ".join(CHOICES)
            raise TrialError(f"{choice!r} is no choice known; these are: {known}")


def use_bfloat16(_device: str) -> None:
    """Make parameters and activations bfloat16 that would be float32."""
    torch.set_default_dtype(torch.bfloat16)


def use_autocast(device: str) -> None:
    """Compute in bfloat16 what autocast does."""
    torch.autocast(device, torch.bfloat16).__enter__()


def checkpoint_blocks(_device: str) -> None:
    """Save what blocks are given alone, and compute them again in the backward pass.

    Blocks are modules of one class, with modules in them, that stand beside each other
    in a list or a sequence; none within another.
    """
    call = nn.Module.__call__
    known: dict[int, bool] = {}

    @wraps(call)
    def call_checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in known:  # a root: calls of what is in it come after
            blocks = {id(block) for block in find_blocks(module)}
            known.update((id(m), id(m) in blocks) for m in module.modules())
        run = partial(call, module)
        if known[id(module)] and module.training and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    nn.Module.__call__ = call_checkpointed  # type: ignore[method-assign]  # on purpose


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module."""
    for child in module.children():
        kinds = [type(one) for one in child.children()]
        is_row = isinstance(child, (nn.ModuleList, nn.Sequential))
        blocks = [
            one
            for one in child.children()
            if is_row and kinds.count(type(one)) > 1 and any(one.children())
        ]
        yield from blocks
        if not blocks:
            yield from find_blocks(child)


def fuse_optimizers(_device: str) -> None:
    """Have optimizers step in one kernel, without temporaries, where torch has one."""
    for kind in list_optimizers():
        if "fused" in inspect.signature(kind).parameters:
            kind.__init__ = fuse(kind.__init__)  # type: ignore[method-assign]  # on purpose


def fuse(init: Callable[..., None]) -> Callable[..., None]:
    """Return an optimizer's constructor that chooses the fused kernel."""

    @wraps(init)
    def init_fused(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs | {"fused": True, "foreach": False})

    return init_fused


def use_sgd(_device: str) -> None:
    """Have an SGD without momentum in the place of each optimizer."""
    replace_optimizers(lambda parameters: torch.optim.SGD(parameters, lr=1e-3))


def use_8bit_adam(_device: str) -> None:
    """Have an Adam with states of 8 bits in the place of each optimizer."""
    replace_optimizers(PackedAdam)


def page_8bit_adam(_device: str) -> None:
    """Have one whose states lie on the CPU, and are paged in for each step."""
    replace_optimizers(partial(PackedAdam, is_paged=True))


def replace_optimizers(make: Callable[[Any], Optimizer]) -> None:
    """Have another optimizer in the place of each."""

    def make_other(kind: type, params: Any, *_: Any, **__: Any) -> Any:
        if kind in kinds:
            return make(params)
        return object.__new__(kind)

    kinds = {*list_optimizers()} - {torch.optim.SGD}
    for kind in kinds:
        kind.__new__ = make_other  # type: ignore[method-assign,assignment]  # on purpose


def list_optimizers() -> list[type[Optimizer]]:
    """Return torch's optimizers."""
    found = vars(torch.optim).values()
    return [
        kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind != Optimizer
    ]


CHOICES: Final[Mapping[str, Callable[[str], None]]] = MappingProxyType(
    {
        "bfloat16": use_bfloat16,
        "autocast": use_autocast,
        "checkpointing": checkpoint_blocks,
        "fused": fuse_optimizers,
        "sgd": use_sgd,
        "8-bit": use_8bit_adam,
        "paged 8-bit": page_8bit_adam,
    }
)
"""What may be chosen, by name."""
