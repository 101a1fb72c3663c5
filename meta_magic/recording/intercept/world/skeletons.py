"""Keep what a script saves without its values, for ranks that load or receive it.

A checkpoint whose values rest on other ranks is not written. Without this
``torch.load("checkpoint.pt")`` after it would find no file, and
``ZeroRedundancyOptimizer.consolidate_state_dict`` could send nothing. What is loaded
has the right shapes, and no values. Read :class:`Skeletons`.
"""

import io
import os
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn, serialization

from meta_magic.recording.intercept.saving import Saver
from meta_magic.torch_private.distributed import find_sender_of_objects, map_nested
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.trace.world import Peers

NOT_READ: Final = (
    "no values are loaded: {} was left out before; the tensors have only shapes"
)


def copy_shape(tensor: Tensor, device: str | None = None) -> Tensor:
    """Return an uninitialized tensor like another one, or such a parameter."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
    )
    return nn.Parameter(made) if isinstance(tensor, nn.Parameter) else made


class Skeletons(Replacements):
    """Keeps objects without values, and gives them to who loads or receives them.

    Args:
        rank: The rank that is recorded.
        peers: The ranks that are recorded at the same time; None if it is the only one.
        saver: Reports which files are left out.
    """

    def __init__(self, rank: int, peers: Peers | None, saver: Saver) -> None:
        super().__init__()
        self._rank, self._saver = rank, saver
        self._folder = None if peers is None else Path(peers.folder)
        self._own: dict[str, bytes] = {}
        self._is_watching = False
        self._n_sent: Counter[int] = Counter()

    def __enter__(self) -> None:
        self._saver.on_unwritten = self.keep
        self.replace_here(torch, {"load": self._load})

    def watch_libraries(self) -> None:
        """Replace what an imported library sends objects by."""
        found = None if self._folder is None else find_sender_of_objects()
        if found is not None and not self._is_watching:
            self._is_watching = True
            self.replace_here(found[0], {found[1]: self._send})

    def keep(self, name: object, value: object) -> None:
        """Keep an object without the values of its tensors."""
        try:
            with WithoutModes():
                shapes = map_nested(Tensor, partial(copy_shape, device="meta"), value)
                text = pickle.dumps(shapes)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
            return  # as lambdas: who loads it finds no file
        if self._folder is None:
            self._own[str(name)] = text
        else:
            path = self._path_of(name)
            part = path.with_suffix(f".part{self._rank}")  # others keep it, too
            part.write_bytes(text)
            part.rename(path)

    def take(self, name: object) -> Any:
        """Return a kept object with new tensors; None if it is not kept."""
        text = self._own.get(str(name))
        if text is None and self._folder and self._path_of(name).exists():
            text = self._path_of(name).read_bytes()
        if text is None:
            return None
        with WithoutModes():
            kept = pickle.loads(text)  # noqa: S301  our own
        return map_nested(Tensor, copy_shape, kept)

    def _path_of(self, name: object) -> Path:
        """Return the file that holds an object for all recorded ranks."""
        number = sha256(str(name).encode()).hexdigest()
        return Path(self._folder or "", f"kept-{number}")

    def _load(
        self, plain: Callable[..., Any], f: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(f, (str, PathLike)):
            path = Path(f).resolve()
            kept = None if path.exists() else self.take(path)
            if kept is not None:
                self._saver.note("load", NOT_READ.format(path.name))
                return kept
        return plain(f, *args, **kwargs)

    def _send(
        self, _: Any, obj: Any, src_rank: int, group: Any = None, **__: Any
    ) -> Any:
        """Broadcast an object as torch does, in a buffer of the same size."""
        self._n_sent[src_rank] += 1
        name = f"object {self._n_sent[src_rank]} of rank {src_rank}"
        is_mine, length = src_rank == self._rank, 0
        if is_mine:
            self.keep(name, obj)
            length = measure_saved(obj)
        n_bytes = torch.tensor([length])
        distributed.broadcast(n_bytes, src_rank, group)
        data = torch.empty(int(n_bytes.item()), dtype=torch.uint8)
        distributed.broadcast(data, src_rank, group)
        return obj if is_mine else self.take(name)


class CountedFile(io.RawIOBase):
    """A file that keeps nothing, and counts its bytes."""

    n_bytes = 0

    def write(self, data: Any) -> int:
        """Count bytes."""
        self.n_bytes += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; a move by 0 bytes asks for the position."""
        self.n_bytes = offset + (self.n_bytes if whence else 0)
        return self.n_bytes


def measure_saved(value: object) -> int:
    """Return how many bytes ``torch.save`` writes of an object."""
    file = CountedFile()
    with WithoutModes(), serialization.skip_data():
        shapes = map_nested(Tensor, partial(copy_shape, device="cpu"), value)
        serialization.save(shapes, file)  # type: ignore[arg-type]
    return file.n_bytes
