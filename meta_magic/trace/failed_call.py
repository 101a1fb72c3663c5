"""The call that an error came from, as the user's own code made it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meta_magic.trace.signature import Geometry, SourcePosition

ENDS: Final = ("start", "stop", "step")
"""What a slice is made of."""

UNNAMED: Final = "a tensor"
"""The name of an operand that no code and no call stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor that a failed call was given.

    Attributes:
        name: How the user's code writes it: the expression, such as ``x``, or a path
            to it, such as ``self.fc.weight``; "" where nothing there stands for it.
        aliases: What callers of that code call it.
        tensor: Its number in the trace.
        geometry: Its metadata.
        requires_grad: Whether autograd follows it.
        is_leaf: Whether nothing made it that autograd follows.
    """

    name: str
    aliases: tuple[str, ...]
    tensor: int
    geometry: Geometry
    requires_grad: bool
    is_leaf: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A state dictionary that did not fit a module.

    Attributes:
        owner: How the user's code writes the module, or its class.
        given: How it writes the dictionary.
        pairs: Names of what both have, in other sizes, each with the numbers among the
            operands: of the module's tensor, and of the given one.
        missing: Names that the dictionary lacks.
        unexpected: Names that the module lacks.
        holders: Keys of it whose values are dictionaries that have all names.
    """

    owner: str
    given: str
    pairs: tuple[tuple[str, int, int], ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """What raised, with what it was given, as far as torch has a part in it.

    It keeps nothing of the user's alive: of tensors there is the metadata alone.

    Attributes:
        function: What was called of torch: a function, a class, or a function that
            makes a module anew and calls it; None for a module that cannot be made
            anew, and for code that calls neither.
        args: Positional arguments; a tensor stands as its number among ``operands``.
        kwargs: Keyword arguments, as well.
        operands: The tensors.
        is_whole: Whether all arguments are there: those that are no plain data are not.
        frames: The user's own lines on the way to it, outermost first.
        receiver: How the user's code writes the module that was called; "" for none.
        remarks: What Python's or torch's own checks found, in sentences.
        loading: The state dictionary that did not fit, if that was it.
    """

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    operands: tuple[Operand, ...]
    is_whole: bool
    frames: tuple[SourcePosition, ...]
    receiver: str = ""
    remarks: tuple[str, ...] = ()
    loading: Loading | None = None


def walk_arguments(
    value: Any, path: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield what nested arguments hold, each with its path."""
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
