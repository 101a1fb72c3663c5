"""Choices that change what a block costs, made in the child that runs it again.

A choice changes torch itself, for code that was not written for it: what follows is
what torch does then, no rule of thumb. It holds for good: a child ends with its trial.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from meta_magic.errors import TrialError
from meta_magic.trials.accumulation import ACCUMULATION
from meta_magic.trials.checkpointed import checkpoint_modules
from meta_magic.trials.packed_adam import PackedAdam

__all__ = ["CHOICES", "Choice", "Fault", "check_choices", "make_choices"]

Choice: TypeAlias = str | AbstractContextManager[object]
"""One of ``CHOICES`` as it is written, or a context that the block runs in."""

Fault: TypeAlias = Callable[[], str | None]
"""Says why a choice meant nothing, once all has run; None if it did."""


class Kind(NamedTuple):
    """A kind of choice.

    Attributes:
        make: Makes it, given what stands behind a colon, "" if nothing does, and the
            type of the device that is meant; may return what finds its fault.
        argument: What may stand behind a colon, in a word; "" if nothing may.
    """

    make: Callable[[str, str], Fault | None]
    argument: str = ""


def make_choices(
    choices: Iterable[Choice], device: str, faults: list[Fault]
) -> ExitStack:
    """Make choices, and return the context that the block is to run in.

    Args:
        choices: Them; those that are written are made for good. What changes the text
            of a block is no concern of torch's.
        device: Type of the device whose autocast is meant.
        faults: What is to be asked when all has run is added to them.
    """
    stack = ExitStack()
    for choice in choices:
        if not isinstance(choice, str):
            stack.enter_context(choice)
            continue
        name, _, argument = choice.partition(":")
        fault = CHOICES[name].make(argument, device) if name in CHOICES else None
        faults += [] if fault is None else [fault]
    return stack


def check_choices(choices: Iterable[Choice]) -> None:
    """Make sure that choices are known.

    Raises:
        TrialError: One is not; the error lists those that are.
    """
    for choice in choices:
        if not isinstance(choice, str):
            continue
        name, _, argument = choice.partition(":")
        known = name in CHOICES and (CHOICES[name].argument or not argument)
        if not known and name != ACCUMULATION:
            texts = ", ".join(spell_choices())
            raise TrialError(f"{choice!r} is no choice known; these are: {texts}")


def spell_choices() -> Iterator[str]:
    """Yield how each choice may be written."""
    for name, choice in CHOICES.items():
        yield name
        if choice.argument:
            yield f"{name}:{choice.argument}"
    yield f"{ACCUMULATION}:SIZE/PARTS"


def use_bfloat16(_argument: str, _device: str) -> None:
    """Make parameters and activations bfloat16 that would be float32."""
    torch.set_default_dtype(torch.bfloat16)


def use_autocast(_argument: str, device: str) -> None:
    """Compute in bfloat16 what autocast does."""
    torch.autocast(device, torch.bfloat16).__enter__()


def fuse_optimizers(_argument: str, _device: str) -> None:
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


def use_sgd(_argument: str, _device: str) -> None:
    """Have an SGD without momentum in the place of each optimizer."""
    replace_optimizers(lambda parameters: torch.optim.SGD(parameters, lr=1e-3))


def use_8bit_adam(_argument: str, _device: str) -> None:
    """Have an Adam with states of 8 bits in the place of each optimizer."""
    replace_optimizers(PackedAdam)


def page_8bit_adam(_argument: str, _device: str) -> None:
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


def zero_gradients(_argument: str, _device: str) -> None:
    """Have ``zero_grad()`` fill gradients with zeros, and keep them."""
    for kind in (Optimizer, nn.Module):
        kind.zero_grad = keep_zeroed(kind.zero_grad)  # type: ignore[method-assign]  # on purpose


def keep_zeroed(zero_grad: Callable[..., None]) -> Callable[..., None]:
    """Return a ``zero_grad()`` that sets no gradient to None."""

    @wraps(zero_grad)
    def zero_grad_kept(owner: object, set_to_none: bool = False) -> None:  # noqa: ARG001, FBT001, FBT002  as torch has it
        zero_grad(owner, set_to_none=False)

    return zero_grad_kept


CHOICES: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "bfloat16": Kind(use_bfloat16),
        "autocast": Kind(use_autocast),
        "checkpointing": Kind(lambda p, _: checkpoint_modules(p), "PATTERN"),
        "fused": Kind(fuse_optimizers),
        "sgd": Kind(use_sgd),
        "8-bit": Kind(use_8bit_adam),
        "paged 8-bit": Kind(page_8bit_adam),
        "zeroed gradients": Kind(zero_gradients),
    }
)
"""What may be chosen by a name alone; accumulation cannot."""
