"""Set the flags of torch's backends as they were when a call was recorded."""

from bisect import bisect_right
from operator import itemgetter
from typing import Any

from meta_magic.torch_private.backend_flags import FLAGS
from meta_magic.trace.program import Program

__all__ = ["FlagsOf"]


class FlagsOf:
    """Context manager in which the flags are those of one call of a program.

    Args:
        program: The program; nothing is done if no flag was set while it was recorded.
        call: The call.
    """

    def __init__(self, program: Program, call: int) -> None:
        end = bisect_right(program.flags, call, key=itemgetter(0))
        # What is set later was torch's default before.
        self._wanted = {name: FLAGS[name].default for _, name, _ in program.flags}
        self._wanted.update((name, value) for _, name, value in program.flags[:end])
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        for name, value in self._wanted.items():
            flag = FLAGS[name]
            before = flag.default if flag.read is None else flag.read()
            if before != value:
                self._before[name] = before
                flag.write(value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            FLAGS[name].write(value)
