"""What a block may not do that runs again in a child: touch what is outside of it.

Python says what it is about to do: that is refused by name. What native code does by
itself, the locks of ``file_locks`` refuse.
"""

import builtins
import os
import sys
from functools import wraps
from importlib import import_module
from multiprocessing import synchronize
from pathlib import Path, PurePath
from typing import Any, Final

import torch

from meta_magic.recording.as_device.oracle import child
from meta_magic.trials.file_locks import limit_sizes, lock_files

__all__ = ["Refused", "enter_sandbox"]

WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HARMLESS: Final = frozenset({os.devnull, "/proc/self/oom_score_adj"})
"""Files that are none; the second one is what a child of the child writes."""

REFUSED: Final = {
    **dict.fromkeys(
        (
            *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename"),
            *("os.rmdir", "os.symlink", "os.truncate", "os.utime", "shutil.rmtree"),
        ),
        "changes files",
    ),
    **dict.fromkeys(
        (
            *("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"),
            *("socket.sendmsg", "urllib.Request"),
        ),
        "uses the network",
    ),
    **dict.fromkeys(
        (
            *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"),
            *("os.system", "pty.spawn", "subprocess.Popen"),
        ),
        "starts a process",
    ),
    "os.kill": "sends a signal",
    "builtins.input": "asks for input",
}
"""What each event of an audit is, in words."""


class Refused(BaseException):
    """Raised in a block that does what a trial may not do.

    No ``Exception``, so that code which expects failures does not go on.
    """


def enter_sandbox() -> list[str]:
    """Refuse side effects from now on, for good; to be called in a child.

    Returns:
        What was refused, in words; it grows.
    """
    refused: list[str] = []
    sys.dont_write_bytecode = True
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for good
    if "IPython" in sys.modules:
        import_module("meta_magic.magic.reports").silence_shell()
    builtins.input = refuse_input
    synchronize.SemLock.__init__ = refuse_lock  # type: ignore[method-assign]  # for good
    torch.save = torch.serialization.save = audit_save

    def refuse(what: str) -> None:
        refused.append(what)
        raise Refused(what)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        what = describe(event, args)
        if what is not None:
            refuse(what)

    limit_sizes(refuse)
    lock_files()
    sys.addaudithook(audit)
    return refused


def refuse_input(prompt: object = "", /) -> str:
    """Stand for ``input``, which a kernel has replaced."""
    sys.audit("builtins.input", prompt)
    return ""


def refuse_lock(*_: object, **__: object) -> None:
    """Stand for a lock between processes: a file in memory, which few programs need.

    Raises:
        OSError: Always, as on systems without; who asks for one in vain expects it.
    """
    raise OSError("a trial has no locks between processes")


@wraps(torch.save)
def audit_save(
    obj: object, f: Any, *args: object, save: Any = torch.save, **kwargs: object
) -> None:
    """Stand for ``torch.save``, which opens files where no audit sees it."""
    sys.audit("open", f, "wb", 0)
    save(obj, f, *args, **kwargs)


def describe(event: str, args: tuple[Any, ...]) -> str | None:
    """Return what an event is that is refused; None for any other."""
    if event == "open":
        path, mode, flags = args
        is_writing = flags & WRITING if mode is None else {*mode} & {*"wax+"}
        is_file = isinstance(path, (str, bytes, PurePath))
        if not is_writing or not is_file or os.fsdecode(path) in HARMLESS:
            return None
        return f"writes the file {os.fsdecode(path)!r}"
    what = REFUSED.get(event)
    is_own = what and sys._getframe(2).f_code.co_filename == child.__file__
    return None if is_own else what  # a child ends itself by a signal
