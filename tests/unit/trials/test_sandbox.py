"""Native code changes no file in a trial, and what it tries is a reason to decline."""

import ctypes
import multiprocessing
import os
import tempfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch._inductor.runtime import cache_dir_utils

from meta_magic import record
from meta_magic.children import ask_child
from meta_magic.errors import TrialError
from meta_magic.trials import sandbox
from meta_magic.trials.sandbox import lock_files
from meta_magic.trials.trial import ask_trial

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs.argtypes = ctypes.c_char_p, ctypes.c_void_p
libc.fclose.argtypes = (ctypes.c_void_p,)


def has_landlock():
    return ask_child(lock_files, 10, 10) is True


needs_landlock = pytest.mark.skipif(
    not has_landlock(), reason="this kernel cannot refuse to open files"
)


def count(trace, _variables):
    return len(trace)


def save_safely(path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": np.ones(3)}, path)


def write_array(path):
    np.ones(3).tofile(path)


def map_array(path):
    np.memmap(path, np.uint8, "r+")[:] = 0


def map_new_array(path):
    np.memmap(path, np.uint8, "w+", shape=3)[:] = 0


def append_natively(path):
    """Write through a file that is not Python's, and does not say what failed."""
    file = libc.fopen(os.fsencode(path), b"a")
    if file:
        libc.fputs(b"new", file)
        libc.fclose(file)


def open_natively(path):
    """Empty a file, by opening it."""
    descriptor = libc.open(os.fsencode(path), os.O_WRONLY | os.O_TRUNC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "Permission denied")
    os.close(descriptor)


def share_tensor(path):
    size = path.stat().st_size
    torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8).fill_(0)


def remove_natively(path):
    if libc.unlink(os.fsencode(path)):
        raise OSError("Permission denied")


def decline(act, path):
    """Return why a block is not run again; what it writes is put back meanwhile."""
    path.write_bytes(b"first")
    with record() as trace:
        act(path)
    path.write_bytes(b"old")
    with pytest.raises(TrialError) as caught:
        ask_trial(trace, count)
    return str(caught.value)


@pytest.mark.parametrize("act", [write_array, map_array, map_new_array])
def test_what_numpy_writes_is_refused_by_name(tmp_path, act):
    path = tmp_path / "file"
    assert decline(act, path).startswith("it writes the file")
    assert path.read_bytes() == b"old"


@needs_landlock
@pytest.mark.parametrize(
    "act", [save_safely, open_natively, remove_natively, share_tensor]
)
def test_what_native_code_opens_for_writing_is_refused(tmp_path, act):
    path = tmp_path / "file"
    reason = decline(act, path)
    assert reason.startswith("it may not write a file here (")
    assert "Permission denied" in reason
    assert path.read_bytes() == b"old"


@needs_landlock
def test_what_native_code_fails_to_do_in_silence_is_not_done(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with record() as trace:
        append_natively(path)
    assert path.read_bytes() == b"oldnew"
    assert ask_trial(trace, count) == 0
    assert path.read_bytes() == b"oldnew"


@pytest.fixture
def without_landlock(monkeypatch):
    monkeypatch.setattr(sandbox, "lock_files", lambda: False)


@pytest.mark.usefixtures("without_landlock")
@pytest.mark.parametrize("act", [append_natively, save_safely])
def test_without_landlock_no_byte_is_written(tmp_path, act):
    path = tmp_path / "file"
    assert decline(act, path).startswith("it writes a file: move ")
    assert b"new" not in path.read_bytes()


def test_a_file_that_was_open_before_is_not_written(tmp_path):
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as log:
        with record() as trace:
            log.write("once")
            log.flush()
        with pytest.raises(TrialError, match="it writes a file"):
            ask_trial(trace, count)
    assert path.read_text("utf-8") == "once"


def test_folders_of_temporary_files_may_be_asked_for(monkeypatch, tmp_path):
    with record() as trace:
        tempfile.gettempdir()
        cache_dir_utils.cache_dir()
        torch.ones(1)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert ask_trial(trace, count) == 1


@pytest.mark.parametrize("can_lock", [True, False])
def test_a_lock_is_no_file(monkeypatch, can_lock):
    if not can_lock:
        monkeypatch.setattr(sandbox, "lock_files", lambda: False)
    with record() as trace:
        with suppress(OSError):  # as tqdm does
            multiprocessing.get_context("fork").RLock()
        torch.ones(1)
    assert ask_trial(trace, count) == 1
