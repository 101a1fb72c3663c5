"""Compare the bytes that are needed with those that are free."""

from collections.abc import Sequence

import psutil
import torch

from meta_magic.errors import MaterializeError
from meta_magic.materializing.targets import Target
from meta_magic.trace.units import format_bytes

__all__ = ["check_budget", "free_nbytes", "read_device"]

N_LARGEST = 5


def read_device(device: str | torch.device) -> torch.device:
    """Return a device that is there.

    Raises:
        MaterializeError: There is no such device, or it is meta.
    """
    try:
        read = torch.device(device)
    except (RuntimeError, TypeError):
        raise MaterializeError(f"{device!r} names no device: {there_is()}") from None
    n_devices = torch.cuda.device_count() if read.type == "cuda" else 1
    if read.type not in {"cpu", "cuda"} or (read.index or 0) >= n_devices:
        raise MaterializeError(f"cannot materialize on {read}: {there_is()}")
    if read.type == "cuda" and read.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return read


def there_is() -> str:
    """Say which devices there are."""
    names = ["'cpu'", *(f"'cuda:{i}'" for i in range(torch.cuda.device_count()))]
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def free_nbytes(device: torch.device) -> int:
    """Return the bytes that can still be had on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_budget(
    what: str, device: torch.device, needed: int, targets: Sequence[Target]
) -> None:
    """Refuse what does not fit.

    Args:
        what: What is to be made, in words.
        device: Where.
        needed: The most bytes that will be held at any moment.
        targets: What is to be made.

    Raises:
        MaterializeError: Fewer bytes are free.
    """
    free = free_nbytes(device)
    if needed <= free:
        return
    largest = sorted(targets, key=lambda target: -target.nbytes)[:N_LARGEST]
    listed = ", ".join(f"{t.name} {format_bytes(t.nbytes)}" for t in largest)
    raise MaterializeError(
        f"cannot put {what} on {device}: it takes {format_bytes(needed)} at its peak "
        f"and {format_bytes(free)} is free. The largest tensors: {listed}. Materialize "
        "a submodule, cast with dtype=, or choose another device"
    )
