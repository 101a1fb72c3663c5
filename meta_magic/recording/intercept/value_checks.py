"""Refuse calls with an index or a class out of range, with the CPU's message.

torch's meta kernels never look at values: the error of ``embedding(torch.tensor([99]),
w)`` would come on the GPU. Here constants are compared with what the operator allows;
integers that the block computed are replayed, unless their bounds are known to fit, as
of ``torch.randint(0, n, shape)`` (:class:`KnownValues`). If a value does not fit, the
CPU's own operator runs, and its error is raised. Read :meth:`ValueChecks.check` first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, prod
from sys import maxsize
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor

from meta_magic.errors import MissingValueError, ValueLimitError
from meta_magic.recording.as_device.oracle.oracle import Answer, Verdict, ask_of_values
from meta_magic.recording.identities.tensors import Seen, tensors_in
from meta_magic.recording.rows.constants import read_constant
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import (
    Allowed,
    Args,
    Entry,
    Given,
    Inputs,
    Kwargs,
    OpTable,
)
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.failed_call import WRONG_VALUE, WrongValue
from meta_magic.trace.options import Options
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import META, Geometry, Signature, TensorArgument

MAX_DEPTH: Final = 8
"""The most calls between an operand and the call that made its values."""

MAX_MEASURED: Final = 1024
"""How many constants, and parts of constants, have their bounds remembered."""

Bounds: TypeAlias = tuple[float, float]  # the least and the greatest possible value


class KnownValues:
    """Knows constants, and bounds of integers, of the running recording."""

    def __init__(self, write: Writers) -> None:
        self.row_by_storage: dict[int, int] = {}
        self._registry, self._rows = write.registry, write.rows
        self._constants = write.constants
        self._n_read = 0
        self._changes: list[tuple[int, Sequence[int]]] = []
        self._measured: dict[tuple[int, Geometry], Bounds] = {}

    def read_on(self) -> None:
        """Read the new rows; called before any question."""
        self._rows.flush()
        for entry in self._rows.entries[len(self._changes) :]:
            if entry.changes is None:
                entry.changes = find_changes(entry.signature)
            self._changes.append(entry.changes)
        changes, storages = self._changes, self._registry.storage_by_tensor
        start, at = self._n_read, 0
        new = self._rows.words.view()[start:].tolist()  # faster than word by word
        while at < len(new):
            width, changed = changes[new[at]]
            for position in changed:
                self.row_by_storage[storages[new[at + position]]] = start + at
            at += width
        self._n_read = start + at

    def find_constant(self, storage: int, geometry: Geometry) -> Tensor | None:
        """Return the values of a tensor from outside; None if it was written."""
        if storage in self.row_by_storage:
            return None
        constant = self._constants.find(storage)
        return None if constant is None else read_constant(constant, geometry)

    def find_bounds(
        self,
        storage: int,
        geometry: Geometry,
        before: int = maxsize,
        depth: int = MAX_DEPTH,
    ) -> Bounds | None:
        """Return the bounds of a tensor's values; None if only a replay finds them."""
        if geometry.dtype is torch.bool:
            return 0, 1
        row = self.row_by_storage.get(storage)
        if row is None:
            return self._measure(storage, geometry)
        words = self._rows.words.view()
        signature = self._rows.entries[words[row]].signature
        library, name, *_ = signature.op.split(".")
        rule = RULES.get(name.strip("_")) if library == "aten" else None
        if rule is None or row >= before or signature.writes or not depth:
            return None
        numbers = words[row + HEADER :]
        storages = self._registry.storage_by_tensor
        n_inputs = len(signature.inputs)
        made = [storages[n] for n in numbers[n_inputs:][: len(signature.outputs)]]
        output = made.index(storage)
        dtype = signature.outputs[output].dtype
        if dtype is not geometry.dtype:  # a view with another dtype
            return None

        def find_moved(index: int) -> Bounds | None:
            source = storages[numbers[index]]
            return self.find_bounds(source, signature.inputs[index], row, depth - 1)

        bounds = rule(signature, output, find_moved)
        limits = torch.iinfo(dtype)
        is_exact = bounds and limits.min <= bounds[0] <= bounds[1] <= limits.max
        return bounds if is_exact else None  # other conversions wrap

    def _measure(self, storage: int, geometry: Geometry) -> Bounds | None:
        """Return the least and the greatest value of a constant."""
        constant = self._constants.find(storage)
        if constant is None:
            return None
        key = storage, geometry
        if key not in self._measured:
            real = read_constant(constant, geometry)
            if real is None or not real.numel():
                return None
            if len(self._measured) > MAX_MEASURED:
                self._measured.clear()
            with DisableTorchFunction(), DisableTorchDispatch():
                try:
                    low, high = torch.aminmax(real)
                except NotImplementedError:  # of uint16 and complex numbers
                    return None
                self._measured[key] = low.item(), high.item()
        return self._measured[key]


FindMoved: TypeAlias = Callable[[int], Bounds | None]
"""Returns the bounds of an input of a call, by its position."""

Rule: TypeAlias = Callable[[Signature, int, FindMoved], Bounds | None]
"""Returns the bounds of one of the tensors that a call made."""


def find_drawn(signature: Signature, *_: object) -> Bounds | None:
    """Return the bounds of ``randint`` or ``randperm``."""
    given = dict(signature.arguments)
    low, high = given.get("low", 0), given.get("high", given.get("n"))
    return (low, high - 1) if type(low) is type(high) is int else None


def find_counted(signature: Signature, *_: object) -> Bounds | None:
    """Return the first and the last number of ``arange``."""
    given = dict(signature.arguments)
    start, step = given.get("start", 0), given.get("step", 1)
    if not type(start) is type(step) is int:
        return None
    last = start + (max(signature.outputs[0].shape[0], 1) - 1) * step
    return min(start, last), max(start, last)


def find_positions(signature: Signature, output: int, move: FindMoved) -> Bounds | None:
    """Return the bounds of positions along a dimension, or among all elements."""
    is_arg = signature.op.startswith("aten.arg")
    if not (output or is_arg or signature.op.startswith("aten.multinomial")):
        return find_moved(signature, output, move)  # the values at these positions
    shape, given = signature.inputs[0].shape, dict(signature.arguments)
    dim: Any = given.get("dim", None if is_arg else -1)
    n = prod(shape) if dim is None or not shape else shape[dim]
    return 0, max(n, 1) - 1


def find_moved(signature: Signature, _: int, move: FindMoved) -> Bounds | None:
    """Return the bounds of the values that a call moves, and of its fill value."""
    parts: list[Bounds | None] = [*list_moved(signature, move)]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def list_moved(signature: Signature, move: FindMoved) -> Iterator[Bounds | None]:
    """Yield the bounds of each operand that a call moves, and of each number."""
    for name, value in signature.arguments:
        if name not in MOVED:
            continue
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, TensorArgument):
                yield move(part.index)
            else:
                yield (part, part) if isinstance(part, int | float) else None


MOVED: Final = frozenset({"self", "other", "tensors", "value", "fill_value", "s"})
"""Operands whose values the operators of :func:`find_moved` return."""

NAMES: Final[Mapping[Rule, str]] = {
    find_drawn: "randint randint_like randperm",
    find_counted: "arange",
    find_positions: "argmax argmin sort topk max min multinomial",
    find_moved: "clone to_copy cat stack index index_select gather masked_select "
    "flip roll repeat where masked_fill constant_pad_nd full new_full "
    "scalar_tensor",
    lambda *_: (0, 0): "zeros zeros_like new_zeros",
    lambda *_: (1, 1): "ones ones_like new_ones",
}
RULES: Final = {name: rule for rule, names in NAMES.items() for name in names.split()}
"""By the operator's name, without underscores around it."""


def find_changes(signature: Signature) -> tuple[int, Sequence[int]]:
    """Return the length of a signature's rows, and the positions of changed tensors."""
    n_inputs = len(signature.inputs)
    made = zip(signature.outputs, signature.views, strict=True)
    changed = [HEADER + index for index in signature.writes]
    new = (base is None and is_integer(geometry.dtype) for geometry, base in made)
    changed += [HEADER + n_inputs + index for index, is_new in enumerate(new) if is_new]
    return HEADER + n_inputs + len(signature.outputs), changed


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a tensor of a dtype holds integers or booleans."""
    return not (dtype.is_floating_point or dtype.is_complex)


MAX_RIGHT: Final = 4096  # how many operands in range are remembered

UNKNOWN: Final = "the CPU's answer is not known"

Evaluate: TypeAlias = Callable[[int, Geometry], Tensor]
"""Returns the values of a tensor on a storage; raises if that takes too much."""


State: TypeAlias = tuple[int, Geometry, Allowed, int | None]
"""An operand's storage and geometry, its allowed values, and the row that last wrote
or made the storage."""


class ValueChecks:
    """Refuses calls whose operands have values out of range."""

    def __init__(self, write: Writers, evaluate: Evaluate, options: Options) -> None:
        self._registry, self._diagnostics = write.registry, write.diagnostics
        self._known = KnownValues(write)
        self._evaluate = evaluate
        self._is_thorough = options.check_values
        self._is_off = options.device == "meta"
        self._right: set[State] = set()
        self._unchecked: set[tuple[str, int | None]] = set()

    def check(
        self,
        entry: Entry,
        func: Callable[..., Any],
        words: Sequence[int],
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        """Raise the CPU's error of a call, if values are out of range."""
        if self._is_off:
            return
        self._known.read_on()
        for allowed in entry.allowed:
            number = words[HEADER + allowed.position]
            storage = self._registry.storage_by_tensor[number]
            geometry = entry.signature.inputs[allowed.position]
            if geometry.device != META:  # the operator reads a real tensor itself
                continue
            last_write = self._known.row_by_storage.get(storage)
            state = storage, geometry, allowed, last_write
            real = self._find_wrong(state, str(func))
            if real is None:
                continue
            real_by_id = self._find_constants(entry, words, args, kwargs)
            real_by_id[id(tensors_in(args, kwargs)[allowed.position])] = real
            found = real, allowed
            self._judge(ask_of_values(func, args, kwargs, real_by_id), found, func)

    def _judge(
        self, answer: Answer, found: tuple[Tensor, Allowed], func: Callable[..., Any]
    ) -> None:
        """Raise the CPU's error of a call; only note it if the error is not known."""
        (real, allowed), wrong = found, describe_wrong(*found)
        if answer is Verdict.UNKNOWN:
            self._diagnostics.note("unchecked", f"{func}: {wrong}; {UNKNOWN}")
        if isinstance(answer, Verdict):
            return
        answer.add_note(f"meta_magic: {wrong}")
        if not (allowed.is_count or allowed.is_first):
            vars(answer)[WRONG_VALUE] = find_wrong_value(real, allowed)
        try:
            raise answer
        finally:
            del answer  # else this frame and the error keep each other alive

    def _find_wrong(self, state: State, name: str) -> Tensor | None:
        """Return the values of an operand if some are out of range."""
        storage, geometry, allowed, _ = state
        if state in self._right or 0 in geometry.shape:
            return None
        real, bounds = self._known.find_constant(storage, geometry), None
        if real is None and (allowed.is_count or not is_integer(geometry.dtype)):
            # Floats are the outputs of models: each check would run a whole model.
            if not self._is_thorough:
                return None
        elif real is None:
            bounds = self._known.find_bounds(storage, geometry)
        is_known = real is not None or (bounds is not None and allowed.has(*bounds))
        if is_known:
            return self._settle(state, real)
        site = self._diagnostics.locate(name)
        if site in self._unchecked and not self._is_thorough:
            return None
        try:
            real = self._evaluate(storage, geometry)
        except MissingValueError as error:
            self._unchecked.add(site)
            # Without bounds nothing is noted. Most values that take too much are right:
            # tokens that were drawn after all weights of a model.
            if self._is_thorough or (bounds and isinstance(error, ValueLimitError)):
                known = " were not checked"
                if bounds:
                    known = f" may be {bounds[0]} to {bounds[1]}"
                self._diagnostics.note(
                    "unchecked",
                    f"{name}: {allowed.name}{known}, {describe_allowed(allowed)}; to "
                    "compute them takes too much (--check-values, --value-nbytes, "
                    "--value-seconds)",
                )
            return None
        return self._settle(state, real)

    def _settle(self, state: State, real: Tensor | None) -> Tensor | None:
        """Return values that are out of range; remember those that are in range."""
        if real is not None and not is_allowed(real, state[2]):
            return real
        if len(self._right) >= MAX_RIGHT:
            self._right.clear()
        self._right.add(state)  # it is in range until it is written
        return None

    def _find_constants(
        self, entry: Entry, words: Sequence[int], args: Args, kwargs: Kwargs
    ) -> dict[int, Tensor]:
        """Return the values of operands that came from outside."""
        found = {}
        pairs = zip(tensors_in(args, kwargs), entry.signature.inputs, strict=True)
        for position, (tensor, geometry) in enumerate(pairs):
            storage = self._registry.storage_by_tensor[words[HEADER + position]]
            real = self._known.find_constant(storage, geometry)
            if real is not None and tensor.is_meta:
                found[id(tensor)] = real
        return found


def is_allowed(real: Tensor, allowed: Allowed) -> bool:
    """Whether all values of an operand are allowed."""
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
    """Return a text of the values of an operand that are out of range."""
    with DisableTorchFunction(), DisableTorchDispatch():
        if allowed.is_count:
            n_true = int(real.count_nonzero())
            most = "at most " if allowed.low < allowed.high else ""
            return f"{n_true} of {allowed.name} are true; {most}{allowed.high} may be"
    wrong = find_wrong_value(real, allowed)
    return f"{allowed.name}{wrong}; {describe_allowed(allowed)}"


def find_wrong_value(real: Tensor, allowed: Allowed) -> WrongValue:
    """Return the first value of an operand that is out of range."""
    with DisableTorchFunction(), DisableTorchDispatch():
        at = tuple(find_wrong(real, allowed).nonzero()[0].tolist())
        return WrongValue(at, real[at].item(), real.max().item(), allowed.high)


def describe_allowed(allowed: Allowed) -> str:
    """Return a text of the values that an operator accepts."""
    if allowed.high == inf:
        return f"allowed are finite numbers from {allowed.low} on"
    if allowed.is_first:
        return f"allowed is {allowed.low}"
    spared = "" if allowed.spared is None else f", and {allowed.spared}"
    return f"allowed are {allowed.low} to {allowed.high}{spared}"


class ValueSource(Protocol):
    """Computes values of meta tensors while a cell runs."""

    prepare: Callable[[Sequence[Tensor]], object]

    def evaluate(self, table: OpTable, given: Given) -> Any:
        """Return the result of an operator that needs values, or ``NotImplemented``."""

    def peek(self, tensor: Tensor, seen: Seen) -> Tensor | None:
        """Return the values of a tensor, if they are cheap; the trace shows nothing."""

    def find_number(self, tensor: Tensor, seen: Seen) -> Any:
        """Return the number in a tensor, if it is known already; else None."""

    def read(self, chosen: Inputs, *, can_wait: bool = True) -> list[Tensor]:
        """Return the values of tensors; those that shared a storage share one again."""

    def check_saved(self, chosen: Inputs, what: str) -> None:
        """Refuse to save values that rest on other processes."""

    def state_at(self, source: int) -> Tensor | None:
        """Return the state of a CPU generator as if the draws before had been made."""
