"""Leave out a checkpoint of a world that would be wrong, before a file is opened.

torch.distributed.checkpoint opens its files, and then asks for the values: a refusal
would come when an earlier checkpoint is destroyed already. Folders that a script makes
for what is left out are removed when the plan ends: the next run of the script would
find them, and load from them. Read :class:`Checkpoints`.
"""

import inspect
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import Tensor

from meta_magic.errors import MissingValueError, WorldError
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.saving import Saver
from meta_magic.torch_private.distributed import (
    find_later_savers,
    find_loader,
    find_saver,
    list_ranks,
    local_of,
    make_response,
    map_nested,
    save_all,
)
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.tensor_internals import is_on_meta
from meta_magic.trace.world import Peers, describe_ranks

SAVE: Final = "torch.distributed.checkpoint.save"
NOT_READ: Final = (
    "no values are loaded: the checkpoint {} was left out before; the tensors stay as "
    "they are"
)
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

    def __enter__(self) -> None:
        for (module, name), method in (
            (find_saver(), self._save),
            (find_loader(), self._load),
            ((os, "mkdir"), self._make_folder),
        ):
            self.replace_here(module, {name: method})
        for module, name in find_later_savers():
            self.replace_here(module, {name: save_now})

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

    def _save(
        self,
        plain: Callable[..., Any],
        state_dict: Mapping[str, Any],
        storage_writer: Any,
        process_group: Any = None,
        coordinator_rank: int = 0,
        no_dist: bool = False,  # noqa: FBT001, FBT002  torch's signature
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        try:
            self._check_all(state_dict, [] if no_dist else list_ranks(process_group))
        except (MissingValueError, WorldError) as error:
            path = getattr(storage_writer, "path", "")
            if isinstance(path, Path):  # the script may write other files there
                path.mkdir(parents=True, exist_ok=True)
            return self._saver.leave_out(path, error)
        given = state_dict, storage_writer, process_group, coordinator_rank, no_dist
        return plain(*given, *args, **kwargs)

    def _load(
        self,
        plain: Any,
        state_dict: Any,
        storage_reader: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        path = Path(getattr(storage_reader, "path", "")).resolve()
        if path in self._unwritten.paths:
            return self._saver.note("save", NOT_READ.format(path))
        return plain(state_dict, storage_reader, *args, **kwargs)

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
