"""What module calls take and return: a structure, and a word for each tensor."""

import dataclasses
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.identities.traced_tensors import is_traced
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.signature import Geometry

if TYPE_CHECKING:
    from meta_magic.trace.program import Structure

__all__ = ["ModuleValues"]

MAX_DEPTH: Final = 6
PLAIN: Final = frozenset({bool, int, float, str})


class ModuleValues:
    """Describes what modules are called with and return.

    Args:
        registry: Numbers of tensors.

    Attributes:
        words: For each finished call its structure, then a word per tensor.
        structures: The structures met, in order of first call.
    """

    def __init__(self, registry: TensorRegistry) -> None:
        self.words = array("I")
        self.structures: list[Structure] = []
        self._registry = registry
        self._structure_by_key: dict[object, int] = {}

    def append(self, args: tuple[object, ...], kwargs: Any, output: object) -> int:
        """Append the words of a call, and return where they begin."""
        words = [0]
        with DisableTorchFunction():
            key = (
                tuple([self._describe(item, words, 1) for item in args]),
                self._describe(kwargs, words) if kwargs else None,
                self._describe(output, words),
            )
        words[0] = self.intern(key)
        return self.append_words(words)

    def append_words(self, words: Sequence[int]) -> int:
        """Append words, and return where they begin."""
        begin = len(self.words)
        self.words.extend(words)
        return begin

    def _describe(  # noqa: PLR0911  a call more for each tensor is felt
        self, value: object, words: list[int], depth: int = 0
    ) -> object:
        """Return what stands for ``value``; append the words of the tensors in it."""
        if isinstance(value, Tensor):
            if type(value) is not Tensor and is_traced(type(value)):
                return None  # its sizes may be symbols
            seen = self._registry.read(value)
            words.append(seen[0] << 1 | value.requires_grad)
            return seen[2]
        if value is None or type(value) in PLAIN or depth == MAX_DEPTH:
            return None
        if isinstance(value, (tuple, list)):
            return tuple([self._describe(item, words, depth + 1) for item in value])
        if isinstance(value, dict):
            return Named(
                [(k, self._describe(v, words, depth + 1)) for k, v in value.items()]
            )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return Named(
                (f.name, self._describe(getattr(value, f.name), words, depth + 1))
                for f in dataclasses.fields(value)
            )
        return None

    def intern(self, key: tuple[object, object, object]) -> int:
        """Return the number of a structure, described as arguments and output."""
        number = self._structure_by_key.get(key)
        if number is None:
            number = self._structure_by_key[key] = len(self.structures)
            args, kwargs, output = key
            inputs = (*flatten(args, ""), *flatten(kwargs, ""))
            self.structures.append((inputs, tuple(flatten(output, ""))))
        return number


class Named(tuple[tuple[str, object], ...]):
    """What was described of a dict or a dataclass: pairs of a name and its value."""

    __slots__ = ()


def flatten(described: object, path: str) -> Iterator[tuple[str, Geometry]]:
    """Yield path and geometry of each tensor in what ``_describe`` returned."""
    if isinstance(described, LiveGeometry):
        yield path, described.record
    elif isinstance(described, tuple):
        is_named = isinstance(described, Named)
        items = described if is_named else enumerate(described)
        for name, value in items:
            yield from flatten(value, f"{path}.{name}" if path else str(name))
