"""Have the kernel refuse what changes files: native code does so, and no audit sees it.

Two locks, for good. A process whose files may have no byte cannot write to one, whoever
opened it; Landlock, where Linux has it, lets it open none for writing, nor make, empty
or remove one. Without Landlock, native code can still empty or remove a file.

Source:
    ``setrlimit(2)`` and ``landlock(7)``; the rights of ``linux/landlock.h``.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

with suppress(ImportError):  # on Windows, where nothing is forked either
    import resource

__all__ = ["is_refusal", "limit_sizes", "lock_files"]

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, of the same numbers on each processor but Alpha's."""

WRITE_FILE: Final = 1 << 1
CHANGES: Final = sum(1 << bit for bit in range(4, 13)) | WRITE_FILE
"""Write to a file, and make or remove one of any kind."""

REFER, TRUNCATE = 1 << 13, 1 << 14
RIGHTS_BY_VERSION: Final = ((2, REFER), (3, TRUNCATE))
"""What later versions of Landlock know besides: to link elsewhere, and to empty."""

CONNECT, NETWORK_SINCE = 0b11, 4
"""To listen and to connect by TCP, and the version that knows these."""

ASK_VERSION: Final = 1
PATH_BENEATH: Final = 1
NO_NEW_PRIVILEGES: Final = 38


def limit_sizes(refuse: Callable[[str], None]) -> None:
    """Refuse to write to files, those in memory too; to pipes one can write.

    Args:
        refuse: Is told what was refused; may raise.
    """
    signal.signal(signal.SIGXFSZ, lambda *_: refuse("writes a file"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def lock_files() -> bool:
    """Refuse to open files for writing, and to make, empty or remove any.

    Returns:
        Whether Linux could; elsewhere, and before Linux 5.13, nothing is done.
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
    """Whether the text of an error may say that a lock held."""
    return any(os.strerror(n) in error for n in (errno.EACCES, errno.EFBIG))
