"""Hand small values between processes of a world that are recorded side by side.

A pipeline sends the shapes of its activations from stage to stage, and
``broadcast_object_list`` a pickle: without their values a recording stops there. Each
recorded process writes the whole numbers that it sends into a file of a folder that all
share; the others read it. Of other numbers at most some thousands are handed over, such
as the counts by which ``DDP.join()`` ends, as long as they take little to compute. Read
:class:`Messages` first.
"""

import inspect
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce, wraps
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from meta_magic.errors import WorldError
from meta_magic.torch_private.distributed import list_ranks
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.trace.sent import MESSAGES
from meta_magic.trace.world import Peers, World, describe_ranks

MAX_NBYTES: Final = 2**24
"""The largest tensor of whole numbers whose values are handed over."""

MAX_FLOATS: Final = 2**14
"""The most other numbers that a collective hands over."""

FEW: Final = 16
"""So many are handed over, even if more took too much to compute before."""

SECONDS: Final = 60.0
"""How long a process waits for another that still runs."""

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


Given: TypeAlias = Mapping[str, Any]
"""The arguments of a call of torch, by name."""

WHOLE: Final = slice(None)
BARRIER: Final = "barrier"


class Piece(NamedTuple):
    """What one process sends to another.

    Attributes:
        tensor: The tensor that it is, or lies in.
        rows: Its rows of that tensor.
    """

    tensor: Tensor
    rows: slice = WHOLE

    def cut(self, values: Tensor) -> Tensor:
        """Return these rows of a tensor."""
        return values if self.rows == WHOLE else values[self.rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        shape = self.tensor.shape
        if self.rows == WHOLE:
            return tuple(shape)
        return len(range(*self.rows.indices(shape[0]))), *shape[1:]


class Handing(NamedTuple):
    """What a call sends to, and gets from, the processes of its group.

    Attributes:
        kind: Its kind, in the names of files and in errors.
        sends: What it sends to each process; None stands for all.
        gets: What it gets of each process.
        reduction: The reduction of what it gets; None for a call that does not reduce.
    """

    kind: str
    sends: Mapping[Any, Piece]
    gets: Mapping[int, Piece]
    reduction: Any = None


Describe: TypeAlias = Callable[["Collective"], Handing]


class Messages(Replacements):
    """Hands over the values that collectives send, within the block.

    Args:
        world: The world.
        peers: The processes that are recorded at the same time, and their folder.
        read: Returns the values of a meta tensor, or None if they are not known; and
            whether they rest on values of other processes that are not.
        on_received: Called with a tensor whose values have been received.
    """

    def __init__(
        self,
        world: World,
        peers: Peers,
        read: Callable[[Tensor], tuple[Tensor | None, bool]],
        on_received: Callable[[Tensor], None],
    ) -> None:
        super().__init__()
        self._me = world.rank
        self._folder, self._peers = Path(peers.folder), frozenset(peers.ranks)
        self._read = read
        self._on_received = on_received
        self._counts: Counter[str] = Counter()
        self._is_running = self._is_beyond = False

    def __enter__(self) -> None:
        for name, describe in DESCRIBE_BY_NAME.items():
            plain = getattr(distributed_c10d, name, None)  # not in each version
            if plain is not None:
                # Torch compares functions: both modules must have the same one.
                handing = wraps(plain)(partial(self._run, plain, describe))
                for module in (distributed_c10d, distributed):
                    self.replace(module, name, handing)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        (self._folder / ENDED.format(self._me)).touch()

    def _run(self, plain: Any, describe: Describe, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch, and hand over what it sends.

        torch calls this again, by its protocol of ``__torch_function__``.
        """
        if self._is_running:
            return plain(*args, **kwargs)
        given = inspect.signature(plain).bind(*args, **kwargs)
        given.apply_defaults()
        ranks = list_ranks(given.arguments["group"])
        call = Collective(given.arguments, ranks, self._me)
        handing = describe(call) if ranks else NOTHING
        needs_all = handing.reduction is not None or handing.kind == "all_to_all"
        is_known = handing.reduction is None or handing.reduction in REDUCE_BY_OP
        if not is_known or (needs_all and not self._peers.issuperset(ranks)):
            handing = NOTHING
        is_message = handing.kind in MESSAGES
        name = (
            "send"
            if is_message
            else f"{handing.kind}-{describe_ranks(ranks).replace(':', 'by')}"
        )
        known: dict[int, tuple[Tensor | None, bool]] = {}
        for to, piece in handing.sends.items():
            path = self._next_file(f"{name}-{self._me}-{to}")
            if is_handed_over(handing, piece):
                self._put(path, piece, known)
        self._is_running = True
        try:
            done = plain(*args, **kwargs)
        finally:
            self._is_running = False
        to_all = None in handing.sends or handing.kind == "broadcast"
        ending = f"-{None if to_all else self._me}"
        found = {
            sender: self._get(f"{name}-{sender}{ending}", handing, sender)
            for sender in handing.gets
            if sender != self._me
        }
        mine = handing.sends.get(None if to_all else self._me)
        if handing.reduction is not None and mine is not None and known:
            values, is_assumed = known[id(mine.tensor)]
            if values is not None:
                with WithoutModes():
                    values = mine.cut(values).view(handing.gets[self._me].shape)
            found[self._me] = values, is_assumed
        if handing.kind != BARRIER:
            self._write(handing, found)
        return done

    def _write(
        self, handing: Handing, found: Mapping[int, tuple[Tensor | None, bool]]
    ) -> None:
        """Write what was received into the tensors of a call."""
        values = {
            rank: value for rank, (value, _) in found.items() if value is not None
        }
        is_complete = len(values) == len(found)
        if handing.reduction is not None and values:
            if not is_complete:
                return
            with WithoutModes():
                parts = torch.stack([values[rank] for rank in sorted(values)])
                reduced = REDUCE_BY_OP[handing.reduction](parts)
            values = {next(iter(values)): reduced}
        for rank, value in values.items():
            piece = handing.gets[rank]
            with torch.no_grad():
                piece.cut(piece.tensor).copy_(value)
        if is_complete and not any(is_assumed for _, is_assumed in found.values()):
            for rank in values:
                self._on_received(handing.gets[rank].tensor)

    def _put(
        self, path: Path, piece: Piece, known: dict[int, tuple[Tensor | None, bool]]
    ) -> None:
        """Write the values of a piece into a file, for the processes that want them.

        Args:
            path: The file.
            piece: The piece.
            known: The values that this call has read, by the tensor's id.
        """
        tensor = piece.tensor
        if id(tensor) not in known:
            known[id(tensor)] = (
                self._find(tensor) if tensor.is_meta else (tensor, False)
            )
        values, is_assumed = known[id(tensor)]
        with WithoutModes():
            numbers = None if values is None else piece.cut(values).flatten().tolist()
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps((numbers, is_assumed)))
        part.rename(path)

    def _find(self, tensor: Tensor) -> tuple[Tensor | None, bool]:
        """Return the values of a meta tensor that is sent, and if they are assumed."""
        is_small = is_whole(tensor) or tensor.numel() <= FEW
        if self._is_beyond and not is_small:
            return None, True
        found = self._read(tensor)
        self._is_beyond |= not is_small and found[0] is None
        return found

    def _get(
        self, name: str, handing: Handing, sender: int
    ) -> tuple[Tensor | None, bool]:
        """Return the values that another process sends, and if they are assumed.

        Args:
            name: The name that the other process gives the message.
            handing: The call.
            sender: That process.
        """
        path, piece = self._next_file(name), handing.gets[sender]
        is_recorded = sender in self._peers
        is_one = len(handing.gets) == 1 and handing.kind != BARRIER
        can_start = is_one and is_whole(piece.tensor)
        if not (is_recorded or can_start) or not is_handed_over(handing, piece):
            return None, True
        self._wait_for(path, handing.kind, sender)
        numbers, is_assumed = pickle.loads(path.read_bytes())  # noqa: S301  our own process's
        if numbers is None:
            return None, True
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
            WorldError: The process has ended, takes too long, or waits for this one.
        """
        (self._folder / WANTED.format(sender)).touch()
        ended = self._folder / ENDED.format(sender)
        mine = self._folder / WAITS.format(self._me)
        end, pause, n_circles = time.monotonic() + SECONDS, 0.0005, 0
        while not path.exists():
            if pause == LONGEST:
                mine.write_text(f"{sender} {path.name}")
                n_circles = n_circles + 1 if self._waits_for_itself(sender) else 0
            has_ended, is_circle = ended.exists(), n_circles > N_LOOKS
            is_over = has_ended or is_circle or time.monotonic() > end
            if is_over and not path.exists():
                why = f"did not send in {SECONDS:.0f} s"
                why = "waits itself, for what is not sent" if is_circle else why
                why = "has ended" if has_ended else why
                raise WorldError(
                    f"rank {self._me} waits in {kind} for rank {sender}, which {why}: "
                    "this hangs"
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


def is_handed_over(handing: Handing, piece: Piece) -> bool:
    """Whether the values of a piece are handed over.

    Other than whole numbers need a replay; no message hands them over, as a stage of a
    pipeline may wait for it before it sends its own.
    """
    numel = prod(piece.shape)
    if is_whole(piece.tensor):
        return numel * piece.tensor.itemsize <= MAX_NBYTES
    return numel <= MAX_FLOATS and handing.kind not in MESSAGES


class Collective(NamedTuple):
    """A call of torch that sends something, as the table below reads it.

    Attributes:
        given: Its arguments by name.
        ranks: The processes of its group.
        me: This process.
    """

    given: Given
    ranks: Sequence[int]
    me: int

    def root(self, name: str) -> int:
        """Return the rank in the world of ``src`` or ``dst``."""
        rank, in_group = self.given[name], self.given[f"group_{name}"]
        return (rank or 0) if in_group is None else self.ranks[in_group]

    def one(self, name: str) -> Piece:
        """Return a tensor."""
        return Piece(self.given[name])

    def of_each(self, name: str) -> dict[int, Piece]:
        """Return a tensor that is exchanged with each process."""
        return dict.fromkeys(self.ranks, self.one(name))

    def listed(self, name: str) -> dict[int, Piece]:
        """Return the tensor of each process in a list."""
        return dict(zip(self.ranks, map(Piece, self.given[name] or ()), strict=False))

    def rows(self, name: str, sizes_name: str = "") -> dict[int, Piece]:
        """Return the rows of each process; equally many if no sizes are given."""
        tensor, n = self.given[name], len(self.ranks)
        sizes = self.given.get(sizes_name) or [len(tensor) // n] * n
        ends = pairwise(accumulate(sizes, initial=0))
        pieces = [Piece(tensor, slice(*both)) for both in ends]
        return dict(zip(self.ranks, pieces, strict=False))


def describe_broadcast(call: Collective) -> Handing:
    """Broadcast from the root."""
    root, piece = call.root("src"), call.one("tensor")
    sends, gets = ({None: piece}, {}) if root == call.me else ({}, {root: piece})
    return Handing("broadcast", sends, gets)


def describe_scatter(call: Collective) -> Handing:
    """Scatter a list of the root."""
    root = call.root("src")
    gets = {} if root == call.me else {root: call.one("tensor")}
    return Handing("scatter", call.listed("scatter_list"), gets)


def describe_reduce(call: Collective) -> Handing:
    """Reduce for the root."""
    root = call.root("dst")
    gets = call.of_each("tensor") if root == call.me else {}
    return Handing("reduce", {root: call.one("tensor")}, gets, call.given["op"])


def describe_receive(call: Collective) -> Handing:
    """Receive a message; nothing is handed over from any sender."""
    if call.given["src"] is None and call.given["group_src"] is None:
        return NOTHING
    return Handing("recv", {}, {call.root("src"): call.one("tensor")})


def describe_barrier(call: Collective) -> Handing:
    """Wait for all: what one process writes to a file the others find after it."""
    with WithoutModes():
        nothing = Piece(torch.empty(0, dtype=torch.uint8, device="cpu"))
    return Handing(BARRIER, {None: nothing}, dict.fromkeys(call.ranks, nothing))


def describe_send(call: Collective) -> Handing:
    """Send a message."""
    return Handing("send", {call.root("dst"): call.one("tensor")}, {})


NOTHING: Final = Handing("", {}, {})
DESCRIBE_BY_NAME: Final[Mapping[str, Describe]] = {
    "barrier": describe_barrier,
    "monitored_barrier": describe_barrier,
    "broadcast": describe_broadcast,
    "gather": lambda call: Handing(
        "gather", {call.root("dst"): call.one("tensor")}, call.listed("gather_list")
    ),
    "scatter": describe_scatter,
    "all_gather": lambda call: Handing(
        "all_gather", {None: call.one("tensor")}, call.listed("tensor_list")
    ),
    "all_gather_single": lambda call: Handing(
        "all_gather", {None: call.one("input_tensor")}, call.rows("output_tensor")
    ),
    "reduce": describe_reduce,
    "all_reduce": lambda call: Handing(
        "all_reduce",
        {None: call.one("tensor")},
        call.of_each("tensor"),
        call.given["op"],
    ),
    "reduce_scatter_single": lambda call: Handing(
        "reduce_scatter", call.rows("input"), call.of_each("output"), call.given["op"]
    ),
    "all_to_all": lambda call: Handing(
        "all_to_all",
        call.listed("input_tensor_list"),
        call.listed("output_tensor_list"),
    ),
    "all_to_all_single": lambda call: Handing(
        "all_to_all",
        call.rows("input", "input_split_sizes"),
        call.rows("output", "output_split_sizes"),
    ),
    "send": describe_send,
    "isend": describe_send,
    "recv": describe_receive,
    "irecv": describe_receive,
}
OPS: Final = distributed.ReduceOp
REDUCE_BY_OP: Final[Mapping[Any, Callable[[Tensor], Tensor]]] = {
    OPS.SUM: lambda values: values.sum(0),
    OPS.AVG: lambda values: values.mean(0),
    OPS.PRODUCT: lambda values: values.prod(0),
    OPS.MIN: lambda values: values.amin(0),
    OPS.MAX: lambda values: values.amax(0),
    OPS.BAND: partial(reduce, torch.bitwise_and),
    OPS.BOR: partial(reduce, torch.bitwise_or),
    OPS.BXOR: partial(reduce, torch.bitwise_xor),
}
