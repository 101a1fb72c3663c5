"""``mm.record_ranks``: a script recorded as several ranks of a world.

The stages of a pipeline differ, the last shard is smaller, ``if rank == 0:`` saves. One
recording shows one of them. Read :func:`record_ranks` first.
"""

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meta_magic.cost.advice.evidence import Advice
from meta_magic.errors import WorldError
from meta_magic.ranks.nursery import Work, run_side_by_side
from meta_magic.ranks.rank_advice import changed, prove_ranks
from meta_magic.session.record import record
from meta_magic.session.recording import NO_SOURCE, Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Options
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import MESSAGES, Peers, Sent, describe_ranks, read_ranks

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective of a group, or message, at which two ranks differ: it hangs.

    Attributes:
        ranks: The ranks of the group; of messages the sender and the receiver.
        call: Which of their collectives, or messages, it is, from 1.
        first: One rank.
        first_sent: What it calls; None if it makes no further call.
        second: The other rank.
        second_sent: What that one calls; None if it makes no further call.
    """

    ranks: tuple[int, ...]
    call: int
    first: int
    first_sent: Sent | None
    second: int
    second_sent: Sent | None

    @property
    def line(self) -> int | None:
        """The line at which the first rank differs; None if that is not known."""
        sent = self.first_sent or self.second_sent
        return None if sent is None else sent.line

    def __str__(self) -> str:
        first = describe_call(self.first, self.first_sent)
        second = describe_call(self.second, self.second_sent)
        sent = self.first_sent or self.second_sent
        is_message = sent is not None and sent.kind in MESSAGES
        what = "message" if is_message else "collective"
        return (
            f"ranks {describe_ranks(self.ranks)}, {what} {self.call}: {first}, "
            f"{second}: this hangs, or mixes tensors"
        )


def describe_call(rank: int, sent: Sent | None) -> str:
    """Return what a rank calls, as text."""
    if sent is None:
        return f"rank {rank} calls no more"
    at = "" if sent.line is None else f" in line {sent.line}"
    size = f"{format_bytes(sent.nbytes)} of {sent.dtype}"
    root = "" if sent.root is None else f", root {sent.root}"
    return f"rank {rank} calls {sent.kind}{at} ({size}{root})"


class Ranks(Mapping[int, Trace]):
    """The traces of the recorded ranks.

    ``ranks[0]`` is the trace of rank 0; ``print(ranks)`` shows a line for each.
    """

    def __init__(
        self,
        traces: Mapping[int, Trace],
        record_again: "Callable[[str], Ranks] | None" = None,
    ) -> None:
        self._traces = dict(sorted(traces.items()))
        self._record_again = record_again

    def __getitem__(self, rank: int) -> Trace:
        return self._traces[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._traces)

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Where the collectives of recorded ranks differ: hangs."""
        return find_mismatches({rank: trace.sent for rank, trace in self.items()})

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Advice that needs several ranks; see ``Trace.advice`` for one of them.

        ``batch``: data parallel ranks get inputs of different shapes; ``dropout``: they
        draw the same masks; ``initial values``: they begin with other parameters. The
        last two are proven: the ranks are recorded again, with a change, without it.
        """
        return tuple(prove_ranks(self, self._record_again))

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each recorded rank.

        Columns: ``rank``; the bytes at its peak, in all (``peak_nbytes``) and of each
        category (``parameter``, ``gradient``, ...); ``n_sent`` and ``sent_nbytes``, the
        number and bytes of its collectives; ``error``, what ended it, or None.
        """
        import pandas as pd  # noqa: PLC0415  takes a second

        return pd.DataFrame([*map(summarize, self, self.values())])

    def show(self) -> None:
        """Show a strip for each rank in a notebook, elsewhere the text of it.

        A strip has the bytes alive over time, and a tick for each collective. Below
        are the :attr:`mismatches` and the :attr:`advice`, in words.
        """
        from meta_magic.magic.reports import show_ranks  # noqa: PLC0415

        show_ranks(self)

    def __str__(self) -> str:
        lines = [describe_rank(rank, trace) for rank, trace in self.items()]
        return "\n".join([*lines, *map(str, (*self.mismatches, *self.advice))])

    def __repr__(self) -> str:
        return f"<Ranks {describe_ranks(list(self))}>"


def summarize(rank: int, trace: Trace) -> dict[str, Any]:
    """Return one row of the table of ranks."""
    memory, peak = trace.memory, trace.memory.peak_index
    held = memory.live_by_category.items() if peak is not None else ()
    return {
        "rank": rank,
        "peak_nbytes": memory.peak_nbytes,
        **{name: live[peak or 0] for name, live in held},
        "n_sent": len(trace.sent),
        "sent_nbytes": sum(sent.nbytes for sent in trace.sent),
        "error": trace.error,
    }


def describe_rank(rank: int, trace: Trace) -> str:
    """Return one line of the text about ranks."""
    row = summarize(rank, trace)
    peak, sent = map(format_bytes, (row["peak_nbytes"], row["sent_nbytes"]))
    error = f"; {trace.error}" if trace.error else ""
    n_sent = row["n_sent"]
    word = "collective" if n_sent == 1 else "collectives"
    return f"rank {rank}: {peak} at the peak, {n_sent} {word} of {sent}{error}"


def find_mismatches(sent: Mapping[int, Sequence[Sent]]) -> tuple[Mismatch, ...]:
    """Return for each group, and each pair, the first call at which two ranks differ.

    Args:
        sent: What each recorded rank sends.
    """
    shared: dict[tuple[int, ...], dict[int, list[Sent]]] = {}
    for rank, calls in sent.items():
        for one in calls:
            if one.ranks and one.kind not in MESSAGES:
                members: list[int] = [member for member in sent if member in one.ranks]
                by_rank = shared.setdefault(one.ranks, {r: [] for r in members})
                by_rank[rank].append(one)
    alike = [*shared.items(), *pair_messages(sent)]
    return tuple(filter(None, (find_mismatch(*one) for one in alike)))


def pair_messages(
    sent: Mapping[int, Sequence[Sent]],
) -> Iterator[tuple[tuple[int, int], dict[int, list[Sent]]]]:
    """Return pairs of a sender and a receiver, with the messages that each calls."""
    found: dict[tuple[int, int], dict[int, list[Sent]]] = {}
    for rank, calls in sent.items():
        for one in calls:
            if one.peer is not None and one.peer in sent:
                pair = (rank, one.peer) if one.kind == "send" else (one.peer, rank)
                found.setdefault(pair, {r: [] for r in pair})[rank].append(one)
    # A rank that receives from any may receive what seems to be sent in vain.
    from_any = {rank for rank, calls in sent.items() if any(map(is_from_any, calls))}
    return ((pair, calls) for pair, calls in found.items() if pair[1] not in from_any)


def is_from_any(sent: Sent) -> bool:
    """Whether this receives what any rank sends."""
    return sent.kind == "recv" and sent.peer is None


def find_mismatch(
    ranks: tuple[int, ...], calls: Mapping[int, Sequence[Sent]]
) -> Mismatch | None:
    """Return the first call at which two ranks differ, of those that they share."""
    first, *others = calls
    found = []
    for other in others:
        pairs = enumerate(zip_longest(calls[first], calls[other]), 1)
        for number, (a, b) in pairs:
            if a is None or b is None or a.matches != b.matches:
                found.append(Mismatch(ranks, number, first, a, other, b))
                break
    return min(found, key=lambda mismatch: mismatch.call, default=None)


def record_ranks(
    script: "str | os.PathLike[str]",
    world: int,
    ranks: str | Sequence[int] = "differing",
    *,
    args: Sequence[str] = (),
    per_node: int | None = None,
    timeout: float = 300.0,
    **options: Any,
) -> Ranks:
    r"""Record a script as several ranks of a world, side by side.

    Each is recorded in a process of its own. They hand each other whole numbers,
    pickled objects, and up to 16,384 other numbers of a tensor that take little to
    compute: with ``ranks="all"`` the losses of a small model are exact. A rank that
    another one waits for is recorded, too.

    Args:
        script: Path of a Python script, as torchrun would run it.
        world: How many ranks there are.
        ranks: Which are recorded: ``"differing"`` for the first two, the last,
            those with which the script compares a rank (``if rank == 5``), and those
            that one of them waits for; ``"all"``; ``"0,7"``; or a sequence.
        args: Arguments of the script.
        per_node: Ranks of one machine; 8 by default, or all if fewer.
        timeout: Seconds that each process may take, from its own start.
        **options: Options of :class:`record`.

    Raises:
        ValueError: There is no such rank.
        WorldError: A process ended without a trace, or it took too long.

    Example:
        >>> from pathlib import Path
        >>> text = "import torch, torch.distributed as dist\n"
        >>> text += "dist.init_process_group('gloo'); dist.all_reduce(torch.ones(4))"
        >>> _ = Path("train.py").write_text(text)
        >>> print(record_ranks("train.py", world=4, ranks="0,3"))
        rank 0: 16 bytes at the peak, 1 collective of 16 bytes
        rank 3: 16 bytes at the peak, 1 collective of 16 bytes
    """
    path, block = read_script(script)
    given = {
        "script": str(path),
        "block": block,
        "args": list(args),
        "options": {**options, "world": world, "per_node": per_node},
    }
    code = path.read_text("utf-8", errors="replace")
    chosen = read_ranks(ranks, world, code)
    return record_all(record_script, given, chosen, timeout, code)


def record_all(
    work: Work,
    given: Mapping[str, Any],
    ranks: Sequence[int],
    timeout: float,
    code: str,
    change: str | None = None,
) -> Ranks:
    """Record ranks side by side; see :func:`run_side_by_side`.

    Args:
        change: The kind of advice whose change is made; None for none.
    """
    traces = run_side_by_side(work, {**given, "change": change}, ranks, timeout, code)
    return Ranks(traces, partial(record_all, work, given, ranks, timeout, code))


def read_script(script: "str | os.PathLike[str]") -> tuple[Path, ast.Module]:
    """Return the path of a script, and its statements.

    Raises:
        WorldError: There is no such script, or it is no Python.
    """
    path = Path(script).resolve()
    if not path.is_file():
        raise WorldError(f"there is no script {os.fspath(script)!r}")
    try:
        return path, ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise WorldError(f"{path.name} is no Python: {error}") from None


def record_script(rank: int, peers: Peers, given: dict[str, Any]) -> Trace:
    """Return the trace of a script that is run as one rank of a world.

    Args:
        rank: The rank.
        peers: The ranks that are recorded at the same time.
        given: ``script``, its path; ``block``, its statements; ``args``, its
            arguments; and ``options``, those of :class:`record`.
    """
    script = given["script"]
    variables = vars(enter_main(Path(script), given["args"]))
    options = record(rank=rank, **given["options"]).options._replace(peers=peers)
    text = Path(script).read_text("utf-8", errors="replace")
    source = CellSource(text=text, file=script)
    with changed(given.get("change")):
        return record_rank(given["block"], script, options, variables, source)


def record_rank(
    block: ast.Module,
    file: str,
    options: Options,
    variables: dict[str, Any],
    source: CellSource = NO_SOURCE,
) -> Trace:
    """Return the trace of statements, whatever ends them; runs in a child."""
    recording = Recording(file, options=options, namespace=variables)
    error = None
    try:
        code = compile(block, file, "exec")
        recording.guard.run(lambda: exec(code, variables))  # noqa: S102  the user's code
    except BaseException as raised:  # noqa: BLE001  it is in the trace
        is_success = isinstance(raised, SystemExit) and not raised.code
        error = None if is_success else raised
    return recording.finish(error, variables, source)


def enter_main(path: Path, args: Sequence[str]) -> ModuleType:
    """Make the ``__main__`` of a script, and set ``sys.argv`` and ``sys.path``."""
    main = ModuleType("__main__")
    vars(main).update(__file__=str(path), __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.parent))
    return main
