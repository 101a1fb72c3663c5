"""A sandbox for a block that runs again: side effects outside it are refused.

A user's cell may end with ``torch.save(model, "model.pt")``. When the cell runs again
in a child, that would overwrite the file. Python announces such acts as audit events;
:func:`enter_sandbox` refuses those of writing, of networks and of processes. Native
code announces nothing, so the kernel refuses it file writes by two locks: the largest
size of a file is zero bytes, and Landlock, where Linux has it, refuses to open a file
for writing, or to make, empty or remove one.

Source:
    ``setrlimit(2)`` and ``landlock(7)``; the rights of ``linux/landlock.h``.
"""

import builtins
import ctypes
import errno
import os
import re
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from io import BytesIO, TextIOWrapper
from multiprocessing import synchronize
from pathlib import Path, PurePath
from typing import Any, Final

import torch

from meta_magic import children
from meta_magic.torch_private import snapshot

with suppress(ImportError):  # on Windows, where nothing is forked either
    import resource


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls; their numbers are the same on all processors but Alpha."""

WRITE_FILE: Final = 1 << 1
CHANGES: Final = sum(1 << bit for bit in range(4, 13)) | WRITE_FILE
"""The rights to write to a file, and to make or remove one of any kind."""

REFER, TRUNCATE = 1 << 13, 1 << 14
RIGHTS_BY_VERSION: Final = ((2, REFER), (3, TRUNCATE))
"""Rights of later versions of Landlock: to link to another folder, to empty a file."""

CONNECT, NETWORK_SINCE = 0b11, 4
"""The rights to listen and to connect by TCP, and the version that has them."""

ASK_VERSION: Final = 1
PATH_BENEATH: Final = 1
NO_NEW_PRIVILEGES: Final = 38


def _limit_file_sizes(refuse: Callable[[str], None]) -> None:
    """Refuse to write to files, also those in memory; pipes can still be written."""
    signal.signal(signal.SIGXFSZ, lambda *_: refuse("writes a file"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def lock_files() -> bool:
    """Refuse to open files for writing, and to make, empty or remove any.

    Return whether the kernel has Landlock: Linux from 5.13 on.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    if version < 1:
        return False
    known = sum(right for since, right in RIGHTS_BY_VERSION if version >= since)
    network = CONNECT if version >= NETWORK_SINCE else 0
    ruleset = struct.pack("=QQ", CHANGES | known, network)
    descriptor = libc.syscall(CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0)
    if descriptor < 0:
        return False
    sink = os.open(os.devnull, os.O_RDONLY)
    rule = struct.pack("=Qi", WRITE_FILE | known & TRUNCATE, sink)
    libc.syscall(ADD_RULE, descriptor, PATH_BENEATH, rule, 0)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_locked: bool = libc.syscall(RESTRICT_SELF, descriptor, 0) == 0
    os.close(sink)
    os.close(descriptor)
    return is_locked


def is_refusal(error: str) -> bool:
    """Whether the text of an error may come from one of the locks."""
    return any(os.strerror(n) in error for n in (errno.EACCES, errno.EFBIG))


WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

HARMLESS: Final = frozenset({os.devnull, "/proc/self/oom_score_adj"})
"""Paths that may be written: the second one is written by a child of the child."""

LIMIT: Final = "resource.setrlimit"

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
    **dict.fromkeys(("os.kill", "os.killpg"), "sends a signal"),
    LIMIT: "changes its limits",
    "builtins.input": "asks for input",
}
"""What each refused audit event does, as the message says it."""

WATCHED: Final = frozenset({"open", *REFUSED})
"""Audit events that are looked at."""


OWN: Final = frozenset({children.__file__, snapshot.__file__})
"""Files of the package that start children, and end them."""


PRINTED: Final = BytesIO()
"""What a block in the sandbox has printed."""

WIDGET: Final = "application/vnd.jupyter.widget-view+json"
"""The kind of output that a bar of progress is."""


PICTURES: Final = re.compile("[_]repr_(png|jpeg|svg|mimebundle)_")
"""Methods of what a notebook shows as a picture, if it is the last value of a cell."""

last_values: list[str] = []
"""The classes of such values of blocks in the sandbox."""


class Refused(BaseException):
    """Raised in a block that does what a trial may not do.

    It is no ``Exception``, so that ``except Exception`` in the block cannot catch it.
    """


def enter_sandbox() -> list[str]:
    """Refuse side effects for good, in a child; return a list that gets refusals."""
    refused: list[str] = []
    # Asked first, each makes a file or folder; late imports of torch ask.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    sys.dont_write_bytecode = True
    # In a child of a child the output is that already: a second wrapper would delete
    # the first, and so close it.
    if getattr(sys.stdout, "buffer", None) is not PRINTED:
        sys.stdout = TextIOWrapper(PRINTED, "utf-8", write_through=True)
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for good
    if "matplotlib.pyplot" in sys.modules:  # figures of earlier cells
        sys.modules["matplotlib.pyplot"].close("all")
    if "IPython" in sys.modules:
        import_module("meta_magic.magic.reports").silence_shell()
    builtins.input = _refuse_input
    synchronize.SemLock.__init__ = _refuse_lock  # type: ignore[method-assign]  # for good
    torch.save = torch.serialization.save = _audit_save

    def refuse(what: str) -> None:
        refused.append(what)
        raise Refused(what)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event not in WATCHED:  # first, as id() and frames announce thousands
            return
        what = _describe(event, args)
        if what is not None:
            refuse(what)

    _limit_file_sizes(refuse)
    lock_files()
    sys.addaudithook(audit)
    return refused


def note_last_value(value: object) -> None:
    """Note the last value of a cell, if a notebook would show it as a picture."""
    kind = type(value)
    if any(map(PICTURES.fullmatch, dir(kind))):
        last_values.append(kind.__name__)


def has_plotted() -> bool:
    """Whether a block that ran in the sandbox showed a picture, or left one to show."""
    pyplot, ipython = map(sys.modules.get, ("matplotlib.pyplot", "IPython"))
    shell = ipython and ipython.get_ipython()
    shown = getattr(getattr(shell, "display_pub", None), "outputs", ())
    kinds = {kind for output in shown for kind in output["data"]} - {WIDGET}
    is_shown = any(kind.startswith(("image/", "application/")) for kind in kinds)
    return is_shown or bool(last_values or (pyplot and pyplot.get_fignums()))


def _refuse_input(prompt: object = "", /) -> str:
    """Replace ``input``, which is already replaced in a kernel."""
    sys.audit("builtins.input", prompt)
    return ""


def _refuse_lock(*_: object, **__: object) -> None:
    """Raise OSError for a lock between processes, as systems without such locks do."""
    raise OSError("a trial has no locks between processes")


@wraps(torch.save)
def _audit_save(
    obj: object, f: Any, *args: object, save: Any = torch.save, **kwargs: object
) -> None:
    """Replace ``torch.save``, which opens files in C++ without an audit event."""
    sys.audit("open", f, "wb", 0)
    save(obj, f, *args, **kwargs)


def _describe(event: str, args: tuple[Any, ...]) -> str | None:
    """Return what a watched event does; None if it is allowed."""
    if event == "open":
        path, mode, flags = args
        is_writing = flags & WRITING if mode is None else {*mode} & {*"wax+"}
        is_file = isinstance(path, (str, bytes, PurePath))
        if not is_writing or not is_file or os.fsdecode(path) in HARMLESS:
            return None
        return f"writes the file {os.fsdecode(path)!r}"
    if event == "os.mkdir" and Path(args[0]).is_dir():  # it fails, or that is expected
        return None
    # Allowed: a child forks and ends itself, and a trial within a trial sets limits.
    caller = sys._getframe(2).f_code.co_filename
    is_own = caller in OWN or (event == LIMIT and caller == __file__)
    return None if is_own else REFUSED[event]
