"""Have ``%debug`` begin in the user's frame: torch's are a ``down`` away."""

from typing import Any, Final

from meta_magic.magic.cell import Body

__all__ = ["UsersFrame"]

CELLS: Final = frozenset({Body.run.__code__, Body.run_async.__code__})


class UsersFrame:
    """Gives a shell a debugger that begins there after an error of a ``%%meta`` cell.

    Args:
        shell: The IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._tracebacks = shell.InteractiveTB
        self._former = self._tracebacks.debugger_cls
        self._own = derive_debugger(self._former)
        self._install(self._own)

    def remove(self) -> None:
        """Give the shell back its own, unless it was given another one meanwhile."""
        if self._tracebacks.debugger_cls is self._own:
            self._install(self._former)

    def _install(self, debugger: type) -> None:
        self._tracebacks.debugger_cls = debugger
        self._tracebacks.pdb = None  # one of the other kind, if it was needed before


def derive_debugger(base: Any) -> type:
    """Return a class of debuggers that begin in the user's frame after an error."""

    class Debugger(base):  # type: ignore[misc]  # whatever the shell has
        def get_stack(self, frame: Any, traceback: Any) -> tuple[list[Any], int]:
            stack, at = super().get_stack(frame, traceback)
            if frame is None and any(f.f_code in CELLS for f, _ in stack):
                at = find_users_last([f.f_code.co_filename for f, _ in stack])
            return stack, at

    return Debugger


def find_users_last(files: list[str]) -> int:
    """Return which of the files of a stack is the innermost of the user's own."""
    from meta_magic.session.shown_frames import USERS, home_of  # noqa: PLC0415  torch

    return max(at for at, file in enumerate(files) if home_of(file) == USERS)
