"""Prove advice: record the block again with the advised change, and compare the peaks.

``trace.advice`` says "this copy is not needed: 2 GiB". The proof is a recording in
which that line makes no copy. The user's code is not edited: :class:`ChangedCalls`
changes what torch's functions do on the advised lines, in a child that ends after its
trial. Read :func:`prove_advice` first.
"""

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, wraps
from types import FrameType, MethodWrapperType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from meta_magic.cost.advice.advisors import collect_evidence, find_advice
from meta_magic.cost.advice.evidence import Advice, Proof
from meta_magic.cost.advice.world_advice import measure
from meta_magic.cost.memory_timeline import take_sample
from meta_magic.errors import TrialError
from meta_magic.recording.identities.call_sites import (
    USER,
    FrameKinds,
    describe_function,
)
from meta_magic.torch_private.tensor_internals import address_of_storage, version_of
from meta_magic.trace.program import Program
from meta_magic.trace.trace import Trace
from meta_magic.trials.slices import join_slice
from meta_magic.trials.trial import ask_trial, check_rerun
from meta_magic.trials.trial_choices import Choice

Act: TypeAlias = Callable[..., Any]
"""Replaces a call: gets the function and its arguments, returns the result."""

Spot: TypeAlias = tuple[str, str, int]
"""The name of a function of torch, and the file and line that call it."""

MATRIX: Final = 2
"""Dimensions of a tied weight; the bias, which the same line makes, has fewer."""

COMPUTED: Final = "the saving is computed: only other code makes this change"

MOST: Final = 8
"""How many pieces of advice are tried, the most valuable first: each runs the block."""

LATER: Final = "the saving is computed: only the advice that saves most was tried"

EXACT_FLOPS: Final = frozenset(
    {"copy", "dtype", "gradient", "leak", "no gradient", "tying"}
)
"""Kinds of advice whose change saves no FLOPs, or just those that are named: else the
block computes something else with it."""


def list_spots(program: Program, call_sites: Iterable[int]) -> Iterator[Spot]:
    """Yield the spots of call sites, given as indexes into those of a program."""
    for number in call_sites:
        site = program.call_sites[number]
        if site.function is not None and site.position is not None:
            yield site.function, site.position.file, site.position.line


class ChangedCalls(TorchFunctionMode):
    """Changes what torch's functions do when they are called at some spots."""

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
        """Call a function, or what replaces it."""
        options = kwargs or {}
        if type(func) is not MethodWrapperType:  # an attribute
            name = self._name(func)
            if name in self._functions and (name, *self._find_line()) in self._spots:
                return self._act(func, *args, **options)
        return func(*args, **options)

    def _find_line(self) -> tuple[str, int]:
        """Return file and line of the innermost frame outside of torch."""
        frame: FrameType | None = sys._getframe(2)
        known, classify = self._kinds.by_code, self._kinds.classify
        while frame is not None:
            kind = known.get(id(frame.f_code))
            if (classify(frame) if kind is None else kind) & USER:
                break
            frame = frame.f_back
        return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


DROPOUT: Final = "dropout_p"
ARGUMENTS: Final = ("query", "key", "value", "attn_mask", DROPOUT, "is_causal")
"""The positional arguments of attention, which torch's C++ function does not name."""

KERNELS: Final = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def _reduce_at_once(advice: Advice) -> Act:
    """Reduce the tensors of a row of calls as one, at the last of these."""
    waiting: list[Tensor] = []

    def reduce(function: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        waiting.append(tensor)
        if len(waiting) < len(advice.call_sites):
            return SENT_LATER
        flat = torch.cat([one.flatten() for one in waiting])
        work = function(flat, *args, **kwargs)
        parts = flat.split([one.numel() for one in waiting])
        for one, part in zip(waiting, parts, strict=True):
            one.copy_(part.view_as(one))
        waiting.clear()
        return work

    return reduce


class SentLater(NamedTuple):
    """The work of a call that a later one does, too."""

    wait: Callable[[], bool] = lambda: True


SENT_LATER: Final = SentLater()


def _gather_once(_: Advice) -> Act:
    """Share the first result where what is gathered is unchanged."""
    known: dict[object, list[ref[Tensor]]] = {}

    def gather(
        function: Any, made: Any, part: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        results = made if isinstance(made, list) else [made]
        address = address_of_storage(part.untyped_storage())
        key = address, version_of(part), len(results)
        former = [one() for one in known.get(key, ())]
        if not former or any(one is None for one in former):
            known[key] = [ref(one) for one in results]
            return function(made, part, *args, **kwargs)
        for one, first in zip(results, former, strict=True):
            one.set_(first)
        return SENT_LATER

    return gather


def _empty_parameters(advice: Advice) -> Act:
    """Make parameters without elements; of a tied layer its weight alone."""
    least = MATRIX if advice.kind == "tying" else 0

    def make(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        sizes = args if args and isinstance(args[0], int) else args[0]
        sizes = (0, *sizes[1:]) if len(sizes) >= least else sizes
        return function(sizes, **kwargs)

    return make


def _narrow_factories(advice: Advice) -> Act:
    dtype = getattr(torch, str(advice.choice).rpartition("=")[2])
    return lambda function, *args, **kwargs: function(
        *args, **kwargs | {"dtype": dtype}
    )


def _attend_without_dropout(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend without dropout; the function may also be a whole layer of attention."""
    names = [*ARGUMENTS]
    if function is not scaled_dot_product_attention:
        names = [*inspect.signature(function).parameters]
    return function(**dict(zip(names, args, strict=False)) | kwargs | {DROPOUT: 0.0})


def _attend_by_any_kernel(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend by the best kernel there is, even if the block switched it off."""
    with sdpa_kernel(KERNELS):
        return function(*args, **kwargs)


def _attend_contiguous(
    function: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Attend to contiguous copies, as fused kernels refuse other strides."""
    tensors = (tensor.contiguous() for tensor in (query, key, value))
    return function(*tensors, *args, **kwargs)


ATTENTION: Final[Mapping[str, Act]] = {
    "dropout_p=0": _attend_without_dropout,
    "all kernels": _attend_by_any_kernel,
    ".contiguous()": _attend_contiguous,
}
"""The replacement of a call of attention, by choice."""


ACTS: Final[Mapping[str, Callable[[Advice], Act]]] = {
    "attention": lambda advice: ATTENTION[str(advice.choice)],
    "copy": lambda _: lambda _function, copied, *_, **__: copied,
    "dtype": _narrow_factories,
    "leak": lambda _: lambda call, *args, **kwargs: call(*args, **kwargs).detach(),
    "gathered": _gather_once,
    "no gradient": _empty_parameters,
    "separate reductions": _reduce_at_once,
    "tying": _empty_parameters,
}
"""The replacement of the calls of an advice, by the kind of advice."""


@contextmanager
def _freeze_others() -> Iterator[None]:
    """Freeze parameters that no optimizer steps, from the first optimizer on."""
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
            _freeze(module, known)
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


def _freeze(module: nn.Module, optimizers: WeakSet[Optimizer]) -> None:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in module.parameters():
        if id(parameter) not in stepped:
            parameter.requires_grad_(False)  # noqa: FBT003


def _make_change(advice: Advice, trace: Trace, run: "BaselineRun") -> Choice:
    """Return the change that an advice names: a context, or a choice."""
    if advice.kind == "gradient":
        return _freeze_others()
    if advice.kind in ACTS:
        own = "" if trace.rerun is None else trace.rerun.file
        spots = [
            (name, run.file, line + run.n_above) if file == own else (name, file, line)
            for name, file, line in list_spots(trace.program, advice.call_sites)
        ]
        return ChangedCalls(spots, ACTS[advice.kind](advice))
    return str(advice.choice)


class Needs(NamedTuple):
    """What a recording of the block needs.

    Attributes:
        nbytes: Bytes at the peak, on the device that holds most.
        seconds: Estimated seconds of its communication.
        found: Kind and lines of each advice on it.
    """

    nbytes: int
    flops: int
    seconds: float
    found: frozenset[tuple[str, tuple[int, ...]]]


def prove_advice(trace: Trace) -> Iterator[Advice]:
    """Yield advice with its proof, or why there is none; not what saves nothing."""
    found = find_advice(trace)
    tried = [advice for advice in found if advice.choice is not None][:MOST]
    run: BaselineRun | None = None
    for advice in found:
        if advice not in tried:
            yield replace(advice, unproven=LATER if advice.choice else COMPUTED)
            continue
        try:
            run = run or _begin(trace)
            change = _make_change(advice, trace, run)
            after = run.ask(choices=[change])
        except TrialError as error:
            yield replace(advice, unproven=str(error))
            continue
        yield from _judge(advice, run.before, after)


class BaselineRun(NamedTuple):
    """A block that runs again: alone, or after the cells that it rests on.

    Attributes:
        ask: Runs it, and returns the outcome.
        before: The outcome of a run without a change. The recording is no measure: a
            cell may have changed what it starts from.
        n_above: How many lines are above its own text.
    """

    ask: Callable[..., Needs]
    before: Needs
    file: str
    n_above: int


def _begin(trace: Trace) -> BaselineRun:
    """Return a block that runs again."""
    rerun = check_rerun(trace)
    try:
        ask = partial(ask_trial, trace, _read_needs)
        return BaselineRun(ask, ask(), rerun.file, 0)
    except TrialError:  # it starts from what is gone
        joined = join_slice(trace)
        if joined is None:
            raise
        own = partial(_read_needs, n_above=joined.n_above)
        ask = partial(ask_trial, replace(trace, rerun=joined.rerun), own)
        return BaselineRun(ask, ask(), joined.rerun.file, joined.n_above)


def _judge(advice: Advice, before: Needs, after: Needs) -> Iterator[Advice]:
    """Yield advice with a proof, by the needs of the block without and with it."""
    is_repeated = (advice.kind, advice.lines) in after.found
    is_faster = advice.seconds > 0 and after.seconds < before.seconds
    is_gone = not (is_repeated or advice.peak_nbytes or advice.seconds)
    spared = before.flops - after.flops
    if advice.kind in EXACT_FLOPS and spared not in {0, advice.flops}:
        reason = f"with {advice.choice!r} the block computes something else"
        yield replace(advice, unproven=reason)
    elif after.nbytes < before.nbytes or is_faster or is_gone:
        proof = Proof(
            choice=str(advice.choice),
            before_nbytes=before.nbytes,
            after_nbytes=after.nbytes,
            before_seconds=before.seconds,
            after_seconds=after.seconds,
        )
        yield replace(advice, proof=proof)
    elif is_repeated:
        reason = f"{advice.choice!r} changes nothing in the block itself"
        yield replace(advice, unproven=reason)


def _read_needs(again: Trace, _: Mapping[str, object], n_above: int = 0) -> Needs:
    found = frozenset(
        (advice.kind, tuple(line - n_above for line in advice.lines))
        for advice in find_advice(again)
    )
    seconds = measure(collect_evidence(again), again.sent)[0]
    return Needs(take_sample(again).peak_nbytes, again.flops, seconds, found)
