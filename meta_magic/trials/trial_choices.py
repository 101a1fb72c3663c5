"""Choices that change what a block costs, made in the child that runs it again.

A choice changes torch itself, for code that was not written for it: what follows is
what torch does then, no rule of thumb. It holds for good: a child ends with its trial.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from meta_magic.errors import TrialError
from meta_magic.trials.accumulation import ACCUMULATION

BLOCK: Final = 256
"""Numbers that share a scale."""

LEAST: Final = 4096
"""Parameters that have fewer numbers keep states of 32 bits."""


class PackedAdam(Optimizer):
    """Adam with states of 8 bits, quantized by blocks, in one kernel a parameter.

    It has the memory of the real one, not its values: a trial asks for no others.

    Source:
        bitsandbytes' ``Adam8bit``: two states of a byte a number, each with a scale
        of 32 bits for 256 of them, and of 32 bits below 4,096 numbers.
    """

    def __init__(self, params: Iterable[Any], *, is_paged: bool = False) -> None:
        super().__init__(params, {})
        self._is_paged = is_paged

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self.state[parameter] = self._make_state(parameter)
                    parameter.sub_(parameter.grad)
        return loss

    def _make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        is_packed = parameter.numel() >= LEAST
        dtype = torch.uint8 if is_packed else torch.float32
        sizes = {"exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}
        state = {name: self._make(parameter, n, dtype) for name, n in sizes.items()}
        for name, n in sizes.items() if is_packed else ():
            scales = self._make(parameter, -(-n // BLOCK), torch.float32)
            state[f"scales of {name}"] = scales
        return state

    def _make(self, parameter: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        if self._is_paged:  # on the CPU, as what no device is named for
            return torch.zeros(n, dtype=dtype)
        return parameter.new_zeros(n, dtype=dtype)


MAX_NAMED: Final = 12
"""How many classes of modules a message names."""


def checkpoint_modules(pattern: str) -> Callable[[], str | None]:
    """Have modules compute again in the backward pass what they do in the forward.

    Args:
        pattern: Of the modules' names within the one that is called first, or of their
            classes' names, as ``fnmatch`` reads it; "" for the blocks, see below. None
            within another that is meant, too.

    Returns:
        What says why no module was meant, once all has run; None if some were.
    """
    call = nn.Module.__call__
    is_meant: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
    example_by_class: dict[str, str] = {}

    def meet(root: nn.Module) -> None:
        found = find_matches(root, pattern) if pattern else find_blocks(root)
        meant = {id(module) for module in found}
        for name, module in root.named_modules():
            is_meant[module] = id(module) in meant
            example_by_class.setdefault(type(module).__name__, name)

    @wraps(call)
    def call_checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module not in is_meant:  # a root: calls of what is in it come after
            meet(module)
            met_any.append(any(is_meant.values()))
        run = partial(call, module)
        if is_meant[module] and module.training and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    def find_fault() -> str | None:
        return None if any(met_any) else describe_others(pattern, example_by_class)

    met_any: list[bool] = []
    nn.Module.__call__ = call_checkpointed  # type: ignore[method-assign]  # on purpose
    return find_fault


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module.

    Blocks are modules of one class, with modules in them, that stand beside each other
    in a list or a sequence.
    """
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


def find_matches(root: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the outermost modules whose name or class a pattern describes."""
    if fnmatchcase(type(root).__name__, pattern):
        yield root
        return
    within: str | None = None
    for name, module in root.named_modules():  # what holds others comes before them
        if not name or (within is not None and name.startswith(within)):
            continue
        if fnmatchcase(name, pattern) or fnmatchcase(type(module).__name__, pattern):
            within = f"{name}."
            yield module


def describe_others(pattern: str, example_by_class: dict[str, str]) -> str:
    """Return that no module was meant, and those that could be.

    Args:
        pattern: The pattern; "" for blocks.
        example_by_class: The name of a module of each class that was called.
    """
    if not example_by_class:
        return "has no module to checkpoint: it calls none"
    others = [
        f"{kind} ({name})" if name else kind for kind, name in example_by_class.items()
    ]
    more = ", ..." if len(others) > MAX_NAMED else ""
    what = f"that {pattern!r} names" if pattern else "in a row of its kind"
    hint = "" if pattern else "; name some, as checkpointing:PATTERN does"
    known = ", ".join(others[:MAX_NAMED])
    return f"has no module {what} among {known}{more}{hint}"


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
