"""Leave out a checkpoint of a world that would be wrong, before a file is opened.

torch.distributed.checkpoint opens its files, and then asks for the values: a refusal
would come when an earlier checkpoint is destroyed already. Folders that a script makes
for what is left out are removed when the plan ends: the next run of the script would
find them, and load from them. Read :class:`Checkpoints`.

:class:`Skeletons` keep what a script saves without its values, for ranks that load or
receive it: the right shapes, and no values. Without them
``torch.load("checkpoint.pt")`` would find no file.
"""

import inspect
import io
import os
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from hashlib import sha256
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, distributed, futures, nn, serialization
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType

from meta_magic.errors import MissingValueError, WorldError
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept.saving import Saver
from meta_magic.torch_private.distributed import (
    CHECK_OF_PLANS,
    LATER_SAVERS,
    LOADER,
    SAVER,
    find_part,
    find_sender_of_objects,
    list_ranks,
    local_of,
    make_response,
    map_nested,
    save_all,
)
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import is_on_meta
from meta_magic.trace.world import Peers, describe_ranks

NEVER_READ: Final = (
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
                self._saver.note("load", NEVER_READ.format(path.name))
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


SAVE: Final = "torch.distributed.checkpoint.save"
NOT_READ: Final = (
    "no tensors are loaded: the checkpoint {} was left out before; they stay as they "
    "are"
)
BLANK: Final = bytes(2**20)

UNWRITTEN: Final = "unwritten-{}"
"""The file in which a rank says what it left out, for when all ranks have ended."""


SAVED_BY: Final = (
    *("checkpoint_id", "storage_writer", "planner", "process_group", "no_dist"),
    "use_collectives",
)
"""The arguments of ``async_save`` that ``save`` takes, too."""

LIGHTNING: Final = "lightning.fabric.plugins.io", "lightning_fabric.plugins.io"
"""Modules whose ``TorchCheckpointIO`` saves to memory, and then writes a file."""


class Unwritten(NamedTuple):
    """What a rank leaves for files that were not written.

    Attributes:
        made: Folders that it made.
        saved: Files that ``torch.save`` wrote.
        paths: Files and folders of checkpoints that were not written.
    """

    made: list[Path]
    saved: list[Path]
    paths: list[Path]

    def remove(self) -> None:
        """Remove the folders that were made for what was not written.

        What ``torch.save`` wrote there is a part of the same checkpoint. Other files
        stay, and so do their folders, but in that of a checkpoint in several files.
        """
        folders = [
            folder
            for folder in sorted({*self.made}, reverse=True)  # the inner ones first
            if any(path.is_relative_to(folder) for path in self.paths)
        ]
        for folder in {*folders}.intersection(self.paths):
            shutil.rmtree(folder, ignore_errors=True)
        for path in self.saved:
            if path.parent in folders:
                path.unlink(missing_ok=True)
        for path in filter(Path.is_file, self.paths):
            if not path.stat().st_size:  # the script opened it itself
                path.unlink()
        for folder in folders:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def remove_unwritten(folder: Path) -> None:
    """Remove what ranks made that were recorded side by side in a folder."""
    found = [
        Unwritten(*pickle.loads(file.read_bytes()))  # noqa: S301  our own child's
        for file in folder.glob(UNWRITTEN.format("*"))
    ]
    joined = (
        [path for one in each for path in one] for each in zip(*found, strict=True)
    )
    if found:
        Unwritten(*joined).remove()


class NoFiles:
    """Stands for the files of a checkpoint that is left out; only folders are made.

    Args:
        plain: DCP's own files.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.rename = self.rm_file = lambda *_: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    @contextmanager
    def create_stream(self, *_: object) -> Iterator[CountedFile]:
        """Open no file."""
        yield CountedFile()


def write_blank(file: Any, value: object) -> None:
    """Write as many bytes as ``torch.save`` does."""
    whole, rest = divmod(measure_saved(value), len(BLANK))
    for _ in range(whole):
        file.write(BLANK)
    file.write(BLANK[:rest])


class Checkpoints(Replacements):
    """Checks what is saved, within the block.

    Args:
        rank: The rank that is recorded.
        peers: The ranks that are recorded at the same time; None if it is the only one.
        check: Raises if the values of meta tensors rest on other ranks; takes the
            tensors, and what saves them.
        saver: Notes what is left out.
    """

    def __init__(
        self,
        rank: int,
        peers: Peers | None,
        check: Callable[[list[Tensor], str], None],
        saver: Saver,
    ) -> None:
        super().__init__()
        self._rank, self._peers = rank, peers
        self._check = check
        self._saver = saver
        self._watched: list[Any] = []
        self._unwritten = Unwritten([], saver.saved, saver.unwritten)
        self._kept: dict[Path, tuple[Any, Mapping[str, object]]] = {}

    def __enter__(self) -> None:
        self.replace_here(os, {"mkdir": self._make_folder})
        methods: list[tuple[tuple[str, str], Callable[..., Any]]] = [
            (SAVER, self._save),
            (LOADER, self._load),
            (CHECK_OF_PLANS, self._check_plans),
            *((part, save_now) for part in LATER_SAVERS),
        ]
        for part, method in methods:
            module, name = find_part(part)
            self.replace_here(module, {name: method})

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._peers is None:
            self._unwritten.remove()
        else:
            file = Path(self._peers.folder, UNWRITTEN.format(self._rank))
            file.write_bytes(pickle.dumps((*self._unwritten,)))

    def watch_libraries(self) -> None:
        """Replace what libraries save with; they are imported when a group is made."""
        for name in LIGHTNING:
            found = getattr(sys.modules.get(name), "TorchCheckpointIO", None)
            if found is not None and found not in self._watched:
                self._watched.append(found)
                self.replace_here(found, {"save_checkpoint": self._save_file})

    def _save_file(
        self, plain: Any, io: Any, checkpoint: Any, path: Any, *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return plain(io, checkpoint, path, *args, **kwargs)
        except MissingValueError as error:
            return self._saver.leave_out(path, error)

    def _make_folder(
        self, plain: Callable[..., None], path: Any, *args: Any, **kwargs: Any
    ) -> None:
        plain(path, *args, **kwargs)
        if isinstance(path, (str, os.PathLike)):
            self._unwritten.made.append(Path(path).resolve())

    def _save(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint, or run all of that but the writing of files."""
        bound = inspect.signature(plain).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        writer = given["storage_writer"]
        ranks = [] if given["no_dist"] else list_ranks(given["process_group"])
        try:
            self._check_all(given["state_dict"], ranks)
        except (MissingValueError, WorldError) as error:
            path = getattr(writer, "path", "")
            if isinstance(path, Path):  # the script may write other files there
                path.mkdir(parents=True, exist_ok=True)
            self._saver.leave_out(path, error)
            root = ranks[given["coordinator_rank"]] if ranks else self._rank
            is_answered = self._peers is not None or root == self._rank
            if not (is_answered and hasattr(writer, "fs")):  # as torch's writers have
                return None
        else:
            return plain(*args, **kwargs)
        given["storage_writer"] = writer = copy(writer)
        writer.fs, writer.sync_files = NoFiles(writer.fs), False
        planner = given["planner"] = given["planner"] or DefaultSavePlanner()
        self._saver.write_blank = write_blank
        try:
            metadata = plain(*bound.args, **bound.kwargs)
        finally:
            self._saver.write_blank = None
        values = getattr(planner, "state_dict", {}).items()
        others = {name: one for name, one in values if not isinstance(one, Tensor)}
        self._kept[Path(path).resolve()] = metadata, others
        return metadata

    def _load(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint; of one that was left out only what is in no tensor."""
        bound = inspect.signature(plain).bind(*args, **kwargs)
        reader = bound.arguments["storage_reader"]
        path = Path(getattr(reader, "path", "")).resolve()
        if path not in self._unwritten.paths:
            return plain(*args, **kwargs)
        self._saver.note("save", NOT_READ.format(path))
        if path not in self._kept:
            return None
        metadata, kept = self._kept[path]

        def read(plan: Any, planner: Any) -> Any:
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    file = BytesIO()
                    serialization.save(kept[item.dest_index.fqn], file)
                    file.seek(0)
                    planner.load_bytes(item, file)
            done: futures.Future[None] = futures.Future()
            done.set_result(None)
            return done

        reader = bound.arguments["storage_reader"] = copy(reader)
        reader.read_metadata, reader.read_data = lambda: metadata, read
        return plain(*bound.args, **bound.kwargs)

    def _check_plans(self, plain: Callable[..., Any], plans: Any, whole: Any) -> Any:
        """Check a plan; not of what is left out, where ranks may not be recorded."""
        return plain(plans, Metadata({}) if self._saver.write_blank else whole)

    def _check_all(self, state_dict: Mapping[str, Any], ranks: Iterable[int]) -> None:
        """Raise if a rank that takes part, or what another one sends, is not known."""
        recorded = {self._rank} if self._peers is None else {*self._peers.ranks}
        missing = sorted({*ranks} - recorded)
        if missing:
            raise WorldError(
                f"{SAVE} needs what each rank holds, and ranks "
                f"{describe_ranks(missing)} are not recorded: record all, as by "
                'record_ranks(..., ranks="all"), or run the script under torchrun'
            )
        held = map(local_of, tensors_in(state_dict))  # of a DTensor its shard
        self._check([*filter(is_on_meta, held)], SAVE)


def save_now(
    plain: Any, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """Save copies in this thread instead of another one, which is not recorded."""
    given = inspect.signature(plain).bind(state_dict, *args, **kwargs).arguments
    chosen = {name: given[name] for name in SAVED_BY if name in given}
    copies = map_nested(Tensor, lambda t: t.detach().clone(), state_dict)
    done: Future[Any] = Future()
    done.set_result(save_all(copies, **chosen))
    return done if given.get("async_stager") is None else make_response(done)
