"""Assume sizes and values that cannot be computed, as ``--assume`` allows.

``x[mask]`` has as many rows as ``mask`` has true elements. If the mask takes too much
to compute, ``nonzero=0.5`` gives the share of true elements, and ``routing=uniform``
gives each expert of a mixture as many tokens: ``Routing`` follows the choice of experts
(``topk``) through the recorded calls. Read ``guess_count`` first.

``OtherRanks`` follows values that rest on what other processes of a planned world send.
They are computed as if all processes held what the recorded one holds; without a note
they would pass for the real ones, in a checkpoint as well.
"""

import math
from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import Final, NamedTuple

import torch

from meta_magic.errors import MissingValueError, ValueLimitError
from meta_magic.recording.identities.call_sites import TakeNote
from meta_magic.recording.rows.writers import Writers
from meta_magic.replaying.forward_replay import ReplayColumns
from meta_magic.replaying.value_budget import free_nbytes
from meta_magic.trace.expectations import CHECK_SECONDS
from meta_magic.trace.options import LIMITS, N_VALUES, Assumed, Options
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import CPU, Geometry, Signature
from meta_magic.trace.world import World, find_group, find_kind

UNIFORM: Final = "routing=uniform"
LARGE: Final = 10_000  # numbers from here on are written with an exponent

LONGEST: Final = 600  # seconds that a reader may choose to wait for a value

CONTROL: Final = frozenset(
    f"torch.Tensor.{name}" for name in ("__bool__", "__int__", "__index__")
)
"""Functions whose value decides what the cell does next."""

CHOICES: Final = frozenset({"aten.topk", "aten.argmax", "aten.max", "aten.sort"})
"""Choose experts for each token: the last dimension of the input has all experts."""

SUM: Final = "aten.sum"
COUNTS: Final = frozenset({"aten.bincount", "aten.histc"})
REDUCTIONS: Final = COUNTS | {SUM, "aten.any", "aten.amax", "aten.count"}
"""Say of an expert whether, or how many, tokens were sent to it."""

SCATTERS: Final = frozenset(
    f"aten.{name}{end}" for name in ("scatter", "scatter_add") for end in ("", "_")
)
LOOKUPS: Final = frozenset(
    f"aten.{name}" for name in ("index", "index_select", "gather", "select")
)
"""Take values from the first argument; the positions do not matter."""

COPIES: Final = frozenset({"aten._to_copy", "aten.clone", "aten._unsafe_view"})
"""Make a new tensor of the same numbers."""


class Routed(NamedTuple):
    """Facts about a tensor that says which token goes to which expert.

    Attributes:
        choice: The call that chose the experts.
        part_call: The call that ``part`` comes from.
        part: The part of the elements that is true, of a mask or of its source.
        mean: The mean of the numbers; None if unknown.
    """

    choice: int
    part_call: int
    part: float
    mean: float | None


class Guess(NamedTuple):
    """An assumption about a tensor.

    Attributes:
        n_true: How many elements of a mask are true, or the sum of the numbers.
        text: The option that says so, such as ``nonzero=all``.
        value: The value of each number; None if ``n_true`` says all.
    """

    n_true: int
    text: str
    value: float | None = None


def guess_count(
    routed: Routed | None, shape: Sequence[int], assumed: Assumed
) -> Guess | None:
    """Return how many elements of a mask are assumed to be true, if the user said."""
    numel = prod(shape)
    if routed is not None and assumed.is_uniform:
        return Guess(round(routed.part * numel), UNIFORM)
    if assumed.nonzero is None:
        return None
    part = assumed.nonzero
    text = f"nonzero={'all' if part == 1 else format(part, 'g')}"
    return Guess(round(part * numel), text)


def guess_values(
    routed: Routed | None, tensor: torch.Tensor, assumed: Assumed
) -> Guess | None:
    """Return which numbers a tensor is assumed to hold, if the user said."""
    if routed is not None and routed.mean is not None and assumed.is_uniform:
        return Guess(round(routed.mean * tensor.numel()), UNIFORM)
    if assumed.value is None:
        return None
    return Guess(0, f"values={assumed.value:g}", assumed.value)


def advise_more(error: ValueLimitError, options: Options) -> list[str]:
    """Return which limits to raise for a value; [] if that is not possible."""
    wanted = error.wanted
    is_too_large = wanted.get("nbytes", 0) > free_nbytes(CPU)
    if not wanted or is_too_large or wanted.get("seconds", 0) > LONGEST:
        return []
    if options.is_check:
        seconds = wanted.get("seconds", 0)
        is_little = seconds <= LIMITS.seconds
        share = N_VALUES if is_little else CHECK_SECONDS / LIMITS.seconds
        is_enough = [*wanted] == ["seconds"]
        return [f"--timeout {ceil(seconds * share)}"] if is_enough else []
    amounts = {
        limit: str(n) if n < LARGE else f"{n:.2g}".replace("+0", "").replace("+", "")
        for limit, n in wanted.items()
    }
    names = " ".join(f"--value-{limit} {n}" for limit, n in amounts.items())
    settings = ", ".join(f"{limit}={n}" for limit, n in amounts.items())
    return [f"{names} or record(limits=ValueLimits({settings}))"]


def advise(
    routed: Routed | None, tensor: torch.Tensor, function: str, *, is_mask: bool
) -> str:
    """Return which assumption replaces values, or a mask's size, beyond the limits."""
    if routed is not None and (is_mask or routed.mean is not None):
        option = UNIFORM
    elif is_mask:
        option = "nonzero=all"
    elif function in CONTROL or not tensor.is_floating_point():
        option = "values=0"
    else:
        option = f"values={math.nan}"
    return f"--assume {option} or record(assume={option!r})"


class Routing:
    """Follows the choice of experts through the recorded calls; reads each once."""

    def __init__(self, write: Writers) -> None:
        self._rows, self._registry = write.rows, write.registry
        self._routed: dict[int, Routed] = {}
        self._offset = self._now = 0

    def find(self, storage: int) -> Routed | None:
        """Return what is known of the numbers in a storage; None if not routed."""
        self._rows.flush()
        words, entries = self._rows.words.view(), self._rows.entries
        storages = self._registry.storage_by_tensor
        while self._offset < len(words):
            signature = entries[words[self._offset]].signature
            start = self._offset + HEADER
            split = start + len(signature.inputs)
            end = split + len(signature.outputs)
            read = [storages[word] for word in words[start:split]]
            made = [storages[word] for word in words[split:end]]
            self._follow(signature, read, made)
            self._offset, self._now = end, self._now + 1
        return self._routed.get(storage)

    def _follow(self, signature: Signature, read: list[int], made: list[int]) -> None:
        name = signature.op.rpartition(".")[0]
        routed = self._routed
        if name in CHOICES and signature.inputs[0].shape:
            part = 1 / max(1, signature.inputs[0].shape[-1])
            found = Routed(self._now, -1, part, None)
        else:
            used = read[:1] if name in LOOKUPS else read
            known = [routed[storage] for storage in used if storage in routed]
            if not known:
                return
            latest = max(known, key=lambda r: (r.choice, r.part_call))
            found = self._change(name, signature, latest)
        changed = {*made, *(read[i] for i in signature.writes)}
        for storage in changed - ({*read} if not signature.writes else set()):
            routed[storage] = found

    def _change(self, name: str, signature: Signature, known: Routed) -> Routed:
        if name in SCATTERS:
            written, positions = signature.inputs[:2]
            part = _count(positions) / max(1, _count(written))
            return Routed(known.choice, self._now, part, part)
        mean = None
        if name in COPIES:
            mean = known.mean
        elif name in REDUCTIONS:
            ratio = _count(signature.inputs[0]) / max(1, _count(signature.outputs[0]))
            if name == SUM:
                mean = ratio * (known.part if known.mean is None else known.mean)
            elif name in COUNTS:
                mean = ratio
            return Routed(known.choice, self._now, 1.0, mean)
        return known._replace(mean=mean)


def _count(geometry: Geometry) -> int:
    return prod(geometry.shape)


NOTE: Final = (
    "the value rests on what other ranks send in {}: each is taken to hold what rank "
    "{} holds"
)
REFUSAL: Final = (
    "{} holds values that rest on what other ranks send in {}, which are not recorded: "
    "a checkpoint of them would be wrong. Run the script under torchrun to write it"
)


class OtherRanks:
    """Knows which storages hold values that rest on other processes."""

    def __init__(self, world: World, note: TakeNote) -> None:
        self._rank = world.rank
        self._note = note
        self._sender_by_storage: dict[int, str] = {}
        self._senders: list[str | None] = []  # of each signature
        self._at = 0  # offset of the first row that was not followed

    def note(self, columns: ReplayColumns, storages: Iterable[int]) -> None:
        """Note that values that were read rest on other processes, if they do."""
        sender = self._find(columns, storages)
        if sender is not None:
            self._note("assumed", NOTE.format(sender, self._rank))

    def refuse(self, columns: ReplayColumns, storages: Iterable[int], by: str) -> None:
        """Raise a ``MissingValueError`` if values rest on other processes."""
        sender = self._find(columns, storages)
        if sender is not None:
            raise MissingValueError(REFUSAL.format(by, sender))

    def rests_on_others(self, columns: ReplayColumns, storage: int) -> bool:
        """Whether the values of a storage rest on other processes."""
        return self._find(columns, [storage]) is not None

    def forget(self, columns: ReplayColumns, storage: int) -> None:
        """Note that a storage now holds what another process really sent."""
        self._follow(columns)
        self._sender_by_storage.pop(storage, None)

    def _find(self, columns: ReplayColumns, storages: Iterable[int]) -> str | None:
        """Return the collective that storages rest on; None if on none."""
        self._follow(columns)
        found = (self._sender_by_storage.get(storage) for storage in storages)
        return next(filter(None, found), None)

    def _follow(self, columns: ReplayColumns) -> None:
        held, senders, words = self._sender_by_storage, self._senders, columns.words
        senders += map(find_received, columns.signatures[len(senders) :])
        while self._at < len(words):
            signature = columns.signatures[words[self._at]]
            first, n_read = self._at + HEADER, len(signature.inputs)
            end = first + n_read + len(signature.outputs)
            sender = senders[words[self._at]]
            self._at = end
            if sender is None and not held:
                continue
            found = [columns.storage_by_tensor[word] for word in words[first:end]]
            known = (held[s] for s in found[:n_read] if s in held)
            sender = sender or next(known, None)
            if sender is not None:
                changed = [*found[n_read:], *(found[i] for i in signature.writes)]
                held.update(dict.fromkeys(changed, sender))


def find_received(signature: Signature) -> str | None:
    """Return the kind of a collective whose result rests on other processes."""
    kind = find_kind(signature.op)
    if kind in (None, "send"):
        return None
    given = dict(signature.arguments)
    group = find_group(given.values())
    if group is None or len(group.ranks) == 1:
        return None
    root = given.get("root_rank", given.get("src"))
    is_mine = kind in ("broadcast", "scatter") and root == group.rank
    is_elsewhere = kind in ("reduce", "gather") and root != group.rank
    return None if is_mine or is_elsewhere else kind
