"""The call that an error came from, as the user's own code made it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from meta_magic.trace.signature import Geometry, SourcePosition

ENDS: Final = ("start", "stop", "step")
"""The attributes of a slice."""

WRONG_VALUE: Final = "meta_magic_wrong_value"
"""The attribute of an error that has a :class:`WrongValue`."""

UNNAMED: Final = "a tensor"
"""The name of an operand that the user's code does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor argument of a failed call.

    Attributes:
        name: The user's expression for it, such as ``self.fc.weight``; "" for none.
        geometry: Its metadata.
        aliases: Its names in the callers of that code.
        tensor: Its number in the trace; -1 if the trace does not have it.
    """

    name: str
    geometry: Geometry
    aliases: tuple[str, ...] = ()
    tensor: int = -1
    requires_grad: bool = False
    is_leaf: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A state dictionary that did not fit a module.

    Attributes:
        owner: The user's expression for the module, or its class.
        given: The user's expression for the dictionary.
        pairs: Names that both have in different sizes, each with two indices among the
            operands: of the module's tensor, and of the given one.
        missing: Names that the dictionary lacks.
        unexpected: Names that the module lacks.
        holders: Keys of the dictionary whose values are dictionaries with all names.
    """

    owner: str
    given: str
    pairs: tuple[tuple[str, int, int], ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    holders: tuple[str, ...]


class WrongValue(NamedTuple):
    """A value of an operand that is out of range.

    Attributes:
        high: The largest value that is allowed.
    """

    at: tuple[int, ...]
    value: float
    largest: float
    high: float

    def __str__(self) -> str:
        where = f"[{', '.join(map(str, self.at))}]" if self.at else ""
        is_larger = self.largest > max(self.value, self.high)
        more = f" (the largest is {self.largest})" if is_larger else ""
        return f"{where} is {self.value}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """The call of torch that raised, with its arguments.

    It keeps no object of the user alive: of tensors it has the metadata alone.

    Attributes:
        function: The function or class of torch, or a function that builds an equal
            module and calls it. None for a module that cannot be built again, and where
            no function or module of torch was called.
        args: Positional arguments; a tensor is its index among ``operands``.
        kwargs: Keyword arguments, with tensors as in ``args``.
        is_whole: Whether all arguments are kept: those that are plain data.
        frames: The user's lines on the way to the call, outermost first.
        receiver: The user's expression for the module that was called; "" for none.
        notes: Sentences of Python's or torch's own checks.
        loading: The state dictionary that did not fit, if that was the error.
        wrong_value: The value that is out of range, if one is.
    """

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    operands: tuple[Operand, ...]
    is_whole: bool
    frames: tuple[SourcePosition, ...]
    receiver: str = ""
    notes: tuple[str, ...] = ()
    loading: Loading | None = None
    wrong_value: WrongValue | None = None

    @property
    def is_of_torch(self) -> bool:
        """Whether a call of torch raised, rather than other code of the user's line."""
        return bool(self.function or self.receiver or self.loading)


def walk_arguments(
    value: Any, path: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield the values in nested arguments, each with its path."""
    if isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from walk_arguments(item, (*path, i))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_arguments(item, (*path, key))
    elif isinstance(value, slice):
        for end in ENDS:
            yield from walk_arguments(getattr(value, end), (*path, end))
    else:
        yield path, value
