"""Read a folder that ``torch.distributed.checkpoint`` wrote, part by part.

Each process of a world reads what it holds, and nothing else. Read :func:`read_folder`.
"""

import pickle
from collections.abc import Iterator
from enum import Enum, EnumMeta
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import (
    create_read_items_for_chunk_list,
)

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.protocol import CheckpointEntry, TensorPart
from meta_magic.torch_private.distributed import IN_METADATA

LIBRARY: Final = "torch.distributed.checkpoint."

MODELS: Final = ("model", "state_dict")
"""The keys under which programs save a model beside its optimizer."""


class MetadataReader(pickle.Unpickler):
    """Reads metadata, and runs no code of the file."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class, if metadata may hold it."""
        held = getattr(torch, name, None) if module == "torch" else None
        is_dtype = isinstance(held, torch.dtype)
        is_known = module.startswith(LIBRARY) or (module, name) in IN_METADATA
        if is_dtype or is_known:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return find_member
        raise pickle.UnpicklingError(f"its metadata names {module}.{name}")


def find_member(kind: object, name: str) -> Enum:
    """Return a member of an enumeration.

    Python before 3.11.4 pickles it as ``getattr(kind, name)``.
    """
    if isinstance(kind, EnumMeta):
        return cast("Enum", kind[name])
    raise pickle.UnpicklingError(f"its metadata asks for the attribute {name}")


class PartPlanner(DefaultLoadPlanner):
    """Reads into one tensor, which is a part of a saved one."""

    def __init__(self, part: Tensor) -> None:
        super().__init__()
        self._part = part

    def lookup_tensor(self, index: object) -> Tensor:
        """Return the tensor that is read into."""
        del index
        return self._part


def read_folder(path: Path) -> Iterator[tuple[str, CheckpointEntry]]:
    """Yield the tensors of a folder; of a model saved beside others, the model's."""
    with (path / ".metadata").open("rb") as file:
        metadata: Metadata = MetadataReader(file).load()
    reader = FileSystemReader(path)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    keys: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    roots = {key[0] for key in keys.values() if len(key) > 1}
    root = next((name for name in MODELS if name in roots), None)
    for saved, entry in metadata.state_dict_metadata.items():
        key = keys.get(saved, (saved,))
        if root is not None and key[0] != root:
            continue
        name = ".".join(map(str, key if root is None else key[1:]))
        if not isinstance(entry, TensorStorageMetadata):
            raise MaterializeError(f"{path} holds {name!r}, which is no tensor")
        load = partial(read_part, reader, saved, entry)
        shape = tuple(entry.size)
        yield name, CheckpointEntry(source=str(path), shape=shape, load=load)


def read_part(
    reader: FileSystemReader,
    saved: str,
    entry: TensorStorageMetadata,
    part: TensorPart | None,
) -> Tensor:
    """Return a saved tensor, or a part of it."""
    whole = part is None
    starts = [0] * len(entry.size) if part is None else [one.start for one in part]
    sizes = entry.size if whole else [one.stop - one.start for one in part or ()]
    made = torch.empty(sizes, dtype=entry.properties.dtype)
    chunk = ChunkStorageMetadata(torch.Size(starts), torch.Size(sizes))
    items: list[ReadItem] = create_read_items_for_chunk_list(saved, entry, [chunk])
    reader.read_data(LoadPlan(items), PartPlanner(made)).wait()
    return made
