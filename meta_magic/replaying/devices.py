"""The devices that are there, and the memory that is free on them."""

from pathlib import Path
from typing import Final

import psutil
import torch

from meta_magic.errors import MetaMagicError

__all__ = ["free_nbytes", "list_devices", "read_device"]

GROUPS: Final = Path("/sys/fs/cgroup")
CONTROL_GROUPS: Final = (
    (GROUPS, "memory.max", "memory.current"),
    (GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Where Linux says what a container may take of memory, and takes: versions 2 and 1."""


def read_device(
    device: str | torch.device, error: type[MetaMagicError]
) -> torch.device:
    """Return a device that is there.

    Raises:
        MetaMagicError: ``error``: there is no such device, or it holds no data.
    """
    there = list_devices()
    listed = f"there {'is' if len(there) == 1 else 'are'} {', '.join(there)}"
    try:
        read = torch.device(device)
    except (RuntimeError, TypeError):
        raise error(f"{device!r} names no device: {listed}") from None
    if str(read) == "cuda" and torch.cuda.is_available():
        read = torch.device("cuda", torch.cuda.current_device())
    if read.type == "cpu":
        return torch.device("cpu")
    if str(read) not in there:
        raise error(f"there is no device {str(device)!r} to put data on: {listed}")
    return read


def list_devices() -> list[str]:
    """Return the names of the devices that tensors can be made on."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def free_nbytes(device: torch.device) -> int:
    """Return the bytes that can still be had on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *free_in_group()])


def free_in_group() -> list[int]:
    """Return what a container has left of its memory; [] where nothing limits it.

    Beyond it the process is killed, however much memory the machine has.
    """
    for folder, limit, used in CONTROL_GROUPS:
        try:
            n_limit, n_used = (int((folder / f).read_text()) for f in (limit, used))
            stat = dict(
                map(str.split, (folder / "memory.stat").read_text().splitlines())
            )
        except (OSError, ValueError):  # there is none, or the limit is "max"
            continue
        return [n_limit - n_used + int(stat.get("inactive_file", 0))]
    return []
