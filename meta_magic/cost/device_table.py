"""Accelerators: what they compute and move in a second at most, by data sheets."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meta_magic.errors import DeviceTableError, UnknownDeviceError

if TYPE_CHECKING:
    import os

    import torch


WIDER: Final[Mapping[str, tuple[str, ...]]] = {
    "float8": ("bfloat16", "float16", "float32"),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": ("float64",),
}
"""In what a device computes a dtype that it lacks, without losing numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """How fast a device computes in a dtype.

    Attributes:
        name: Whose peak it is, as in ``Device.peaks``.
        flops: Operations in a second.
        note: What was taken for what, where the sheet has no peak for the dtype;
            else None.
    """

    name: str
    flops: float
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or a processor.

    Attributes:
        name: By which it is asked for, such as ``h100-sxm``.
        title: As its vendor calls it.
        peaks: (dtype, operations in a second) at most, dense: those with structured
            sparsity, which sheets print in large, are twice that. ``tfloat32`` is
            float32 in tensor cores, ``float32`` without.
        bandwidth: Bytes in a second that its memory gives and takes at most.
        nbytes: Bytes of its memory, as the vendor counts them; 0 if that varies.
        source: The vendor's sheet.
        basis: Whether the numbers were read on the vendor's page (``published``), as
            others quote its sheet (``quoted``), or follow from clock, cores and width
            of a vector (``derived``).

    Example:
        >>> add_devices("my-devices.toml")
        ('my-board',)
        >>> from meta_magic.cost.device_table import find_device
        >>> find_device("my-board").bandwidth
        1200000000000.0
    """

    name: str
    title: str
    peaks: tuple[tuple[str, float], ...]
    bandwidth: float
    nbytes: int
    source: str
    basis: str = ""

    def find_peak(self, dtype: "torch.dtype", *, uses_tf32: bool = False) -> Peak:
        """Return how fast it computes in a dtype: its own peak, or the next wider's.

        Args:
            dtype: Of what is multiplied.
            uses_tf32: Whether float32 may be computed in tensor cores.
        """
        wanted = name_peak(dtype)
        known = dict(self.peaks)
        if wanted == "float32" and uses_tf32 and "tfloat32" in known:
            return Peak(name="tfloat32", flops=known["tfloat32"])
        if wanted in known:
            return Peak(name=wanted, flops=known[wanted])
        wider = [name for name in WIDER.get(wanted, ()) if name in known]
        used = wider[0] if wider else min(known, key=known.__getitem__)
        return Peak(
            name=used,
            flops=known[used],
            note=f"{self.title} has no peak for {wanted}: that of {used} is taken",
        )


def name_peak(dtype: "torch.dtype") -> str:
    """Return the name under which devices have the peak of a dtype."""
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    return REAL_PARTS.get(name, name)


REAL_PARTS: Final[Mapping[str, str]] = {
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
    "uint8": "int8",
}


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices by name, to which users may add."""
    text = (files("meta_magic.cost") / "devices.toml").read_text("utf-8")
    return {device.name: device for device in read_devices(text, "devices.toml")}


def list_devices() -> tuple[Device, ...]:
    """Return all that are known, in the order of the table."""
    return tuple(known_devices().values())


def add_devices(path: "str | os.PathLike[str]") -> tuple[str, ...]:
    """Add accelerators of your own, or other numbers for known ones.

    The file is TOML, a table for each device::

        [my-board]
        title = "My board"
        bandwidth = 1.2e12                       # bytes in a second
        memory = 32e9                            # bytes
        source = "https://..."                   # where the numbers are from
        flops = { bfloat16 = 200e12, float32 = 50e12 }   # in a second, dense

    Args:
        path: The file.

    Returns:
        The names that can be asked for from now on.

    Raises:
        DeviceTableError: Something is missing, or no number.
        OSError: The file cannot be read.

    Example:
        >>> add_devices("my-devices.toml")
        ('my-board',)
    """
    file = Path(path)
    found = {d.name: d for d in read_devices(file.read_text("utf-8"), file.name)}
    known_devices().update(found)
    return tuple(found)


def find_device(device: str | Device) -> Device:
    """Return the device of a name; one that is given as it is.

    Raises:
        UnknownDeviceError: There is none of that name; the error lists all.
    """
    if isinstance(device, Device):
        return device
    known = known_devices()
    name = write_name(str(device))
    if name in known:
        return known[name]
    called = [found for found in known.values() if is_called(found, name)]
    if len(called) == 1:
        return called[0]
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UnknownDeviceError(
        f"no data of a device {device!r} are known{hint} Known are "
        f"{', '.join(known)}. meta_magic.add_devices(path) adds yours."
    )


def is_called(device: Device, name: str) -> bool:
    """Whether each word of a name stands in the title, as of ``a100-80gb``."""
    title = device.title.lower().replace(" ", "")
    return all(word in title for word in name.split("-"))


def write_name(name: str) -> str:
    """Return a name as the table has it, such as ``h100-sxm`` of ``H100 SXM``."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def read_devices(text: str, file: str) -> Iterator[Device]:
    """Yield the devices of a table."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeviceTableError(f"{file} is no TOML: {error}") from error
    for name, entry in table.items():
        yield read_device(name, entry, file)


def read_flops(entry: Any) -> list[tuple[str, Any]]:
    """Return the peaks of an entry, of which there has to be one."""
    peaks = [*entry["flops"].items()]
    if not peaks:
        raise ValueError("flops are of no dtype")
    return peaks


def read_rate(value: Any) -> float:
    """Return a rate, which has to be above 0."""
    rate = float(value)
    if rate <= 0:
        raise ValueError(f"{value} is not above 0")
    return rate


def read_device(name: str, entry: Any, file: str) -> Device:
    """Return the device of an entry."""
    try:
        return Device(
            name=write_name(name),
            title=str(entry.get("title", name)),
            peaks=tuple((d, read_rate(n)) for d, n in read_flops(entry)),
            bandwidth=read_rate(entry["bandwidth"]),
            nbytes=int(entry.get("memory", 0)),
            source=str(entry["source"]),
            basis=str(entry.get("basis", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = "lacks" if isinstance(error, KeyError) else "is wrong:"
        raise DeviceTableError(
            f"{name!r} in {file} {what} {error}; a device has flops (a table of "
            "operations in a second by dtype), bandwidth (bytes in a second), memory "
            "(bytes) and source"
        ) from error
