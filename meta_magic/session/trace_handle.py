"""What ``record()`` hands out before there is a trace."""

from typing import Any

from meta_magic.errors import UnfinishedTraceError
from meta_magic.trace.trace import Trace

__all__ = ["TraceHandle"]


class TraceHandle:
    """Stands for the :class:`Trace` of a block, which it becomes known when that ends.

    To everybody who asks it is that trace: ``isinstance``, attributes, equality and
    pickling go to it. Before, each question but these raises.
    """

    __slots__ = ("__weakref__", "_made")
    __dataclass_fields__ = Trace.__dataclass_fields__

    def __init__(self) -> None:
        self._made: Trace | None = None

    def fulfil(self, trace: Trace) -> None:
        """Stand for ``trace`` from now on."""
        self._made = trace

    @property  # type: ignore[misc]  # an attribute that can be set, says its stub
    def __class__(self) -> type[Trace]:  # type: ignore[override]  # on purpose
        """The class of what it stands for."""
        return Trace

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnfinishedTraceError(
                f"trace.{name} is known when the `with record()` block has ended"
            )
        return getattr(self._made, name)

    def _finished(self) -> Trace:
        if self._made is None:
            raise UnfinishedTraceError(
                "the trace is known when the `with record()` block has ended"
            )
        return self._made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return id(self) == id(other) or self._finished() == other

    def __hash__(self) -> int:
        return hash(self._finished())

    def __len__(self) -> int:
        return len(self._finished())

    def __str__(self) -> str:
        return str(self._finished())

    def __repr__(self) -> str:
        return "<Trace: recording>" if self._made is None else repr(self._made)

    @property
    def _repr_html_(self) -> Any:
        # Here, too: marimo asks only for what a class itself has.
        return self.__getattr__("_repr_html_")

    def __dir__(self) -> list[str]:
        return dir(Trace)

    def __reduce__(self) -> tuple[object, ...]:
        return get_trace, (self._finished(),)


def get_trace(trace: Trace) -> Trace:
    """Return a trace as it is: a handle is pickled and copied as what it stands for."""
    return trace
