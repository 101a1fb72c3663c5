"""Accelerators: their peak FLOPs and memory bandwidth, by data sheets.

``devices.toml`` is the table; ``mm.add_devices(path)`` adds a user's own devices.
Read ``find_device`` first.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meta_magic.errors import DeviceTableError, UnknownDeviceError, hint_at

if TYPE_CHECKING:
    import os

    import torch


WIDER: Final[Mapping[str, tuple[str, ...]]] = {
    "float8": ("bfloat16", "float16", "float32"),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": ("float64",),
}
"""Dtypes in which a device computes a dtype that it lacks, without losing digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The speed of a device in a dtype.

    Attributes:
        name: The dtype of the peak, as in ``Device.peaks``.
        flops: Operations in a second.
        note: A sentence, if the data sheet has no peak for the wanted dtype; else None.
    """

    name: str
    flops: float
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or a processor.

    Attributes:
        name: Its name in the table, such as ``h100-sxm``.
        title: The vendor's name.
        peaks: (dtype, operations in a second), dense: the numbers with structured
            sparsity, which data sheets print large, are twice that. ``tfloat32`` is
            float32 in tensor cores, ``float32`` without.
        bandwidth: Peak bytes in a second of its memory.
        nbytes: Bytes of its memory, as the vendor counts them; 0 if that varies.
        source: The vendor's data sheet.
        basis: ``published`` on the vendor's page, ``quoted`` by others from its data
            sheet, or ``derived`` from clock, cores and vector width.

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
        """Return the peak for products in a dtype, or for the next wider dtype.

        ``uses_tf32`` says whether float32 may be computed in tensor cores.
        """
        name = str(dtype).removeprefix("torch.")
        wanted = "float8" if name.startswith("float8") else REAL_PARTS.get(name, name)
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


REAL_PARTS: Final[Mapping[str, str]] = {
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
    "uint8": "int8",
}


@cache
def known_devices() -> dict[str, Device]:
    """Return the devices by name; ``add_devices`` adds to this dictionary."""
    text = (files("meta_magic.cost") / "devices.toml").read_text("utf-8")
    return {device.name: device for device in read_devices(text, "devices.toml")}


def list_devices() -> tuple[Device, ...]:
    """Return all devices, in the order of the table."""
    return tuple(known_devices().values())


def add_devices(path: "str | os.PathLike[str]") -> tuple[str, ...]:
    """Add devices, or replace the numbers of known ones.

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
        The names of the devices in the file.

    Raises:
        DeviceTableError: A field is missing, or is no number.
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
    """Return the device of a name; return a :class:`Device` unchanged."""
    if isinstance(device, Device):
        return device
    known = known_devices()
    name = write_name(str(device))
    if name in known:
        return known[name]
    called = [found for found in known.values() if is_called(found, name)]
    if len(called) == 1:
        return called[0]
    hint = hint_at(name, known) or "."
    raise UnknownDeviceError(
        f"no data of a device {device!r} are known{hint} Known are "
        f"{', '.join(known)}. meta_magic.add_devices(path) adds yours."
    )


def is_called(device: Device, name: str) -> bool:
    """Whether the title has each word of a name, such as ``a100-80gb``."""
    title = device.title.lower().replace(" ", "")
    return all(word in title for word in name.split("-"))


def write_name(name: str) -> str:
    """Return a name as in the table: ``H100 SXM`` is ``h100-sxm``."""
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
    """Return the peaks of an entry; raise a ``ValueError`` if there is none."""
    peaks = [*entry["flops"].items()]
    if not peaks:
        raise ValueError("flops are of no dtype")
    return peaks


def read_rate(value: Any) -> float:
    """Return a rate; raise a ``ValueError`` if it is not above 0."""
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
