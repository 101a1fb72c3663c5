"""Make a failed call again with other arguments, to see what it accepts.

The user's ``F.linear(x, weight)`` failed; is it accepted with 400 features in ``x``?
torch itself answers: nothing here knows the rule of any operator. The meta device is
asked first, then the CPU with zeros, then a recording. Read :meth:`Probe.run`.
"""

import inspect
import warnings
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf, prod
from time import process_time
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from meta_magic.children import NO_ANSWER, ask_child
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.session.raised_calls import call_module
from meta_magic.torch_private.dispatcher import schema_of
from meta_magic.trace.failed_call import ENDS, FailedCall, Operand, walk_arguments
from meta_magic.trace.signature import TensorArgument

VAR_ARGS, VAR_KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def name_argument(call: FailedCall, path: tuple[int | str, ...]) -> str:
    """Return the text of an argument's name, such as ``kernel_size[1]``.

    The path begins with 0 for positional or 1 for keyword arguments.
    """
    _, first, *inner = path
    if call.function is call_module and first == 1:  # an attribute of the module
        name, *at = map(str, inner)
        return f"{call.receiver}.{name}" + "".join(f"[{number}]" for number in at)
    if isinstance(first, int):
        names = _list_names(call.function)
        name = names[first] if first < len(names) else f"argument {first}"
        numbers = [at for at, value in enumerate(call.args) if type(value) is int]
        begun = names[numbers[0]] if numbers and numbers[0] < len(names) else ""
        if len(numbers) > 1 and first in numbers and begun in LISTED:
            name = f"{begun}[{first - numbers[0]}]"  # of ``zeros(2, 3)``
    else:
        name = first
    return name + "".join(f"[{at!r}]" for at in inner)


@lru_cache(maxsize=1024)
def _list_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional arguments, if torch has them."""
    try:
        named = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C++
        named = MappingProxyType({})
    kinds = {VAR_ARGS, VAR_KWARGS}
    if any(one.kind not in kinds for one in named.values()):
        return tuple(named)
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    overloads: list[str] = getattr(packet, "overloads", list)()  # not of ``__eq__``
    schemas = [schema_of(getattr(packet, name)) for name in overloads]
    names = [tuple(argument.name for argument in s.arguments) for s in schemas]
    return max(names, key=len, default=())


LISTED: Final = frozenset({"size", "shape", "dims", "repeats"})
"""Arguments that may be given as several numbers."""

MAX_VALUES: Final = 100_000
"""A larger operand is not made on the CPU."""


def make_like(operand: Operand, sizes: Sequence[int], device: str | None) -> Tensor:
    """Return a tensor with an operand's metadata, but with other sizes.

    The order of its dimensions in memory stays that of the operand.

    With the device None it is made for a recording, which may ask for its values.
    """
    geometry = operand.geometry
    shape, stride = tuple(sizes), geometry.stride
    if device == "cpu" and prod(shape) > MAX_VALUES:
        raise MemoryError
    if stride is None:
        steps = _dense(shape)
    elif shape == geometry.shape:
        steps = [*stride]
    else:
        order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
        ordered = _dense([shape[dim] for dim in order])
        steps = [ordered[order.index(dim)] for dim in range(len(shape))]
    dtype = geometry.dtype
    tensor = torch.empty_strided(shape, steps, dtype=dtype, device=device or "meta")
    if device != "meta":
        tensor.zero_()
    tensor.requires_grad_(operand.requires_grad)
    return tensor if operand.is_leaf else tensor.clone()


def _dense(shape: Sequence[int]) -> list[int]:
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _count_joint(*args: object) -> int:
    """Return how many elements tensors have where they are broadcast together."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in(*args)]
    try:
        return prod(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return 0


Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of all tensors that a call returned."""

DEVICES: Final = ("meta", "cpu", None)
"""Devices to ask, in this order; None is a recording."""

MAX_CANDIDATES: Final = 24
MAX_DIVIDED: Final = 4096
"""The largest number whose divisors are candidates."""


MAX_NUMEL: Final = 2**20
"""A call with a larger result is not made on the CPU."""

SECONDS: Final = 0.4
"""Processor time after which all further calls count as refused."""

SECONDS_OF_ONE: Final = 0.1
"""Processor time for other values of one number."""

PATIENCE: Final = 2.0
"""How many seconds a child may take for one call."""

LEAST_ARGUMENT: Final = -3
"""The least integer that is tried for an argument that is no size."""


class Variable(NamedTuple):
    """A number that a call depends on: a size of an operand, or an integer argument.

    Attributes:
        operand: The index of the operand; -1 for an argument.
        at: The dimension; of an argument the path to it.
    """

    operand: int
    at: int | tuple[int | str, ...]

    @property
    def is_size(self) -> bool:
        """Whether it is a size of an operand."""
        return self.operand >= 0


class Change(NamedTuple):
    """A change of an operand.

    Attributes:
        text: Its code, with ``{}`` for the operand.
    """

    text: str
    make: Callable[[Tensor], Tensor]


class Probe:
    """Makes one call again with changes, and remembers each result.

    Of meta, the CPU and a recording (which also refuses by values, and is slow), the
    first that refuses the original call is asked about all changes. If meta accepts a
    change, the CPU is asked too, with zeros. Constructors check their arguments
    themselves, so meta is enough.

    Args:
        function: What is called.
        call: Its arguments; all must be known.
        record: Runs a function within a recording; None to ask meta only.
        is_careful: Whether each call is made in a child, as it may end the process.

    Attributes:
        values: The numbers that it depends on, as they were.
        device: The device that is asked first; None if all accept the original call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        call: FailedCall,
        record: Callable[[Callable[[], Any]], Any] | None = None,
        *,
        is_careful: bool = False,
    ) -> None:
        self._is_careful = is_careful
        self.call = call
        self.function = function
        self.record = record
        self.values: dict[Variable, int] = {
            Variable(number, dim): size
            for number, operand in enumerate(call.operands)
            for dim, size in enumerate(operand.geometry.shape)
        }
        for path, value in walk_arguments((call.args, call.kwargs)):
            if type(value) is int:
                self.values[Variable(-1, path)] = value
        self._is_made = function is call_module or isinstance(function, type)
        self._known: dict[object, Shapes | None] = {}
        self._end = inf
        first = DEVICES[:-1] if record is not None else ()
        refusing = (one for one in first if self._look_up({}, {}, one) is None)
        self.device = next(refusing, None)
        if record is not None:  # from here: the first call may import much
            self.limit(SECONDS)

    def limit(self, seconds: float) -> None:
        """Count all calls as refused after some processor time from now."""
        self._end = process_time() + seconds

    def skip_device(self) -> bool:
        """Begin with the next device from now on that refuses the call as it was.

        A device that accepts the call cannot say what is wrong with it.
        """
        rest = DEVICES[DEVICES.index(self.device) + 1 :]
        refusing = (one for one in rest if self._look_up({}, {}, one) is None)
        self.device = next(refusing, None)
        return self._look_up({}, {}, self.device) is None

    def run(
        self,
        values: Mapping[Variable, int] = MappingProxyType({}),
        changes: Mapping[int, Change] = MappingProxyType({}),
    ) -> Shapes | None:
        """Return the shapes of the call with operands changed; None if it raises."""
        shapes = None
        for device in DEVICES[DEVICES.index(self.device) :]:
            if device == "cpu" and shapes and max(map(prod, shapes)) > MAX_NUMEL:
                continue
            shapes = self._look_up(values, changes, device)
            is_sure = device != "meta" or isinstance(self.function, type)
            is_last = device == self.device if shapes is None else is_sure
            if is_last:
                break
        return shapes

    def accepts(
        self,
        values: Mapping[Variable, int] = MappingProxyType({}),
        changes: Mapping[int, Change] = MappingProxyType({}),
    ) -> bool:
        """Whether the call returns with other numbers, or with changed operands."""
        return self.run(values, changes) is not None

    def seems_accepted(self, values: Mapping[Variable, int]) -> bool:
        """Whether it does on the first device alone, which is quick."""
        return self._look_up(values, {}, self.device) is not None

    def find_values(self, *group: Variable) -> list[int]:
        """Return the candidates that are accepted for all numbers of a group."""
        end = process_time() + SECONDS_OF_ONE  # a number may be that of layers
        return [
            n
            for n in self.list_candidates(group[0])
            if process_time() < end and self.accepts(dict.fromkeys(group, n))
        ]

    def list_groups(self) -> list[tuple[Variable, ...]]:
        """Return groups of equal numbers: of each operand, then of the others."""
        numbers = range(len(self.call.operands))
        parts = [[v for v in self.values if v.operand == number] for number in numbers]
        parts.append([v for v in self.values if v.operand != 0])
        groups = [
            tuple(v for v in part if self.values[v] == value)
            for part in parts
            for value in dict.fromkeys(self.values[v] for v in part)
        ]
        return [group for group in dict.fromkeys(groups) if len(group) > 1]

    def _look_up(
        self,
        values: Mapping[Variable, int],
        changes: Mapping[int, Change],
        device: str | None,
    ) -> Shapes | None:
        """Return the result of :meth:`run` on one device, asked once."""
        texts = ((number, change.text) for number, change in changes.items())
        key = frozenset(values.items()), frozenset(texts), device
        if key not in self._known:
            ask = partial(self._ask, values, changes, device)
            if process_time() > self._end:
                self._known[key] = None
            elif self._is_careful:
                answered = ask_child(ask, PATIENCE, PATIENCE)
                self._known[key] = None if answered is NO_ANSWER else answered
            else:
                self._known[key] = ask()
        return self._known[key]

    def _ask(
        self,
        values: Mapping[Variable, int],
        changes: Mapping[int, Change],
        device: str | None,
    ) -> Shapes | None:
        run = partial(self._run, values, changes, device)
        if device is None and self.record is not None:
            shapes: Shapes | None = self.record(run)
            return shapes
        with torch.device(device or "meta"):
            return run()

    def _run(
        self,
        values: Mapping[Variable, int],
        changes: Mapping[int, Change],
        device: str | None,
    ) -> Shapes | None:
        """Make the call; return the shapes that it returns, None if it raises."""
        call = self.call
        made_on = device if device or self.record is not None else "meta"

        def build(value: Any, path: tuple[int | str, ...]) -> Any:
            if isinstance(value, TensorArgument):
                operand = call.operands[value.index]
                shape = operand.geometry.shape
                sizes = [
                    values.get(Variable(value.index, dim), size)
                    for dim, size in enumerate(shape)
                ]
                change = changes.get(value.index)
                tensor = make_like(operand, sizes, made_on)
                return tensor if change is None else change.make(tensor)
            if type(value) in (tuple, list):
                items = (build(item, (*path, i)) for i, item in enumerate(value))
                return type(value)(items)
            if isinstance(value, Mapping):
                return {n: build(item, (*path, n)) for n, item in value.items()}
            if isinstance(value, slice):
                ends = (build(getattr(value, end), (*path, end)) for end in ENDS)
                return slice(*ends)
            is_number = type(value) is int
            return values.get(Variable(-1, path), value) if is_number else value

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                args, kwargs = build(call.args, (0,)), build(call.kwargs, (1,))
                if device == "cpu" and _count_joint(args, kwargs) > MAX_NUMEL:
                    return None  # a loss of all pairs of rows, too, returns one number
                returned = self.function(*args, **kwargs)
        except Exception:  # noqa: BLE001  torch's
            return None
        return tuple(tuple(tensor.shape) for tensor in tensors_in(returned))

    def label(self, variable: Variable) -> str:
        """Return the name of a number, with its value."""
        value = self.values[variable]
        if isinstance(variable.at, int):
            operand = self.call.operands[variable.operand]
            return f"dimension {variable.at} of {operand.name} ({value})"
        return f"{name_argument(self.call, variable.at)} ({value})"

    def list_candidates(self, variable: Variable) -> list[int]:
        """Return other values that a number may be meant to have.

        These are the values of other numbers, values near its own, and those with which
        the number of elements equals that of another operand.
        """
        value = self.values[variable]
        known = {v for v in self.values.values() if v > 0}
        totals = {prod(o.geometry.shape) for o in self.call.operands}
        totals.add(prod(n for v, n in self.values.items() if n > 0 and not v.is_size))
        found = known | {1, value - 1, value + 1, 2 * value, value // 2}
        # What remains of a size beside other arguments: ``torch.split``.
        parts = sum(
            n for v, n in self.values.items() if not (v.is_size or v == variable)
        )
        sizes = [n for v, n in self.values.items() if v.is_size]
        found |= {parts} if variable.is_size else {size - parts for size in sizes}
        found |= {total // v for total in totals for v in known if total % v == 0}
        rest = prod(  # of the other numbers of its operand, or of the arguments
            value
            for other, value in self.values.items()
            if other != variable and other.operand == variable.operand and value > 0
        )
        found |= {total // rest for total in totals if rest and total % rest == 0}
        if not variable.is_size:  # what the others may have to divide, as heads a width
            found |= {n for other in known for n in list_near_ratios(value, other)}
        else:  # the channels that ``pixel_shuffle`` makes pixels of
            factors = {n for v, n in self.values.items() if not v.is_size and n > 1}
            found |= {n * n * times for n in factors for times in FEW}
        least = 1
        if not (variable.is_size or self._is_made):
            found |= {-2, -1, 0}
            least = LEAST_ARGUMENT
        return sorted(n for n in found if n >= least and n != value)[:MAX_CANDIDATES]


FEW: Final = (1, 2, 3, 4)


def list_near_ratios(value: int, other: int) -> Iterator[int]:
    """Yield the divisors or multiples of another number that are nearest to a value."""
    if 1 < other < value and value % other:
        yield from (value - value % other, value - value % other + other)
    if 1 < value < other <= MAX_DIVIDED and other % value:
        divisors = [n for n in range(2, other) if other % n == 0]
        at = bisect(divisors, value)
        yield from divisors[max(at - 1, 0) : at + 1]
