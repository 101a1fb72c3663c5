"""Choices that change what a block costs: dtypes, checkpointing, other optimizers.

``trace.fit("H100", choices=["checkpointing", "8-bit"])`` asks about a training step
whose code has neither. A choice patches torch in the child that runs the block again
(:func:`make_choices`): the answer is what torch then does, and no rule of thumb. The
child ends after its trial, so nothing is restored. :data:`CHOICES` lists all choices.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from functools import partial, wraps
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from meta_magic.errors import TrialError
from meta_magic.torch_private.distributed import local_of
from meta_magic.trials.accumulation import ACCUMULATION

BLOCK: Final = 256
"""Numbers that share a scale."""

LEAST: Final = 4096
"""Parameters with fewer numbers keep states of 32 bits."""


class PackedAdam(Optimizer):
    """Adam with states of 8 bits, quantized by blocks; one kernel for each parameter.

    It needs the memory of the real one; its values are wrong, but no trial reads them.

    Source:
        bitsandbytes' ``Adam8bit``: two states of one byte for each number, with a scale
        of 32 bits for 256 numbers, and of 32 bits below 4,096 numbers.
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
                        self.state[parameter] = self._make_state(local_of(parameter))
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


def _checkpoint_modules(pattern: str) -> Callable[[], str | None]:
    """Checkpoint modules, as ``torch.utils.checkpoint`` does, in code that does not.

    Args:
        pattern: ``fnmatch`` pattern of the names of modules within the module that is
            called first, or of the names of their classes; "" for repeated blocks. A
            module inside of a checkpointed one is not checkpointed again.

    Returns:
        A function that returns, after the block ran, why no module was checkpointed.
    """
    call = nn.Module.__call__
    is_meant: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
    example_by_class: dict[str, str] = {}

    def classify(root: nn.Module) -> None:
        found = _find_matches(root, pattern) if pattern else _find_blocks(root)
        meant = {id(module) for module in found}
        for name, module in root.named_modules():
            is_meant[module] = id(module) in meant
            example_by_class.setdefault(type(module).__name__, name)

    @wraps(call)
    def call_checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module not in is_meant:  # a root: calls of what is in it come after
            classify(module)
            were_any.append(any(is_meant.values()))
        run = partial(call, module)
        if is_meant[module] and module.training and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    def find_fault() -> str | None:
        return None if any(were_any) else _describe_others(pattern, example_by_class)

    were_any: list[bool] = []
    nn.Module.__call__ = call_checkpointed  # type: ignore[method-assign]  # on purpose
    return find_fault


def _find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module.

    Blocks are modules of one class, with modules inside of them, that stand beside each
    other in a list or a sequence.
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
            yield from _find_blocks(child)


def _find_matches(root: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the outermost modules whose name or class matches a pattern."""
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


def _describe_others(pattern: str, example_by_class: dict[str, str]) -> str:
    """Return that no module was checkpointed, and which modules could be."""
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
"""One of :data:`CHOICES` as it is written, or a context that the block runs in."""

Fault: TypeAlias = Callable[[], str | None]
"""Returns, after the block ran, why a choice changed nothing; None if it did."""


class ChoiceKind(NamedTuple):
    """A kind of choice.

    Attributes:
        make: Patches torch, given the text after the colon ("" for none) and the type
            of the device; may return a :data:`Fault`.
        argument: The name of what is written after the colon; "" if nothing may be.
    """

    make: Callable[[str, str], Fault | None]
    argument: str = ""


def make_choices(
    choices: Iterable[Choice], device: str, faults: list[Fault]
) -> ExitStack:
    """Patch torch for each written choice; return the context that the block runs in.

    Accumulation is skipped: it changes the block's text. ``faults`` gets functions to
    call after the block ran.
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
    """Raise an error that lists all choices if one is not known."""
    for choice in choices:
        if not isinstance(choice, str):
            continue
        name, _, argument = choice.partition(":")
        known = name in CHOICES and (CHOICES[name].argument or not argument)
        if not known and name != ACCUMULATION:
            texts = [
                text
                for one, kind in CHOICES.items()
                for text in (one, *([f"{one}:{kind.argument}"] * bool(kind.argument)))
            ]
            listed = ", ".join([*texts, f"{ACCUMULATION}:SIZE/PARTS"])
            raise TrialError(f"{choice!r} is no choice known; these are: {listed}")


def _use_autocast(_: str, device: str) -> None:
    torch.autocast(device, torch.bfloat16).__enter__()


def _fuse_optimizers(*_: str) -> None:
    """Have optimizers step in one kernel, without temporaries, where torch has one."""

    def fuse(init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def init_fused(*args: Any, **kwargs: Any) -> None:
            init(*args, **kwargs | {"fused": True, "foreach": False})

        return init_fused

    for kind in _list_optimizers():
        if "fused" in inspect.signature(kind).parameters:
            kind.__init__ = fuse(kind.__init__)  # type: ignore[method-assign]  # on purpose


def _replace_optimizers(make: Callable[..., Optimizer], kinds: set[type]) -> None:
    """Construct another optimizer whenever the block constructs one of some kinds."""
    is_making = False

    def make_other(kind: type, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_making
        if is_making or kind not in kinds:
            return object.__new__(kind)
        is_making = True
        try:
            return make(kind, *args, **kwargs)
        finally:
            is_making = False

    for kind in kinds:
        kind.__new__ = make_other  # type: ignore[method-assign,assignment]  # on purpose


def _use_optimizer(optimizer: type[Optimizer], **options: Any) -> None:
    """Construct an optimizer of one kind in place of all but SGD."""

    def make(_: type, params: Any, *__: Any, **___: Any) -> Optimizer:
        return optimizer(params, **options)

    _replace_optimizers(make, {*_list_optimizers()} - {torch.optim.SGD})


def _shard_optimizers(*_: str) -> None:
    """Have each rank hold a part of the optimizer state, as ZeRO does."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415  not in each build

    def shard(kind: type, params: Any, *args: Any, **kwargs: Any) -> Optimizer:
        given = dict(zip(("lr",), args, strict=False)) | kwargs
        return ZeroRedundancyOptimizer(params, optimizer_class=kind, **given)

    _replace_optimizers(shard, {*_list_optimizers()})


def _list_optimizers() -> list[type[Optimizer]]:
    found = vars(torch.optim).values()
    return [
        kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind != Optimizer
    ]


CHOICES: Final[Mapping[str, ChoiceKind]] = {
    "bfloat16": ChoiceKind(lambda *_: torch.set_default_dtype(torch.bfloat16)),
    "autocast": ChoiceKind(_use_autocast),
    "checkpointing": ChoiceKind(lambda p, _: _checkpoint_modules(p), "PATTERN"),
    "fused": ChoiceKind(_fuse_optimizers),
    "sgd": ChoiceKind(lambda *_: _use_optimizer(torch.optim.SGD, lr=1e-3)),
    "8-bit": ChoiceKind(lambda *_: _use_optimizer(PackedAdam)),
    "paged 8-bit": ChoiceKind(lambda *_: _use_optimizer(PackedAdam, is_paged=True)),
    "zero": ChoiceKind(_shard_optimizers),
}
"""All choices but accumulation, by name."""
