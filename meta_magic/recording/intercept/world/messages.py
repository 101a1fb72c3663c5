"""Hand small values between processes of a world that are recorded side by side.

A pipeline sends the shapes of its activations from stage to stage, and
``broadcast_object_list`` a pickle: without their values a recording stops there. Each
recorded process writes the whole numbers that it sends into a file of a folder that all
share; the others read it. Of other numbers at most some thousands are handed over, such
as the gradients of a small model, as long as they take little to compute. Read
:meth:`Messages._run` first.
"""

import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, distributed

from meta_magic.errors import WorldError
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.kernel_calls import OperatorCall
from meta_magic.torch_private.distributed import REDUCTION, describe_group
from meta_magic.torch_private.modes import pop_dispatch_mode, push_dispatch_mode
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.trace.world import (
    MESSAGES,
    Peers,
    World,
    describe_ranks,
    find_group,
    find_kind,
    find_reduction,
)

MAX_NBYTES: Final = 2**24
"""The largest tensor of whole numbers whose values are handed over."""

MAX_FLOATS: Final = 2**14
"""The most other numbers that a collective hands over."""

FEW: Final = 16
"""Tensors of so few numbers are tried even after a larger one took too much."""

ENDED: Final = "rank-{}-ended"
"""The file that a process leaves when its block has ended."""

WAITS: Final = "rank-{}-waits"
"""The file in which a process says for which file of which process it waits."""

LONGEST: Final = 0.02
"""The most seconds between two looks for a file."""

N_LOOKS: Final = 10
"""So many looks in a row find that ranks wait for each other."""

WANTED: Final = "rank-{}-wanted"
"""The file by which a process asks for another to be recorded, too."""

BARRIER: Final = "barrier"
FROM_ROOT: Final = frozenset({"broadcast", "scatter"})
TO_ROOT: Final = frozenset({"reduce", "gather"})
SENT_APART: Final = frozenset({"scatter", "reduce_scatter", "all_to_all"})
"""Collectives that send something else to each process."""
GOT_APART: Final = frozenset({"gather", "all_gather", "all_to_all"})
"""Collectives that get what each process sends."""
SENT: Final = "input_tensors", "input_tensor", "input", "tensors", "tensor"
GOT: Final = "output_tensors", "output_tensor", "output", "tensors", "tensor"
"""Names of the arguments that are sent, and written; the first that there is counts."""
ROOT: Final = "root_rank", "src", "dst"

REDUCE_BY_NAME: Final[Mapping[str | None, Callable[[Tensor], Tensor]]] = {
    "sum": lambda values: values.sum(0),
    "avg": lambda values: values.mean(0),
    "product": lambda values: values.prod(0),
    "min": lambda values: values.amin(0),
    "max": lambda values: values.amax(0),
    "band": partial(reduce, torch.bitwise_and),
    "bor": partial(reduce, torch.bitwise_or),
    "bxor": partial(reduce, torch.bitwise_xor),
}

ALL: Final = "all"
"""Who reads a file of what is not sent apart."""

Given: TypeAlias = Mapping[str, Any]
"""The arguments of an operator, by name."""

Read: TypeAlias = tuple[Tensor | None, bool]
"""Values, or None if they are not known; and whether they rest on unknown values of
other processes."""


class Piece(NamedTuple):
    """What one process sends to another.

    Attributes:
        tensor: The tensor that it is, or lies in.
        rows: Its rows of that tensor; None for all.
    """

    tensor: Tensor
    rows: slice | None = None

    def cut(self, values: Tensor) -> Tensor:
        """Return these rows of a tensor."""
        return values if self.rows is None else values[self.rows]

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        with WithoutModes():
            return self.cut(self.tensor).shape


class Exchange(NamedTuple):
    """Who sends to whom in a call.

    Attributes:
        kind: Its kind, as ``Sent.kind`` has it.
        name: The begin of its files' names.
        senders: Those that send.
        receivers: Those that get it.
        reduction: How it reduces; None for a call that does not.
    """

    kind: str
    name: str
    senders: Sequence[int]
    receivers: Sequence[int]
    reduction: str | None


class Messages(Replacements):
    """Hands over the values that collectives and messages send, within the block.

    Args:
        world: The world.
        peers: The processes that are recorded at the same time, and their folder.
        read: Returns the values of a meta tensor.
        hold: Returns a meta tensor with the values of a real one.
        on_received: Called with a tensor whose values have been received.
        mode: Calls this instead of running an operator of torch.distributed.
    """

    def __init__(
        self,
        world: World,
        peers: Peers,
        read: Callable[[Tensor], Read],
        hold: Callable[[Tensor], Tensor],
        on_received: Callable[[Tensor], None],
        mode: DispatchMode,
    ) -> None:
        super().__init__()
        self._me = world.rank
        self._folder, self._peers = Path(peers.folder), frozenset(peers.ranks)
        self._read, self._hold, self._on_received = read, hold, on_received
        self._mode = mode
        self._counts: Counter[str] = Counter()
        self._awaited: dict[int, tuple[object, Callable[[], None]]] = {}
        self._is_running = self._is_beyond = False

    def __enter__(self) -> None:
        self._mode.hand_over = self._run
        waiting = dict.fromkeys(("wait", "is_completed"), self._wait)
        self.replace_here(distributed.Work, waiting)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._mode.hand_over = None
        self._awaited.clear()
        (self._folder / ENDED.format(self._me)).touch()

    def _run(self, call: OperatorCall, run: Callable[[], Any]) -> Any:
        """Run an operator of torch.distributed, and hand over what it sends.

        The values of a message come when the block waits for it: until then it may send
        what the other process waits for.
        """
        op = call.table.name
        given = dict(zip(call.table.arguments, call.args, strict=False))
        given.update(call.kwargs)
        exchange = None if self._is_running else self._describe(op, given)
        if exchange is None:
            return run()
        own = self._send(exchange, given)
        self._is_running = True  # real arguments are replaced, and it is called again
        try:
            returned = run()
        finally:
            self._is_running = False
        if self._me not in exchange.receivers:
            return returned
        got = find(given, GOT) if op.startswith("c10d.") else returned
        sizes = given.get("output_split_sizes")
        is_apart = exchange.kind in GOT_APART
        pieces = split(got, exchange.senders, sizes, is_apart=is_apart)
        files = self._expect(exchange, pieces)
        receive = partial(self._receive, exchange, pieces, files, own)
        if exchange.kind in MESSAGES:
            work = distributed.Work.unbox(returned)
            self._awaited[id(work)] = work, receive
            return returned
        push_dispatch_mode(self._mode)
        try:
            receive()
        finally:
            pop_dispatch_mode()
        return returned

    def _wait(self, plain: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        done = plain(work, *args, **kwargs)
        _, receive = self._awaited.pop(id(work), (None, None))
        if receive is not None:
            receive()
        return done

    def _describe(self, op: str, given: Given) -> Exchange | None:
        """Return who sends to whom in a call; None if nothing is handed over."""
        texts = [describe_group(value) or value for value in given.values()]
        texts = [t.removeprefix(REDUCTION) for t in texts if isinstance(t, str)]
        group, kind = find_group(texts), BARRIER if BARRIER in op else find_kind(op)
        if group is None or len(group.ranks) == 1 or kind is None or "coalesced" in op:
            return None
        root = find(given, ROOT)
        one = () if root is None else (group.ranks[root],)
        if kind in MESSAGES:
            pair = (self._me, *one) if kind == "send" else (*one, self._me)
            if len({*pair}) == 1:  # from itself, or from any
                return None
            name = "message-" + "-to-".join(map(str, pair))
            return Exchange(kind, name, pair[:1], pair[1:], None)
        reduction = find_reduction(texts)
        needs_all = reduction is not None or kind == "all_to_all"
        is_known = reduction is None or reduction in REDUCE_BY_NAME
        if not is_known or (needs_all and not self._peers.issuperset(group.ranks)):
            return None
        name = f"{kind}-{describe_ranks(group.ranks).replace(':', 'by')}"
        senders = one if kind in FROM_ROOT else group.ranks
        receivers = one if kind in TO_ROOT else group.ranks
        return Exchange(kind, name, senders, receivers, reduction)

    def _send(self, exchange: Exchange, given: Given) -> Read:
        """Write what this process sends into files; return what it sends to itself."""
        own: Read = None, True
        if self._me not in exchange.senders:
            return own
        is_apart, sizes = exchange.kind in SENT_APART, given.get("input_split_sizes")
        pieces: Mapping[Any, Piece] = split(
            find(given, SENT), exchange.receivers, sizes, is_apart=is_apart
        )
        if not is_apart:
            pieces = {ALL: next(iter(pieces.values()))}
        known: Read | None = None
        for to, piece in pieces.items():
            path = self._next_file(f"{exchange.name}-{self._me}-{to}")
            if not is_handed_over(piece):
                continue
            if known is None or piece.rows is None:
                known = (None, True) if exchange.kind == BARRIER else self._find(piece)
            values, is_assumed = known
            with WithoutModes():
                values = None if values is None else piece.cut(values)
                numbers = None if values is None else values.flatten().tolist()
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps((numbers, is_assumed)))
            part.rename(path)
            own = (values, is_assumed) if to in (ALL, self._me) else own
        return own

    def _find(self, piece: Piece) -> Read:
        """Return the values of the tensor in which a piece lies."""
        tensor = piece.tensor
        if not tensor.is_meta:
            return tensor, False
        is_small = is_whole(tensor) or tensor.numel() <= FEW
        if self._is_beyond and not is_small:
            return None, True
        found = self._read(tensor)
        self._is_beyond |= not is_small and found[0] is None
        return found

    def _expect(
        self, exchange: Exchange, pieces: Mapping[int, Piece]
    ) -> dict[int, Path]:
        """Return the files that other recorded processes write for this one.

        A process that alone sends whole numbers is recorded, too.
        """
        senders = exchange.senders
        is_one = len(senders) == 1 and is_whole(pieces[senders[0]].tensor)
        to = self._me if exchange.kind in SENT_APART else ALL
        return {
            sender: self._next_file(f"{exchange.name}-{sender}-{to}")
            for sender in senders
            if sender != self._me and (is_one or sender in self._peers)
        }

    def _receive(
        self,
        exchange: Exchange,
        pieces: Mapping[int, Piece],
        files: Mapping[int, Path],
        own: Read,
    ) -> None:
        """Write what was received into the tensors of a call."""
        found = {
            sender: self._get(path, exchange.kind, pieces[sender], sender)
            for sender, path in files.items()
        }
        if exchange.kind == BARRIER:
            return
        needed = {*exchange.senders}
        if exchange.reduction is None:
            needed.discard(self._me)
        else:
            found[self._me] = own
        values = {rank: read for rank, (read, _) in found.items() if read is not None}
        is_complete = values.keys() == needed
        if exchange.reduction is not None:
            if not is_complete:
                return
            shape = pieces[self._me].tensor.shape
            with WithoutModes():
                parts = torch.stack(
                    [values[rank].view(shape) for rank in sorted(values)]
                )
                values = {self._me: REDUCE_BY_NAME[exchange.reduction](parts)}
        for rank, value in values.items():
            piece = pieces[rank]
            held = self._hold(value) if piece.tensor.is_meta else value
            with torch.no_grad():
                piece.cut(piece.tensor).copy_(held)
        if is_complete and not any(is_assumed for _, is_assumed in found.values()):
            for rank in values:
                self._on_received(pieces[rank].tensor)

    def _get(self, path: Path, kind: str, piece: Piece, sender: int) -> Read:
        """Return the values that another process writes into a file.

        Raises:
            WorldError: It writes none, or another number of them.
        """
        if not is_handed_over(piece):
            return None, True
        self._wait_for(path, kind, sender)
        numbers, is_assumed = pickle.loads(path.read_bytes())  # noqa: S301  our own process's
        if numbers is None:
            return None, True
        if len(numbers) != piece.shape.numel():
            raise WorldError(
                f"rank {self._me} expects {piece.shape.numel():,} numbers of rank "
                f"{sender} in {kind}, which sends {len(numbers):,}: this hangs, or "
                "mixes tensors",
                is_hang=True,
            )
        with WithoutModes():
            values = torch.tensor(numbers, dtype=piece.tensor.dtype, device="cpu")
            return values.view(piece.shape), is_assumed

    def _next_file(self, name: str) -> Path:
        """Return the file of the next message of a name."""
        self._counts[name] += 1
        return self._folder / f"{name}-{self._counts[name]}.pickle"

    def _wait_for(self, path: Path, kind: str, sender: int) -> None:
        """Wait until another process has written a file; have it recorded, too.

        Raises:
            WorldError: The process has ended, or waits for this one.
        """
        (self._folder / WANTED.format(sender)).touch()
        ended = self._folder / ENDED.format(sender)
        mine = self._folder / WAITS.format(self._me)
        pause, n_circles = 0.0005, 0
        while not path.exists():
            if pause == LONGEST:
                mine.write_text(f"{sender} {path.name}")
                n_circles = n_circles + 1 if self._waits_for_itself(sender) else 0
            is_circle = n_circles > N_LOOKS
            if (ended.exists() or is_circle) and not path.exists():
                why = "waits itself, for what is not sent" if is_circle else "has ended"
                raise WorldError(
                    f"rank {self._me} waits in {kind} for rank {sender}, which {why}: "
                    "this hangs",
                    is_hang=True,
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        mine.unlink(missing_ok=True)

    def _waits_for_itself(self, rank: int) -> bool:
        """Whether the ranks that one waits for, one after the other, are a circle."""
        seen: set[int] = set()
        while rank not in seen and rank != self._me:
            seen.add(rank)
            try:
                text = (self._folder / WAITS.format(rank)).read_text()
                sender, name = text.split()
            except (OSError, ValueError):  # it does not wait
                return False
            if (self._folder / name).exists():
                return False
            rank = int(sender)
        return True


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def is_handed_over(piece: Piece) -> bool:
    """Whether the values of a piece are handed over: others than integers are few."""
    numel = piece.shape.numel()
    if is_whole(piece.tensor):
        return numel * piece.tensor.itemsize <= MAX_NBYTES
    return numel <= MAX_FLOATS


def find(given: Given, names: Sequence[str]) -> Any:
    """Return the argument with the first of these names that there is, or None."""
    return next((given[name] for name in names if name in given), None)


def split(
    value: Any, ranks: Sequence[int], sizes: Sequence[int] | None, *, is_apart: bool
) -> dict[int, Piece]:
    """Return the piece for, or of, each process.

    Args:
        value: A tensor, a list of tensors, or a list of one of these.
        ranks: The processes.
        sizes: How many rows there are for each; as many for all if there are none.
        is_apart: Whether each has another piece.
    """
    while not isinstance(value, Tensor) and len(value) == 1:
        (value,) = value
    if not is_apart:
        return dict.fromkeys(ranks, Piece(value))
    if not isinstance(value, Tensor):
        return dict(zip(ranks, map(Piece, value), strict=False))
    ends = accumulate(sizes or [len(value) // len(ranks)] * len(ranks), initial=0)
    pieces = [Piece(value, slice(*both)) for both in pairwise(ends)]
    return dict(zip(ranks, pieces, strict=False))
