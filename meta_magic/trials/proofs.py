"""Prove advice: record the block again with what it advises, and compare the peaks."""

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, wraps
from types import FrameType, MappingProxyType, MethodWrapperType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from meta_magic.cost.advice.advice_records import Advice, Proof
from meta_magic.cost.advice.advisors import find_advice
from meta_magic.cost.memory_samples import take_sample
from meta_magic.errors import TrialError
from meta_magic.recording.identities.frame_kinds import USER, FrameKinds
from meta_magic.recording.identities.function_names import describe_function
from meta_magic.trace.program import Program
from meta_magic.trace.trace import Trace
from meta_magic.trials.trial import ask_trial

Act: TypeAlias = Callable[..., Any]
"""Called with a function of torch and its arguments; returns what it is to return."""

Spot: TypeAlias = tuple[str, str, int]
"""A function of torch, and the file and the line that call it."""


def list_spots(program: Program, places: Iterable[int]) -> Iterator[Spot]:
    """Yield the spots of places, by their index into the places of a program."""
    for number in places:
        place = program.places[number]
        if place.function is not None and place.position is not None:
            yield place.function, place.position.file, place.position.line


class ChangedCalls(TorchFunctionMode):
    """Has calls at some spots do something else, while it is entered.

    Args:
        spots: Them.
        act: What they do.
    """

    def __init__(self, spots: Iterable[Spot], act: Act) -> None:
        super().__init__()
        self._spots, self._act = {*spots}, act
        self._functions = {function for function, _, _ in self._spots}
        self._kinds = FrameKinds("", None)
        self._name = cache(describe_function)

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function, or do what stands for it."""
        options = kwargs or {}
        if type(func) is not MethodWrapperType:  # an attribute
            name = self._name(func)
            if name in self._functions and (name, *self._find_line()) in self._spots:
                return self._act(func, *args, **options)
        return func(*args, **options)

    def _find_line(self) -> tuple[str, int]:
        """Return file and line of the innermost frame that is not torch's."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not self._classify(frame) & USER:
            frame = frame.f_back
        return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def _classify(self, frame: FrameType) -> int:
        kind = self._kinds.by_code.get(id(frame.f_code))
        return self._kinds.classify(frame) if kind is None else kind


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


def make_change(advice: Advice, program: Program) -> Context | None:
    """Return a context in which a block is as an advice wants it, or None."""
    make = CHANGES.get(advice.kind)
    return None if make is None else make(advice, program)


def spare_copies(advice: Advice, program: Program) -> Context:
    """Have copies be what they are copies of."""

    def spare(_function: object, copied: Any, *_: object, **__: object) -> Any:
        return copied

    return ChangedCalls(list_spots(program, advice.places), spare)


def detach_results(advice: Advice, program: Program) -> Context:
    """Have results forget the graph that made them."""

    def detach(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs).detach()

    return ChangedCalls(list_spots(program, advice.places), detach)


def empty_parameters(advice: Advice, program: Program) -> Context:
    """Have parameters be made without elements: of what is tied, the matrices alone."""
    least = MATRIX if advice.kind == "tying" else 0

    def make(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        sizes = args if args and isinstance(args[0], int) else args[0]
        sizes = (0, *sizes[1:]) if len(sizes) >= least else sizes
        return function(sizes, **kwargs)

    return ChangedCalls(list_spots(program, advice.places), make)


def narrow_factories(advice: Advice, program: Program) -> Context:
    """Have tensors be made of the dtype that a choice names."""
    dtype = getattr(torch, str(advice.choice).rpartition("=")[2])

    def make(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs | {"dtype": dtype})

    return ChangedCalls(list_spots(program, advice.places), make)


def change_attention(advice: Advice, program: Program) -> Context:
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
def freeze_others(_advice: Advice, _program: Program) -> Iterator[None]:
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


def freeze(module: nn.Module, optimizers: WeakSet[Optimizer]) -> None:
    """Want no gradient of a module's parameters that no optimizer steps."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in module.parameters():
        if id(parameter) not in stepped:
            parameter.requires_grad_(False)  # noqa: FBT003


CHANGES: Final[Mapping[str, Callable[[Advice, Program], Context]]] = MappingProxyType(
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
"""What makes the change that is advised, by the kind of advice."""


COMPUTED: Final = "only other code makes this change: what it saves is computed"

MOST: Final = 8
"""Of all advice, what is tried: each takes as long as the block; that which spares most
comes first."""

LATER: Final = "other advice spares more, and was tried: what this saves is computed"

FREE: Final = frozenset({"copy", "dtype", "gradient", "leak", "no gradient", "tying"})
"""Kinds of advice that say exactly how many FLOPs there are without the waste."""


class Outcome(NamedTuple):
    """What a recording of the block needs.

    Attributes:
        nbytes: At the peak, on the device that holds most.
        flops: FLOPs of all its calls.
        found: Kind and lines of each advice on it.
    """

    nbytes: int
    flops: int
    found: frozenset[tuple[str, tuple[int, ...]]]


def prove_advice(trace: Trace) -> tuple[Advice, ...]:
    """Return the advice on a trace, proven where a choice does what it says.

    Advice is left out that helps nothing when it is followed.
    """
    return tuple(prove(trace, find_advice(trace)))


def prove(trace: Trace, found: tuple[Advice, ...]) -> Iterator[Advice]:
    """Yield advice with its proof, or the reason why there is none."""
    tried = [advice for advice in found if advice.choice is not None][:MOST]
    before: Outcome | None = None
    for advice in found:
        if advice not in tried:
            yield replace(advice, unproven=LATER if advice.choice else COMPUTED)
            continue
        change = make_change(advice, trace.program) or str(advice.choice)
        try:
            if before is None:  # not as recorded: a cell may change what it starts from
                before = ask_trial(trace, ask)
            after = ask_trial(trace, ask, choices=[change])
        except TrialError as error:
            yield replace(advice, unproven=str(error))
            continue
        yield from judge(advice, before, after)


def judge(advice: Advice, before: Outcome, after: Outcome) -> Iterator[Advice]:
    """Yield advice, by what the block needs without and with its change."""
    is_left = (advice.kind, advice.lines) in after.found
    is_gone = not (is_left or advice.peak_nbytes)
    if is_other(advice, before, after):
        reason = f"with {advice.choice!r} the block computes something else"
        yield replace(advice, unproven=reason)
    elif after.nbytes < before.nbytes or is_gone:
        proof = Proof(
            choice=str(advice.choice),
            before_nbytes=before.nbytes,
            after_nbytes=after.nbytes,
        )
        yield replace(advice, proof=proof)
    elif is_left:
        reason = f"{advice.choice!r} changes nothing in the block itself"
        yield replace(advice, unproven=reason)


def is_other(advice: Advice, before: Outcome, after: Outcome) -> bool:
    """Whether a change has other FLOPs than the advice says."""
    spared = before.flops - after.flops
    return advice.kind in FREE and spared not in {0, advice.flops}


def ask(again: Trace, _: Mapping[str, object]) -> Outcome:
    """Return what a recording needs, and the advice on it."""
    found = frozenset((advice.kind, advice.lines) for advice in find_advice(again))
    return Outcome(take_sample(again).peak_nbytes, again.flops, found)
