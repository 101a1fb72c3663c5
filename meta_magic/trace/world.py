"""A world of ranks that a block is recorded for, and the names of its groups.

``record(world=8, rank=3)`` records a block as rank 3 of 8; no other rank exists. Its
process groups send nothing; each has a name that says who is in it, so that a trace,
and a replay long after the block, know it. Read :class:`World` and :func:`name_group`.

What the recorded process sends is :class:`Sent`, by :func:`list_sent`.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meta_magic.torch_private.distributed import has_group
from meta_magic.trace.calls import OpCall
from meta_magic.trace.signature import OpaqueArgument, Phase

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.trace import Trace


PER_NODE: Final = 8
"""GPUs of a machine, by default."""


class World(NamedTuple):
    """The ranks that a block is recorded for.

    Attributes:
        size: How many ranks there are.
        rank: The recorded one, from 0.
        per_node: How many run on one machine.

    Example:
        >>> with record(world=16, rank=9, per_node=8) as trace:
        ...     pass
        >>> trace.world.node, trace.world.local_rank
        (1, 1)
    """

    size: int
    rank: int = 0
    per_node: int = PER_NODE

    @property
    def local_rank(self) -> int:
        """The recorded rank, among those of its machine."""
        return self.rank % self.per_node

    @property
    def node(self) -> int:
        """The machine, from 0."""
        return self.rank // self.per_node

    def count_nodes(self, ranks: Iterable[int], peer: int | None = None) -> int:
        """Return how many machines a collective of some ranks spans.

        With a peer, it is a message between that rank and the recorded one.
        """
        between = ranks if peer is None else (self.rank, peer)
        return len({rank // self.per_node for rank in between})


class Peers(NamedTuple):
    """The ranks of a world that are recorded at the same time.

    Attributes:
        folder: The folder by which they hand values to each other.
        ranks: Those that are recorded; a rank that one of them waits for is added.
    """

    folder: str
    ranks: tuple[int, ...]


def read_world(
    size: int | None, rank: int | None = None, per_node: int | None = None
) -> World | None:
    """Return the world of these options; without them that of the environment, or None.

    ``WORLD_SIZE=8 RANK=3 python train.py`` means the same as ``world=8, rank=3``. Where
    torchrun started this process, or a process group exists, the block finds that one.
    """
    if size is None:
        if rank is not None or per_node is not None:
            raise ValueError("rank and per_node need a world: how many processes?")
        size, rank, per_node = read_environment()
    if size is None:
        return None
    if size < 1:
        raise ValueError(f"a world has at least one process, not {size}")
    rank = 0 if rank is None else rank
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in a world of {size}: 0 to {size - 1}")
    per_node = min(size, PER_NODE) if per_node is None else per_node
    if per_node < 1:
        raise ValueError(f"a machine runs at least one process, not {per_node}")
    return World(size, rank, per_node)


MAX_NAMED: Final = 8


def find_named_ranks(code: str) -> Iterator[int]:
    """Yield the numbers that code compares a rank with: ``if rank == 5``."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            is_order = any(isinstance(o, (ast.Lt, ast.GtE)) for o in node.ops)
            parts = [part for side in sides for part in ast.walk(side)]
            names = [getattr(p, "id", getattr(p, "attr", "")) for p in parts]
            numbers = [p.value for p in parts if isinstance(p, ast.Constant)]
            for number in numbers if any("rank" in name for name in names) else ():
                if type(number) is int:
                    yield from (number - 1, number) if is_order else (number,)


def read_ranks(
    ranks: str | Sequence[int], world: int, code: str = ""
) -> tuple[int, ...]:
    """Return the ranks that a user names, in order.

    Those that differ are the first two, the last, and those that the code names.

    Raises:
        ValueError: There is no such rank.
    """
    if ranks == "differing":
        named = (r for r in find_named_ranks(code) if 1 < r < world - 1)
        few = islice(dict.fromkeys(named), MAX_NAMED)
        return tuple(sorted({0, min(1, world - 1), world - 1, *few}))
    if ranks == "all":
        return tuple(range(world))
    if isinstance(ranks, str):
        try:
            ranks = [int(part) for part in ranks.split(",")]
        except ValueError:
            raise ValueError(
                f'ranks are "differing", "all" or numbers as "0,7", not {ranks!r}'
            ) from None
    for rank in ranks:
        read_world(world, rank)
    return tuple(sorted({*ranks}))


def read_environment() -> tuple[int | None, int | None, int | None]:
    """Return size, rank and processes of a machine by the environment, None if unset.

    All are None where this process may really be one of several.
    """
    names = "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"
    size, rank, per_node = (os.environ.get(name, "") for name in names)
    is_real = "TORCHELASTIC_RUN_ID" in os.environ or has_group()
    if is_real or not (size.isdecimal() and rank.isdecimal()) or int(size) == 1:
        return None, None, None
    return int(size), int(rank), int(per_node) if per_node.isdecimal() else None


# Process groups, by their names


class Group(NamedTuple):
    """A process group.

    Attributes:
        ranks: Its members, in order, by their ranks in the world.
        rank: The recorded rank, as a position in ``ranks``.
    """

    ranks: tuple[int, ...]
    rank: int


GROUP_NAME: Final = re.compile(r"\d+: ranks ([\d,:-]+) as (\d+)")


def name_group(number: int, group: Group) -> str:
    """Return the name of the ``number``-th group.

    Example:
        >>> from meta_magic.trace.world import Group, name_group
        >>> name_group(2, Group((0, 2, 4, 6), rank=1))
        '2: ranks 0-6:2 as 1'
    """
    return f"{number}: ranks {describe_ranks(group.ranks)} as {group.rank}"


@lru_cache(maxsize=1024)
def read_group(name: str) -> Group | None:
    """Return the group of a name that :func:`name_group` made; None for other texts."""
    found = GROUP_NAME.search(name)
    if found is None:
        return None
    ranks: list[int] = []
    for run in found[1].split(","):
        ends, _, step = run.partition(":")
        first, _, last = ends.partition("-")
        ranks += range(int(first), int(last or first) + 1, int(step or 1))
    return Group(tuple(ranks), int(found[2]))


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text: ``0-7``, ``0-56:8`` in steps of eight, ``0,5``."""
    if len(ranks) < 3:  # noqa: PLR2004  a run has at least three
        return ",".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    if step > 0 and tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    runs = groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    parts = [[rank for _, rank in run] for _, run in runs]
    return ",".join(
        f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts
    )


def find_group(values: Iterable[object]) -> Group | None:
    """Return the group among the arguments of a call."""
    texts = (getattr(value, "text", value) for value in values)
    groups = (read_group(text) for text in texts if isinstance(text, str))
    return next(filter(None, groups), None)


REDUCTION: Final = "reduction "
REDUCTIONS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def find_reduction(values: Iterable[object]) -> str | None:
    """Return how a call reduces, by its arguments."""
    for value in values:
        if isinstance(value, OpaqueArgument) and value.text.startswith(REDUCTION):
            return value.text.removeprefix(REDUCTION)
        if value in REDUCTIONS:
            return str(value)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective, or one message, of the recorded rank.

    Attributes:
        index: Index of its operator call in ``Trace.ops``.
        kind: What it is: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
            ``broadcast``, ``all_to_all``, ``reduce``, ``gather``, ``scatter``, ``send``
            or ``recv``.
        ranks: The ranks that take part.
        nbytes: Bytes of the largest tensor of the call, before or after it.
        dtype: Element type, such as ``bfloat16``.
        reduce: How it reduces, such as ``sum``; None for a kind that does not reduce.
        module: Name of the module that called it, as in :class:`OpCall`.
        phase: ``forward``, ``backward`` or another phase of the program.
        line: Line of the user's code, or None.
        peer: The other rank of ``send`` and ``recv``; None for all others.
        root: The rank that a ``broadcast`` or ``scatter`` is from, or a ``reduce`` or
            ``gather`` to; None for all others.

    Example:
        >>> with record(world=8) as trace:
        ...     torch.distributed.init_process_group("nccl")
        ...     torch.distributed.all_reduce(torch.ones(2, 3))
        >>> trace.sent[0].kind, trace.sent[0].nbytes, trace.sent[0].reduce
        ('all_reduce', 24, 'sum')
    """

    index: int
    kind: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    reduce: str | None
    module: str | None
    phase: Phase
    line: int | None
    peer: int | None = None
    root: int | None = None

    @property
    def matches(self) -> tuple[object, ...]:
        """The fields that all processes of a call must have equal."""
        kind = "message" if self.kind in MESSAGES else self.kind
        # In an all_to_all each process may send other numbers of rows.
        nbytes = None if kind == "all_to_all" else self.nbytes
        return kind, nbytes, self.dtype, self.reduce, self.root


class SentCalls(tuple[Sent, ...]):
    """All that the recorded rank sends, in order."""

    __slots__ = ()

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row a record, with the fields of :class:`Sent` as columns."""
        import pandas as pd  # noqa: PLC0415  takes a second

        names = [field.name for field in fields(Sent)]
        rows = [[getattr(sent, name) for name in names] for sent in self]
        return pd.DataFrame(rows, columns=names)


NAMESPACES: Final = ("c10d.", "_c10d_functional.", "_c10d_functional_autograd.")
WITHOUT_DATA: Final = ("wait_tensor", "wrap_tensor", "barrier")

KINDS: Final[Mapping[str, str]] = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
"""The kind of an operator, by the beginning of its name; the first that fits."""

MESSAGES: Final = ("send", "recv")
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")


def find_kind(op: str) -> str | None:
    """Return the kind of a collective's operator; None for other operators."""
    if not op.startswith(NAMESPACES) or any(name in op for name in WITHOUT_DATA):
        return None
    name = op.split(".")[1].lstrip("_")
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), None)


def list_sent(trace: "Trace") -> SentCalls:
    """Return all that the recorded rank sends."""
    kinds = [find_kind(signature.op) for signature in trace.program.signatures]
    if not any(kinds):
        return SentCalls()
    numbers = enumerate(trace.program.signature_numbers())
    calls = [trace.ops[index] for index, number in numbers if kinds[number]]
    return SentCalls(map(describe_sent, calls))


def describe_sent(call: OpCall) -> Sent:
    """Return the record of a collective's call."""
    given = dict(call.arguments)
    tensors = (*call.inputs, *call.outputs)
    largest = max(tensors, key=lambda tensor: tensor.nbytes, default=None)
    group = find_group(given.values())
    ranks = () if group is None else group.ranks
    peer = given.get("dst", given.get("src")) if "process_group" in given else None
    kind = find_kind(call.op) or ""
    has_peer = kind in MESSAGES and ranks
    root = given.get("root_rank", given.get("src")) if kind in ROOTED else None
    return Sent(
        index=call.index,
        kind=kind,
        ranks=ranks,
        nbytes=0 if largest is None else largest.nbytes,
        dtype="" if largest is None else str(largest.dtype).removeprefix("torch."),
        reduce=find_reduction(given.values()),
        module=call.module,
        phase=call.phase,
        line=call.position.line if call.position else call.line,
        peer=ranks[peer] if has_peer and isinstance(peer, int) else None,
        root=ranks[root] if ranks and isinstance(root, int) else None,
    )
