"""Set the flags of torch's backends as they were when a call was recorded."""

from bisect import bisect_right
from operator import itemgetter
from typing import Any, Final

from meta_magic.torch_private.backend_flags import FLAGS
from meta_magic.trace.program import Program

__all__ = ["FlagsOf", "needs_flags"]

DEFAULTS: Final = {name: flag.default for name, flag in FLAGS.items()}


def needs_flags(program: Program) -> bool:
    """Whether the flags of a program are not those of now for all of its calls."""
    is_set = any(flag.read() != flag.default for flag in FLAGS.values())
    return is_set or bool(program.flags)


class FlagsOf:
    """Context manager in which the flags are those of one call of a program.

    What was not noted had its default, whatever was set after it.

    Args:
        program: The program.
        call: The call.
    """

    def __init__(self, program: Program, call: int) -> None:
        end = bisect_right(program.flags, call, key=itemgetter(0))
        noted = {name: value for _, name, value in program.flags[:end]}
        self._wanted = {**DEFAULTS, **noted}
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        for name, value in self._wanted.items():
            flag = FLAGS[name]
            before = flag.read()
            if before != value:
                self._before[name] = before
                flag.write(value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            FLAGS[name].write(value)
