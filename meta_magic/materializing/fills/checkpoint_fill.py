"""``init=`` a path or a state dict: a checkpoint, and the recording for the rest.

``open_checkpoint`` reads names and shapes, ``CheckpointFill`` assigns the tensors.
Those that the checkpoint lacks are replayed.
"""

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.protocol import (
    CheckpointEntry,
    Content,
    EmptyFill,
    Fill,
    Put,
    Task,
    TensorPart,
)
from meta_magic.materializing.fills.replay_fill import ReplayFill
from meta_magic.materializing.targets import Held, Target
from meta_magic.replaying.call_runner import allocate, make_view
from meta_magic.torch_private.distributed import list_chunks, local_of
from meta_magic.torch_private.tensor_internals import is_wrapper

INDICES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
METADATA: Final = ".metadata"
"""The file by which a folder of ``torch.distributed.checkpoint`` is known."""

FILES: Final = ("model.safetensors", "pytorch_model.bin")
MAX_NAMES: Final = 5

# The errors of readers when a file is not of the type that its name says.
DAMAGE: Final = (OSError, RuntimeError, ValueError, LookupError, EOFError, TypeError)

# How files begin that ``torch.save`` has written since 1.6; others cannot be mapped.
ZIP: Final = b"PK\x03\x04"


class CheckpointFill:
    """Assigns the tensors of a checkpoint, without a copy where they fit."""

    gives: ClassVar = (
        "a checkpoint, assigned without a copy where dtype and strides allow it; what "
        "it lacks is replayed"
    )

    def __init__(self, task: Task, entries: Mapping[str, CheckpointEntry]) -> None:
        match_names(task.held, entries)
        self.targets = task.targets
        self._entries = entries
        named = [t for t in task.targets if any(h.name in entries for h in t.held)]
        self._loaded = named
        self._rest = rest = self._plan_rest(task)
        self.forecast, self.finish = rest.forecast, rest.finish
        self.n_operators = rest.n_operators

    @property
    def n_work(self) -> int:
        """Bytes to be loaded, and the work of the rest."""
        return self._rest.n_work + sum(target.nbytes for target in self._loaded)

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Return what fills a tensor: ``checkpoint``, or what fills the rest."""
        if self._is_loaded(target, tensor):
            return "checkpoint"
        return self._rest.filled_by(target, tensor)

    def peak_nbytes(self) -> int:
        """Return the most bytes held; mapped tensors count none."""
        loaded = self._loaded
        copied = (t for t in loaded if t.device.type != "cpu" or not can_assign(t))
        return sum(t.nbytes for t in copied) + self._rest.peak_nbytes()

    def run(self, put: Put) -> Iterator[int]:
        """Load all targets."""
        in_part: dict[Target, Content] = {}
        loaded = set(self._loaded)

        def put_rest(target: Target, content: Content) -> None:
            if target in loaded:
                in_part[target] = content
            else:
                put(target, content)

        yield from self._rest.run(put_rest)
        for target in self._loaded:
            put(target, self._load(target, in_part.pop(target, None)))
            yield target.nbytes

    def _plan_rest(self, task: Task) -> Fill:
        rest = [target for target in task.targets if self._find_missing(target)]
        if not rest:
            return EmptyFill(replace(task, targets=()))
        try:
            return ReplayFill(task, rest=rest)
        except MaterializeError as error:
            names = [name for target in rest for name in self._find_missing(target)]
            raise MaterializeError(
                f"the checkpoint lacks {shorten(names)}: {error}"
            ) from error

    def _find_missing(self, target: Target) -> list[str]:
        held = target.held
        return [one.name for one in held if not self._is_loaded(target, one.tensor)]

    def _is_loaded(self, target: Target, tensor: Tensor) -> bool:
        """Whether the checkpoint has a tensor, or one whose memory includes it."""
        loaded = (h.tensor for h in target.held if h.name in self._entries)
        own = local_of(tensor)
        return any(one is tensor or covers(local_of(one), own) for one in loaded)

    def _load(self, target: Target, filled: Content | None) -> Content:
        """Return the checkpoint's content for a target, over the replayed content."""
        named = [held for held in target.held if held.name in self._entries]
        if filled is None and can_assign(target):
            # The last of several names, as load_state_dict has it.
            tensor, wanted = self._read(named[-1]), named[-1].tensor
            is_alike = (
                tensor.dtype == (target.dtype or wanted.dtype)
                and tensor.device == target.device
                and tensor.stride() == wanted.stride()
                and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
                and type(tensor) is Tensor
            )
            if is_alike:
                return tensor
        storage = (
            filled
            if isinstance(filled, UntypedStorage)
            else allocate(target.nbytes, target.device)
        )
        for held in named:
            geometry = target.geometry_of(local_of(held.tensor))
            self._copy(make_view(storage, geometry), held)
        return storage

    def _read(self, held: Held) -> Tensor:
        entry, part = self._entries[held.name], find_part(held.tensor)
        try:
            tensor = entry.load(part)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            raise unreadable(entry.source, error) from error
        if tensor.shape != local_of(held.tensor).shape:
            raise MaterializeError(
                f"{entry.source} has {held.name!r} as packed {tensor.dtype}, which "
                "torch does not unpack"
            )
        return tensor

    def _copy(self, view: Tensor, held: Held) -> None:
        whole = tensor = self._read(held)
        sizes = zip(view.shape, view.stride(), strict=True)
        for dim, (size, stride) in enumerate(sizes):
            if stride == 0 and size > 1:
                view, tensor = view.narrow(dim, 0, 1), tensor.narrow(dim, 0, 1)
        if tensor is not whole and not torch.equal(tensor.expand_as(whole), whole):
            raise MaterializeError(
                f"{held.name!r} is expanded in the module, so that some entries share "
                "their memory, and the checkpoint has different values for them"
            )
        view.copy_(tensor)


def can_assign(target: Target) -> bool:
    """Whether a target is one whole tensor, which the checkpoint's can replace."""
    first, *others = target.tensors
    is_whole = not others and first.nbytes == target.storage.nbytes()
    return is_whole and not any(is_wrapper(held.tensor) for held in target.held)


def covers(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor has no gaps, and its memory includes that of another."""
    (first, last), (start, end) = map(find_extent, (one, other))
    return one.is_contiguous() and first <= start and end <= last


def find_extent(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor begins in its storage, and where it ends, in bytes."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    n_elements = 1 + sum((size - 1) * stride for size, stride in pairs)
    first = int(tensor.storage_offset())
    end = first + (n_elements if tensor.numel() else 0)
    return first * tensor.itemsize, end * tensor.itemsize


def find_part(tensor: Tensor) -> TensorPart | None:
    """Return the part of the whole that a DTensor's shard is; None for a tensor."""
    if not is_wrapper(tensor):
        return None
    (chunk,) = list_chunks(tensor)
    pairs = zip(chunk.offsets, chunk.sizes, strict=True)
    return tuple(slice(start, start + size) for start, size in pairs)


def match_names(held: Sequence[Held], entries: Mapping[str, CheckpointEntry]) -> None:
    """Compare names and shapes of a module with those of a checkpoint."""
    known = {item.name: item for item in held if item.is_persistent}
    unexpected = [name for name in entries if name not in known]
    if unexpected:
        raise MaterializeError(
            f"the checkpoint has {shorten(unexpected)}, which the module does not; it "
            f"has {shorten(known)}. Leave such names out, or strip their prefix"
        )
    for name, entry in entries.items():
        tensor = known[name].tensor
        if is_wrapper(tensor) and local_of(tensor) is tensor:
            raise MaterializeError(
                f"{name!r} is a {type(tensor).__name__}, of which a checkpoint does "
                "not say the parts: choose init='empty', then load_state_dict()"
            )
        shape = tuple(tensor.shape)
        if entry.shape != shape:
            raise MaterializeError(
                f"the checkpoint has {name!r} with shape {entry.shape}, and the module "
                f"with shape {shape}"
            )


def open_checkpoint(
    source: str | Path | Mapping[str, Tensor],
    device: torch.device,
    names: Iterable[str],
) -> dict[str, CheckpointEntry]:
    """Return the tensors of a checkpoint, by name.

    It is a state dict; a ``.safetensors`` file; a file that ``torch.save`` wrote; an
    ``.index.json`` that names such files; a directory with one of them, or one that
    ``torch.distributed.checkpoint`` wrote. ``names`` are other values of ``init=``, for
    the message if there is no checkpoint.
    """
    if isinstance(source, Mapping):
        return read_mapping(source, "the mapping")
    choices = f"init= takes {', '.join(map(repr, names))}, a path or a state dict"
    if not isinstance(source, (str, Path)):
        raise MaterializeError(f"init={source!r}, but {choices}")
    path = Path(source).expanduser()
    try:
        if (path / METADATA).is_file():
            return read_distributed(path)
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
            f"{path} holds more than tensors, and no code of a file is run "
            f"(weights_only=True): save it as safetensors. {first_line(error)}"
        ) from error


def read_distributed(path: Path) -> dict[str, CheckpointEntry]:
    """Return the tensors of a folder that ``torch.distributed.checkpoint`` wrote."""
    # Some builds of torch lack torch.distributed.
    from meta_magic.materializing.fills.distributed_checkpoint import read_folder  # noqa: PLC0415

    try:
        return dict(read_folder(path))
    except (*DAMAGE, pickle.UnpicklingError) as error:
        raise unreadable(path, error) from error


def find_in_directory(path: Path) -> Path:
    """Return the index or the only file of a directory."""
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
    """Yield the tensors of a safetensors file."""
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
        load = partial(load_slice, file, name)
        yield name, CheckpointEntry(source=str(path), shape=shape, load=load)


def load_slice(file: Any, name: str, part: TensorPart | None) -> Tensor:
    """Return a tensor of a safetensors file, or a part of it."""
    tensor: Tensor = file.get_slice(name)[part] if part else file.get_tensor(name)
    return tensor


def load_of_mapping(tensor: Tensor, part: TensorPart | None) -> Tensor:
    """Return a tensor of a mapping, or a part of it."""
    return tensor.detach()[part or ()]


def read_mapping(source: object, what: str) -> dict[str, CheckpointEntry]:
    """Return the tensors of a state dict."""
    if not isinstance(source, Mapping):
        raise MaterializeError(
            f"{what} holds a {type(source).__name__}, not a state dict"
        )
    entries = {}
    for name, tensor in source.items():
        problem = ""
        if not isinstance(tensor, Tensor):
            problem = f"a {type(tensor).__name__} at {name!r}, not a tensor"
        elif tensor.is_nested or tensor.layout is not torch.strided:
            layout = "nested" if tensor.is_nested else str(tensor.layout)
            problem = f"{name!r} with the layout {layout}: wanted a dense tensor"
        elif tensor.is_quantized:
            problem = (
                f"{name!r} quantized ({tensor.dtype}): wanted a plain tensor, as its "
                "dequantize() gives"
            )
        elif tensor.is_meta:
            problem = f"{name!r} on meta, without values: load it outside of %%meta"
        elif is_wrapper(tensor):
            problem = (
                f"{name!r} as a {type(tensor).__name__}: wanted a plain tensor, as a "
                "DTensor's full_tensor() gives"
            )
        if problem:
            raise MaterializeError(f"{what} holds {problem}")
        shape, load = tuple(tensor.shape), partial(load_of_mapping, tensor)
        entries[str(name)] = CheckpointEntry(source=what, shape=shape, load=load)
    return entries


def unreadable(path: Path | str, error: BaseException) -> MaterializeError:
    """Return the error for a damaged file."""
    return MaterializeError(
        f"{path} cannot be read as a checkpoint; it may be damaged or cut short "
        f"({type(error).__name__}: {first_line(error)})"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).splitlines()), "")


def shorten(names: Iterable[str]) -> str:
    """Return the first few names."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES:,} more" if len(listed) > MAX_NAMES else ""
    return ", ".join(map(repr, listed[:MAX_NAMES])) + more
