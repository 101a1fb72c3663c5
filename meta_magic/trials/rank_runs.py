"""A trace's code as a rank of a world: other ranks of a cell's plan, and a real rank.

``trace.record_ranks()`` records a cell as other ranks, each in a new process, which
first runs the earlier cells that the cell rests on (:func:`record_block_ranks`).
``mm.verify(trace, world=...)`` runs the code of a trace in this process, a real rank of
torchrun, and compares what it sends with the plan (:func:`verify_rank`).
"""

import ast
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, UntypedStorage, distributed

from meta_magic.errors import WorldError
from meta_magic.ranks.rank_advice import changed
from meta_magic.ranks.recorded_ranks import (
    Ranks,
    enter_main,
    record_all,
    record_rank,
)
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.replaying.verify import COLUMNS
from meta_magic.torch_private.distributed import (
    SHARDED,
    describe_group,
    has_group,
    read_group,
)
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.tensor_internals import address_of_storage, list_parts
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import (
    REDUCTION,
    Peers,
    Sent,
    describe_ranks,
    find_kind,
    find_reduction,
    read_ranks,
)
from meta_magic.trials.blocks import (
    find_bound,
    parse_block,
    restore_variables,
    split_block,
    split_modules,
)
from meta_magic.trials.slices import join_slice

if TYPE_CHECKING:
    from types import FrameType

    import pandas as pd


Row: TypeAlias = tuple[object, ...]
"""The columns of :func:`verify`."""


def verify_rank(trace: Trace, size: int) -> "pd.DataFrame":
    """Run a trace's code for real as this process's rank; return the differences."""
    import pandas as pd  # noqa: PLC0415  takes a second

    check_world(trace, size)
    file, run = find_code(trace)
    real = RealRank(file)
    try:
        with real:
            run()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        if has_group():
            distributed.destroy_process_group()
    peaks = trace.memory.peak_nbytes, max(real.live_nbytes, default=0)
    rows = [*compare_sent(trace.sent, real.sent)]
    if peaks[0] != peaks[1]:
        at = trace.memory.peak_index
        call = None if at is None else trace.ops[at]
        where = ("", None, None) if call is None else (call.op, call.line, call.module)
        rows.append((at, *where, None, "peak_nbytes", *peaks))
    frame = pd.DataFrame.from_records(rows, columns=COLUMNS)
    frame.attrs = {
        "peak_nbytes": peaks[0],
        "real_peak_nbytes": peaks[1],
        "n_sent": len(trace.sent),
        "n_real_sent": len(real.sent),
    }
    return frame


def check_world(trace: Trace, size: int) -> None:
    """Refuse a trace that is no plan of this process."""
    names = "WORLD_SIZE", "RANK"
    if not all(os.environ.get(name, "").isdecimal() for name in names):
        raise WorldError(
            "verify(world=) compares a real rank: start the script by torchrun, as in "
            f"`torchrun --nproc-per-node={size} compare.py`"
        )
    real_size, rank = (int(os.environ[name]) for name in names)
    world = trace.world
    if world is None:
        raise WorldError(
            "the trace has no world: record it with world=, or by record_ranks()"
        )
    if not size == real_size == world.size:
        raise WorldError(
            f"verify(world={size}) runs in a world of {real_size}, and the trace was "
            f"recorded in one of {world.size}: all must be equal"
        )
    if rank != world.rank:
        raise WorldError(
            f"this is rank {rank}, and the trace is that of rank {world.rank}: record "
            f"it with rank={rank}"
        )
    if trace.error is not None:
        raise WorldError(f"the plan did not come to its end: {trace.error}")
    if has_group():
        raise WorldError(
            "this process is in a process group already, and the script makes one: "
            "call torch.distributed.destroy_process_group() before"
        )


def find_code(trace: Trace) -> tuple[str, Callable[[], None]]:
    """Return the file name of a trace's code, and a function that runs it."""
    rerun, cell = trace.rerun, trace.cell
    if rerun is not None:
        block = parse_block(rerun)
        variables = restore_variables(rerun, block, {})
        code = compile(block, rerun.file, "exec")
        return rerun.file, lambda: exec(code, variables)  # noqa: S102  the user's code
    if not cell.text:
        raise WorldError(
            "the code of the trace is not known: record a script by record_ranks(), or "
            "a `with record()` of this process"
        )
    code = compile(cell.text, cell.file, "exec")

    def run() -> None:
        with restored_main():
            main = enter_main(Path(cell.file), sys.argv[1:])
            exec(code, vars(main))  # noqa: S102  as above

    return cell.file, run


@contextmanager
def restored_main() -> Iterator[None]:
    """Restore afterwards what :func:`enter_main` changes."""
    main, arguments, path = sys.modules["__main__"], sys.argv, [*sys.path]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, arguments, path


# What a real process of a world holds and sends


class RealSent(NamedTuple):
    """A collective or a message of a real process, as :class:`Sent`, with its line."""

    kind: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    reduce: str | None
    line: int | None


class RealRank(TorchDispatchMode):
    """Counts storages and lists collectives of the real code that runs within it."""

    def __init__(self, file: str = "") -> None:
        super().__init__()
        self.live_nbytes: list[int] = []
        self.sent: list[RealSent] = []
        self._file = file
        self._live = 0
        self._known: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if SHARDED in sys.modules:
            wrapper = sys.modules[SHARDED].DTensor
            if any(issubclass(kind, wrapper) for kind in types):
                return NotImplemented
        given = [*args, *(kwargs or {}).values()]
        self._count(list_tensors(given))
        returned = func(*args, **(kwargs or {}))
        self._count(list_tensors(returned))
        for address, (reference, nbytes) in list(self._known.items()):
            storage = reference()  # ``resize_`` may have changed its size
            if storage is not None and storage.nbytes() != nbytes:
                self._live += storage.nbytes() - nbytes
                self._known[address] = reference, storage.nbytes()
        self.live_nbytes.append(self._live)
        kind = find_kind(str(func))
        if kind is not None:
            self.sent.append(self._describe(kind, given, returned))
        return returned

    def _count(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            is_fake = tensor.is_meta or type(tensor).__name__ == "FakeTensor"
            if tensor.layout is torch.strided and not is_fake:
                storage = tensor.untyped_storage()
                address = address_of_storage(storage)
                known = self._known.get(address)
                if known is None or known[0]() is not storage:
                    self._add(address, storage)

    def _add(self, address: int, storage: UntypedStorage) -> None:
        def drop(reference: object) -> None:
            if self._known.get(address, (None, 0))[0] is reference:
                self._live -= self._known.pop(address)[1]

        self._known[address] = weakref.ref(storage, drop), storage.nbytes()
        self._live += storage.nbytes()

    def _describe(self, kind: str, given: list[Any], returned: Any) -> RealSent:
        tensors = list_tensors((given, returned))
        largest = max(tensors, key=lambda tensor: tensor.nbytes)
        group = next(filter(None, map(read_group, given)), None)
        ranks = () if group is None else distributed.get_process_group_ranks(group)
        texts = [describe_group(value) or str(value) for value in given]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return RealSent(
            kind,
            tuple(ranks),
            largest.nbytes,
            str(largest.dtype).removeprefix("torch."),
            find_reduction(text.removeprefix(REDUCTION) for text in texts),
            None if frame is None else frame.f_lineno,
        )


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists; of a DTensor this process's shard."""
    return [part for tensor in tensors_in(value) for part in list_parts(tensor)]


# Both compared


def compare_sent(planned: Sequence[Sent], real: Sequence[RealSent]) -> Iterator[Row]:
    """Yield the collectives that only one of both sends, or that differ."""
    facts: tuple[list[Any], list[Any]] = (
        [(s.kind, s.ranks, s.nbytes, s.dtype, s.reduce) for s in planned],
        [tuple(sent[:-1]) for sent in real],
    )
    for tag, i, i_end, j, j_end in SequenceMatcher(None, *facts).get_opcodes():
        if tag == "equal":
            continue
        for at in range(max(i_end - i, j_end - j)):
            mine = planned[i + at] if i + at < i_end else None
            other = real[j + at] if j + at < j_end else None
            texts = describe(mine), describe(other)
            if mine is not None:
                identity = mine.index, mine.kind, mine.line, mine.module
                yield (*identity, None, "collective", *texts)
            elif other is not None:
                yield None, other.kind, other.line, None, None, "collective", *texts


def describe(sent: Sent | RealSent | None) -> str | None:
    """Return a collective as text."""
    if sent is None:
        return None
    reduce = f" {sent.reduce}" if sent.reduce else ""
    size = f"{format_bytes(sent.nbytes)} of {sent.dtype}"
    return f"{sent.kind}{reduce}, {size}, ranks {describe_ranks(sent.ranks)}"


def record_block_ranks(
    trace: Trace, ranks: str | Sequence[int], timeout: float = 300.0
) -> Ranks:
    """Return a cell's recordings as several ranks: ``Trace.record_ranks``."""
    rerun, world = trace.rerun, trace.world
    if rerun is None or rerun.text is None or world is None:
        raise WorldError(
            "only a cell with %%meta --world is recorded as other ranks: use "
            "meta_magic.record_ranks() for a script"
        )
    chosen = read_ranks(ranks, world.size, trace.source)
    joined = join_slice(trace)
    whole = rerun if joined is None else joined.rerun
    before, own = split_own(whole, 0 if joined is None else joined.n_above)
    plain = {n: former.kept for n, former in whole.before.items() if former.is_plain}
    if joined is None:
        unknown = sorted({*rerun.before} - {*plain} - find_bound(own))
        listed = ", ".join(unknown)
        limits = f"it is not known which cell makes {listed}" if unknown else ""
    else:
        limits = joined.describe_limits(*plain)
    if limits:
        raise WorldError(f"the cell cannot be recorded as other ranks: {limits}")
    given = {
        "before": before,
        "block": own,
        "file": trace.cell.file,
        "text": trace.source,
        "variables": plain,
        "path": sys.path,
        "options": rerun.options,
    }
    return record_all(record_cell, given, chosen, timeout, trace.source)


def split_own(rerun: Rerun, n_above: int) -> tuple[ast.Module, ast.Module]:
    """Return the statements of earlier cells, and the cell's own at their lines."""
    block = parse_block(rerun)
    _, body = split_modules(rerun, block.body)  # a new process imports the modules
    before, own = split_block(ast.Module(body, []), rerun.own_line)
    for node in own.body:
        ast.increment_lineno(node, -n_above)
    return before, own


def record_cell(rank: int, peers: Peers, given: dict[str, Any]) -> Trace:
    """Return the trace of a cell that is run as one rank of a world."""
    sys.path[:] = given["path"]
    variables = vars(enter_main(Path(given["file"]), ()))
    variables.update(given["variables"])
    options = given["options"]
    options = options._replace(world=options.world._replace(rank=rank))
    if given["before"].body:
        earlier = record_rank(given["before"], "<cells>", options, variables)
        if earlier.error is not None:
            raise WorldError(f"an earlier cell raises {earlier.error}")
    source = CellSource(text=given["text"], file=given["file"])
    options = options._replace(peers=peers)
    with changed(given["change"]):
        return record_rank(given["block"], given["file"], options, variables, source)
