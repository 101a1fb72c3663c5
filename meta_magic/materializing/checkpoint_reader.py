"""Read checkpoints: what is in them first, the tensors when they are wanted."""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError

__all__ = ["CheckpointEntry", "open_checkpoint", "shorten", "unreadable"]

INDICES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILES: Final = ("model.safetensors", "pytorch_model.bin")
MAX_NAMES: Final = 5
DAMAGE: Final = (OSError, RuntimeError, ValueError, LookupError, EOFError, TypeError)
"""What readers raise if a file is not what it seems."""
ZIP: Final = b"PK\x03\x04"
"""How files begin that ``torch.save`` wrote since 1.6; others cannot be mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One tensor of a checkpoint.

    Attributes:
        source: What holds it, in words.
        shape: Size of each dimension.
        load: Returns the tensor, each time another object; from a file on the CPU it
            is mapped, not read.
    """

    source: str
    shape: tuple[int, ...]
    load: Callable[[], Tensor]


def open_checkpoint(
    source: str | Path | Mapping[str, Tensor],
    device: torch.device,
    names: Iterable[str],
) -> dict[str, CheckpointEntry]:
    """Return what a checkpoint holds, by name.

    Args:
        source: A state dict; a ``.safetensors`` file; a file that ``torch.save`` wrote;
            an ``.index.json`` that names such files; or a directory with one of them.
        device: Where the tensors will be wanted.
        names: What ``init=`` takes besides, for the message if there is no checkpoint.

    Raises:
        MaterializeError: It cannot be read, or is no checkpoint.
    """
    if isinstance(source, Mapping):
        return read_mapping(source, "the mapping")
    choices = f"init= takes {', '.join(map(repr, names))}, a path or a state dict"
    if not isinstance(source, (str, Path)):
        raise MaterializeError(f"init={source!r}, but {choices}")
    path = Path(source).expanduser()
    try:
        path = find_in_directory(path) if path.is_dir() else path
        is_there = path.is_file()
    except (OSError, ValueError):  # its name alone is impossible
        is_there = False
    if not is_there:
        raise MaterializeError(f"there is no checkpoint {str(path)!r}; {choices}")
    try:
        if path.suffix == ".json":
            return read_index(path, device)
        return read_file(path, device)
    except DAMAGE as error:
        raise unreadable(path, error) from error
    except pickle.UnpicklingError as error:
        raise MaterializeError(
            f"{path} holds more than tensors, and is not unpickled as code "
            f"(weights_only=True): save it as safetensors. {first_line(error)}"
        ) from error


def find_in_directory(path: Path) -> Path:
    """Return the index or the only file of a directory.

    Raises:
        MaterializeError: There is none, or there are several.
    """
    for name in (*INDICES, *FILES):
        if (path / name).is_file():
            return path / name
    found = sorted([*path.glob("*.index.json"), *path.glob("*.safetensors")])
    if len(found) == 1:
        return found[0]
    seen = ", ".join(p.name for p in found[:MAX_NAMES]) or "neither"
    raise MaterializeError(
        f"{path} is a directory without an index: wanted one of {', '.join(INDICES)}, "
        f"or a single .safetensors file; it has {seen}. Name the file"
    )


def read_index(path: Path, device: torch.device) -> dict[str, CheckpointEntry]:
    """Return the tensors of all files that an index names."""
    index = json.loads(path.read_text(encoding="utf-8"))
    file_by_name = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(file_by_name, dict) or not all(
        isinstance(file, str) for file in file_by_name.values()
    ):
        raise MaterializeError(
            f"{path} is no index: it has no weight_map from names to files"
        )
    entries: dict[str, CheckpointEntry] = {}
    for file in sorted(set(file_by_name.values())):
        part = path.parent / file
        if not part.is_file():
            raise MaterializeError(f"{path} names {file}, which is not there")
        try:
            entries |= read_file(part, device)
        except DAMAGE as error:
            raise unreadable(part, error) from error
    missing = [name for name in file_by_name if name not in entries]
    if missing:
        raise MaterializeError(
            f"{path} lists {missing[0]!r}, which {file_by_name[missing[0]]} lacks"
        )
    return entries


def read_file(path: Path, device: torch.device) -> dict[str, CheckpointEntry]:
    """Return the tensors of one file."""
    if path.suffix == ".safetensors":
        return dict(read_safetensors(path, device))
    with path.open("rb") as file:
        can_map = file.read(len(ZIP)) == ZIP
    loaded = torch.load(path, map_location="cpu", mmap=can_map, weights_only=True)
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    return read_mapping(loaded, str(path))


def read_safetensors(
    path: Path, device: torch.device
) -> Iterator[tuple[str, CheckpointEntry]]:
    """Yield the tensors of a safetensors file.

    Raises:
        MaterializeError: The file, or the package that reads it, is not as it should.
    """
    try:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise MaterializeError(
            f"{path} needs the package safetensors: run `pip install safetensors`"
        ) from error
    try:
        file: Any = safe_open(path, framework="pt", device=str(device))  # untyped
        names = list(file.keys())
        shapes = [tuple(file.get_slice(name).get_shape()) for name in names]
    except SafetensorError as error:
        raise unreadable(path, error) from error
    for name, shape in zip(names, shapes, strict=True):
        load = partial(file.get_tensor, name)
        yield name, CheckpointEntry(source=str(path), shape=shape, load=load)


def read_mapping(source: object, what: str) -> dict[str, CheckpointEntry]:
    """Return the tensors of a state dict.

    Raises:
        MaterializeError: It holds something else.
    """
    if not isinstance(source, Mapping):
        raise MaterializeError(
            f"{what} holds a {type(source).__name__}, not a state dict"
        )
    entries = {}
    for name, tensor in source.items():
        if not isinstance(tensor, Tensor):
            raise MaterializeError(
                f"{what} holds a {type(tensor).__name__} at {name!r}, not a tensor"
            )
        if tensor.is_nested or tensor.layout is not torch.strided:
            layout = "nested" if tensor.is_nested else str(tensor.layout)
            raise MaterializeError(
                f"{what} holds {name!r} with the layout {layout}: wanted a dense tensor"
            )
        if tensor.is_quantized:
            raise MaterializeError(
                f"{what} holds {name!r} quantized ({tensor.dtype}): wanted a plain "
                "tensor, as its dequantize() gives"
            )
        if tensor.is_meta:
            raise MaterializeError(
                f"{what} holds {name!r} on meta, without values: load it outside of "
                "%%meta"
            )
        entries[str(name)] = CheckpointEntry(
            source=what, shape=tuple(tensor.shape), load=tensor.detach
        )
    return entries


def unreadable(path: Path | str, error: BaseException) -> MaterializeError:
    """Return what a user is told of a damaged file."""
    return MaterializeError(
        f"{path} cannot be read as a checkpoint; it may be damaged or cut short "
        f"({type(error).__name__}: {first_line(error)})"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return next(iter(str(error).splitlines()), "")


def shorten(names: Iterable[str]) -> str:
    """Return the first few names."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES:,} more" if len(listed) > MAX_NAMES else ""
    return ", ".join(map(repr, listed[:MAX_NAMES])) + more
