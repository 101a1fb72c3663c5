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

    __slots__ = ("__weakref__", "_trace")

    def __init__(self) -> None:
        self._trace: Trace | None = None

    def fulfil(self, trace: Trace) -> None:
        """Stand for ``trace`` from now on."""
        self._trace = trace

    @property  # type: ignore[misc]  # an attribute that can be set, says its stub
    def __class__(self) -> type[Trace]:  # type: ignore[override]  # on purpose
        """The class of what it stands for."""
        return Trace

    def __getattr__(self, name: str) -> Any:
        if self._trace is None:
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnfinishedTraceError(
                f"trace.{name} is known when the `with record()` block has ended"
            )
        return getattr(self._trace, name)

    def _finished(self) -> Trace:
        if self._trace is None:
            raise UnfinishedTraceError(
                "the trace is known when the `with record()` block has ended"
            )
        return self._trace

    def __eq__(self, other: object) -> bool:
        return self is other or self._finished() == other

    def __hash__(self) -> int:
        return hash(self._finished())

    def __len__(self) -> int:
        return len(self._finished())

    def __str__(self) -> str:
        return str(self._finished())

    def __repr__(self) -> str:
        return "<Trace: recording>" if self._trace is None else repr(self._trace)

    def __dir__(self) -> list[str]:
        return dir(Trace)

    def __reduce__(self) -> tuple[object, ...]:
        return get_trace, (self._finished(),)


def get_trace(trace: Trace) -> Trace:
    """Return a trace as it is: a handle is pickled and copied as what it stands for."""
    return trace
