"""Values that decide: a position or a class out of range is refused as on the CPU.

What is known of them is a suspicion: the CPU's own operator is asked, with what they
are. Known are values from outside, and the bounds of numbers that operators of the
block made; where these do not fit, or where all is to be checked, it is evaluated.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from torch import Tensor

from meta_magic.recording.as_device.oracle.known_operands import ask_of_values
from meta_magic.recording.as_device.oracle.oracle import Answer, Verdict
from meta_magic.recording.identities.device_plan import META
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.rows.known_values import GrowingValues
from meta_magic.recording.rows.value_bounds import Bounds
from meta_magic.recording.signatures.allowed_values import Allowed
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.entries import Entry
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.options import Options
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import Geometry

__all__ = ["ValueChecks"]

ANY: Final[Bounds] = (-inf, inf)

MAX_SETTLED: Final = 4096
"""Operands of which it is remembered that they are in range."""

NO_WORD: Final = "what the CPU says of it is not known"

Evaluate = Callable[[int, Geometry], Tensor | None]
"""Returns what a tensor on a storage holds, if that takes little."""


class Operand(NamedTuple):
    """What a call reads: its storage, its geometry, and what it may hold."""

    storage: int
    geometry: Geometry
    allowed: Allowed


class ValueChecks:
    """Refuses calls for what some of their operands hold.

    Args:
        registry: Numbers of tensors.
        known: Knows values and bounds.
        findings: Takes a note on what may be out of range.
        evaluate: Computes values.
        options: Whether all is to be evaluated; whose kernels are recorded.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        known: GrowingValues,
        findings: Findings,
        evaluate: Evaluate,
        options: Options,
    ) -> None:
        self._registry = registry
        self._known = known
        self._findings = findings
        self._evaluate = evaluate
        self._is_thorough = options.check_values
        self._is_off = options.device == "meta"
        self._settled: set[object] = set()
        self._beyond: set[tuple[str, int | None]] = set()

    def check(
        self,
        entry: Entry,
        func: Callable[..., Any],
        words: Sequence[int],
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        """Raise what the CPU raises of a call, if what some operands hold decides it.

        Args:
            entry: Its signature, which says which.
            func: The operator.
            words: The row of the call, with the tensors that it reads.
            args: Its positional arguments.
            kwargs: Its others.
        """
        self._known.read_on()
        for allowed in entry.allowed:
            number = words[HEADER + allowed.position]
            storage = self._registry.storage_by_tensor[number]
            geometry = entry.signature.inputs[allowed.position]
            if geometry.device != META:  # real operators read it themselves
                continue
            operand = Operand(storage, geometry, allowed)
            case = entry, number, self._known.row_by_storage.get(storage), allowed
            doubt = self._find_doubt(operand, case)
            if doubt is not None and not isinstance(doubt, Tensor):
                doubt = self._find_wrong(operand, case, doubt, str(func))
            if doubt is None:
                continue
            real_by_id = self._find_reals(entry, words, args, kwargs)
            real_by_id[id(tensors_in(args, kwargs)[allowed.position])] = doubt
            wrong = describe_wrong(doubt, allowed)
            self._judge(ask_of_values(func, args, kwargs, real_by_id), wrong, func)

    def _judge(self, answer: Answer, wrong: str, func: Callable[..., Any]) -> None:
        """Raise what the CPU raises of a call; note it where that is not known."""
        if answer is Verdict.UNKNOWN:
            self._findings.note("unchecked", f"{func}: {wrong}; {NO_WORD}")
        if isinstance(answer, Verdict):
            return
        answer.add_note(f"meta_magic: {wrong}")
        try:
            raise answer
        finally:
            del answer  # else this frame and the error keep each other, and all locals

    def _find_doubt(self, operand: Operand, case: object) -> Tensor | Bounds | None:
        """Return what is known of an operand that may be out of range.

        Args:
            operand: The operand.
            case: Stands for it, and for what it holds.

        Returns:
            Its values, if these are; the bounds of them, if these do not fit; ``None``
            if it is in range, or if nothing is known.
        """
        storage, geometry, allowed = operand
        if self._is_off or case in self._settled or 0 in geometry.shape:
            return None
        known, is_counted = self._known, allowed.is_count
        is_made = storage in known.row_by_storage
        real = None if is_made else known.find_real(storage, geometry)
        if real is not None and not is_allowed(real, allowed):
            return real
        if real is None:
            bounds = None if is_counted else known.find_bounds(storage, geometry)
            if bounds is None:
                return ANY if self._is_thorough else None
            if not allowed.has(*bounds):
                return bounds
        self._settle(case)
        return None

    def _find_wrong(
        self, operand: Operand, case: object, bounds: Bounds, name: str
    ) -> Tensor | None:
        """Return what an operand holds if it is out of range; evaluate it."""
        storage, geometry, allowed = operand
        place = self._findings.locate(name)
        if place in self._beyond and not self._is_thorough:
            return None
        real = self._evaluate(storage, geometry)
        if real is None:
            self._beyond.add(place)
            self._findings.note("unchecked", describe_doubt(bounds, allowed, name))
        elif is_allowed(real, allowed):
            self._settle(case)
            return None
        return real

    def _find_reals(
        self, entry: Entry, words: Sequence[int], args: Args, kwargs: Kwargs
    ) -> dict[int, Tensor]:
        """Return what the operands of a call hold that came from outside."""
        found = {}
        met = zip(tensors_in(args, kwargs), entry.signature.inputs, strict=True)
        for position, (tensor, geometry) in enumerate(met):
            number = words[HEADER + position]
            storage = self._registry.storage_by_tensor[number]
            real = self._known.find_real(storage, geometry) if tensor.is_meta else None
            if real is not None:
                found[id(tensor)] = real
        return found

    def _settle(self, case: object) -> None:
        """Remember that an operand is in range."""
        if len(self._settled) >= MAX_SETTLED:
            self._settled.clear()
        self._settled.add(case)


def is_allowed(real: Tensor, allowed: Allowed) -> bool:
    """Whether an operator takes what an operand holds."""
    with DisableTorchFunction(), DisableTorchDispatch():
        if allowed.is_count:
            return allowed.low <= int(real.count_nonzero()) <= allowed.high
        return not find_wrong(real, allowed).any()


def find_wrong(real: Tensor, allowed: Allowed) -> Tensor:
    """Return which elements of an operand are out of range."""
    is_right = (real >= allowed.low) & (real <= allowed.high) & real.isfinite()
    if allowed.spared is not None:
        is_right = is_right | (real == allowed.spared)
    if allowed.is_first:
        is_right.view(-1)[1:] = True
    return ~is_right


def describe_wrong(real: Tensor, allowed: Allowed) -> str:
    """Return in words what is out of range in an operand."""
    with DisableTorchFunction(), DisableTorchDispatch():
        if allowed.is_count:
            n_true = int(real.count_nonzero())
            most = "at most " if allowed.low < allowed.high else ""
            return f"{n_true} of {allowed.name} are true; {most}{allowed.high} may be"
        at = tuple(find_wrong(real, allowed).nonzero()[0].tolist())
        where = f"[{', '.join(map(str, at))}]" if at else ""
        return (
            f"{allowed.name}{where} is {real[at].item()}; {describe_allowed(allowed)}"
        )


def describe_doubt(bounds: Bounds, allowed: Allowed, name: str) -> str:
    """Return in words that nobody knows whether an operand is in range."""
    known = "" if bounds == ANY else f" may be {bounds[0]} to {bounds[1]}"
    is_not = known or " were not checked"
    return (
        f"{name}: {allowed.name}{is_not}, {describe_allowed(allowed)}; to compute them "
        "takes too much (--check-values, --value-nbytes, --value-seconds)"
    )


def describe_allowed(allowed: Allowed) -> str:
    """Return in words what an operator takes."""
    if allowed.high == inf:
        return f"allowed are finite numbers from {allowed.low} on"
    if allowed.is_first:
        return f"allowed is {allowed.low}"
    spared = "" if allowed.spared is None else f", and {allowed.spared}"
    return f"allowed are {allowed.low} to {allowed.high}{spared}"
