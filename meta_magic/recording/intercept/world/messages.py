"""Hand small values between processes of a world that are recorded side by side.

A pipeline sends the shapes of its activations from stage to stage, and
``broadcast_object_list`` a pickle: without their values a recording stops there. Each
recorded process writes the whole numbers that it sends into a file of a folder that all
share; the others read it. Floating-point tensors are not handed over: their values are
not needed to go on. Read :class:`Messages` first.
"""

import inspect
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from meta_magic.errors import WorldError
from meta_magic.torch_private.distributed import list_ranks
from meta_magic.torch_private.replacing import Replacements
from meta_magic.trace.world import Peers, World, describe_ranks

MAX_NBYTES: Final = 2**24
"""The largest tensor whose values are handed over."""

SECONDS: Final = 60.0
"""How long a process waits for another that still runs."""

ENDED: Final = "rank-{}-ended"
"""The file that a process leaves when its block has ended."""

WANTED: Final = "rank-{}-wanted"
"""The file by which a process asks for another to be recorded, too."""


Given: TypeAlias = Mapping[str, Any]
"""The arguments of a call of torch, by name."""

Handing: TypeAlias = Callable[[Given, Sequence[int]], None]
"""Takes the arguments of a call that has run, and the processes of its group."""


class Messages(Replacements):
    """Hands over the values that collectives send, within the block.

    Args:
        world: The world.
        peers: The processes that are recorded at the same time, and their folder.
        read: Returns the values of a meta tensor; None if they are not known.
        on_received: Called with a tensor whose values have been received.
    """

    def __init__(
        self,
        world: World,
        peers: Peers,
        read: Callable[[Tensor], Tensor | None],
        on_received: Callable[[Tensor], None],
    ) -> None:
        super().__init__()
        self._me = world.rank
        self._folder, self._peers = Path(peers.folder), frozenset(peers.ranks)
        self._read = read
        self._on_received = on_received
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> None:
        functions: dict[str, Handing] = {
            "broadcast": self._broadcast,
            "all_gather": self._all_gather,
            "gather": self._gather,
            "scatter": self._scatter,
            "send": self._send,
            "isend": self._send,
            "recv": self._receive,
            "irecv": self._receive,
            "all_to_all_single": self._exchange_rows,
            "all_to_all": self._exchange_lists,
        }
        for name, function in functions.items():
            plain = getattr(distributed_c10d, name)
            # Torch compares functions: both modules must have the same one.
            handing = wraps(plain)(partial(self._run, plain, function))
            for module in (distributed_c10d, distributed):
                self.replace(module, name, handing)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        (self._folder / ENDED.format(self._me)).touch()

    def _run(self, plain: Any, function: Handing, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch, and hand over what it sends."""
        given = inspect.signature(plain).bind(*args, **kwargs)
        given.apply_defaults()
        done = plain(*args, **kwargs)
        function(given.arguments, list_ranks(given.arguments["group"]))
        return done

    def _broadcast(self, given: Given, ranks: Sequence[int]) -> None:
        root = find_rank(ranks, given["src"], given["group_src"])
        name = f"broadcast-{name_ranks(ranks)}-{root}"
        if root == self._me:
            self._put(name, given["tensor"])
        else:
            self._get(name, root, given["tensor"])

    def _all_gather(self, given: Given, ranks: Sequence[int]) -> None:
        name = f"all_gather-{name_ranks(ranks)}"
        self._put(f"{name}-{self._me}", given["tensor"])
        self._get_all(name, ranks, given["tensor_list"])

    def _gather(self, given: Given, ranks: Sequence[int]) -> None:
        name = f"gather-{name_ranks(ranks)}"
        self._put(f"{name}-{self._me}", given["tensor"])
        self._get_all(name, ranks, given["gather_list"] or ())

    def _scatter(self, given: Given, ranks: Sequence[int]) -> None:
        root = find_rank(ranks, given["src"], given["group_src"])
        name = f"scatter-{name_ranks(ranks)}-{root}"
        for rank, part in zip(ranks, given["scatter_list"] or (), strict=False):
            self._put(f"{name}-{rank}", part)
        if root != self._me:
            self._get(f"{name}-{self._me}", root, given["tensor"])

    def _exchange_rows(self, given: Given, ranks: Sequence[int]) -> None:
        if is_handed_over(given["input"]):
            n = len(ranks)
            inputs = split_rows(given["input"], given["input_split_sizes"], n)
            outputs = split_rows(given["output"], given["output_split_sizes"], n)
            self._exchange(inputs, outputs, ranks)

    def _exchange_lists(self, given: Given, ranks: Sequence[int]) -> None:
        lists = given["input_tensor_list"], given["output_tensor_list"]
        self._exchange(*lists, ranks)

    def _exchange(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], ranks: Sequence[int]
    ) -> None:
        """Send a tensor to each process and get one of each, if all are recorded."""
        if not self._peers.issuperset(ranks):
            return
        name = f"all_to_all-{name_ranks(ranks)}"
        for rank, part in zip(ranks, inputs, strict=True):
            if rank != self._me:
                self._put(f"{name}-{self._me}-{rank}", part)
        for rank, output in zip(ranks, outputs, strict=True):
            if rank != self._me:
                self._get(f"{name}-{rank}-{self._me}", rank, output)

    def _send(self, given: Given, ranks: Sequence[int]) -> None:
        to = find_rank(ranks, given["dst"], given["group_dst"])
        self._put(f"send-{self._me}-{to}", given["tensor"])

    def _receive(self, given: Given, ranks: Sequence[int]) -> None:
        if given["src"] is not None or given["group_src"] is not None:
            sender = find_rank(ranks, given["src"], given["group_src"])
            self._get(f"send-{sender}-{self._me}", sender, given["tensor"])

    def _get_all(
        self, name: str, ranks: Sequence[int], outputs: Sequence[Tensor]
    ) -> None:
        """Get what each recorded process of a group sends."""
        for rank, output in zip(ranks, outputs, strict=False):
            if rank != self._me:
                is_recorded = rank in self._peers
                self._get(f"{name}-{rank}", rank if is_recorded else None, output)

    def _put(self, name: str, tensor: Tensor) -> None:
        """Write a tensor's values into a file, for the processes that want them."""
        path = self._next_file(name)
        if not is_handed_over(tensor):
            return
        values = self._read(tensor) if tensor.is_meta else tensor
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(None if values is None else values.tolist()))
        part.rename(path)

    def _get(self, name: str, sender: int | None, tensor: Tensor) -> None:
        """Write the values that another process sends into a tensor.

        Args:
            name: The name that the other process gives the message.
            sender: That process.
            tensor: The tensor.
        """
        path = self._next_file(name)
        if sender is None or not is_handed_over(tensor):
            return
        self._wait_for(path, name.partition("-")[0], sender)
        values = pickle.loads(path.read_bytes())  # noqa: S301  our own process's
        if values is not None:
            with torch.no_grad():
                tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
            self._on_received(tensor)

    def _next_file(self, name: str) -> Path:
        """Return the file of the next message of a name."""
        self._counts[name] += 1
        return self._folder / f"{name}-{self._counts[name]}.pickle"

    def _wait_for(self, path: Path, kind: str, sender: int) -> None:
        """Wait until another process has written a file; have it recorded, too.

        Raises:
            WorldError: The process has ended, or takes too long.
        """
        (self._folder / WANTED.format(sender)).touch()
        ended = self._folder / ENDED.format(sender)
        end, pause = time.monotonic() + SECONDS, 0.0005
        while not path.exists():
            has_ended = ended.exists()
            if (has_ended and not path.exists()) or time.monotonic() > end:
                why = "has ended" if has_ended else f"did not send in {SECONDS:.0f} s"
                raise WorldError(
                    f"rank {self._me} waits in {kind} for rank {sender}, which {why}: "
                    "this hangs"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.02)


def is_handed_over(tensor: Tensor) -> bool:
    """Whether the values of a tensor are handed over: few whole numbers."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex())
    return is_whole and tensor.nbytes <= MAX_NBYTES


def split_rows(tensor: Tensor, sizes: Sequence[int] | None, n: int) -> Sequence[Tensor]:
    """Return the rows for, or of, each process; equally many if no sizes are given."""
    return tensor.split(list(sizes)) if sizes else tensor.tensor_split(n)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return the processes of a group, as part of a file's name."""
    return describe_ranks(ranks).replace(":", "by")


def find_rank(
    ranks: Sequence[int], rank: int | None, group_rank: int | None
) -> int | None:
    """Return a rank in the world, given that rank or its rank in a group."""
    if group_rank is not None:
        return ranks[group_rank] if ranks else None
    return 0 if rank is None else rank
