"""``record()``: record a block of code outside of IPython."""

import sys
from types import TracebackType

from meta_magic.record.recorder import Recording
from meta_magic.trace.trace import Trace

__all__ = ["record"]


class record:  # noqa: N801  a context manager is named as a function
    """Record every tensor operator of a block, and run it on the meta device.

    Args:
        cache: Answer calls whose signature was seen before without running torch's
            meta kernel. ``False`` runs every kernel, for checking.

    Returns:
        The :class:`Trace`, complete when the block has ended, also by an exception.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> [call.op for call in trace.ops]
        ['aten.ones.default', 'aten.ones.default', 'aten.mm.default']
    """

    def __init__(self, *, cache: bool = True) -> None:
        self._cache = cache
        self._trace: Trace | None = None

    def __enter__(self) -> Trace:
        code = sys._getframe(1).f_code
        self._recording = Recording(code.co_filename, code, cache=self._cache)
        self._trace = Trace.promise()
        self._recording.guard.enter()
        return self._trace

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        frame = sys._getframe(1)
        namespace = {**frame.f_globals, **frame.f_locals}
        try:
            self._recording.guard.leave()
        finally:
            self._trace.fulfil(self._recording.finish(error, namespace))
            del self._recording, frame
