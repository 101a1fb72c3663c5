"""Records of the collectives and messages of the recorded process of a world.

Read :class:`Sent`, then :func:`list_sent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from meta_magic.trace.calls import OpCall
from meta_magic.trace.signature import Phase
from meta_magic.trace.world import find_group, find_reduction

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.trace import Trace


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
