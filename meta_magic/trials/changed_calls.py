"""Have some calls of torch's functions do something else: those of a few lines."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import FrameType, MethodWrapperType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.overrides import TorchFunctionMode

from meta_magic.recording.identities.frame_kinds import USER, FrameKinds
from meta_magic.recording.identities.function_names import describe_function

if TYPE_CHECKING:
    from meta_magic.trace.program import Program

__all__ = ["Act", "ChangedCalls", "Spot", "list_spots"]

Act: TypeAlias = Callable[..., Any]
"""Called with a function of torch and its arguments; returns what it is to return."""

Spot: TypeAlias = tuple[str, str, int]
"""A function of torch, and the file and the line that call it."""


def list_spots(program: "Program", places: Iterable[int]) -> Iterator[Spot]:
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
