"""Find the recording, and the row of it, after which each target has its content.

``locate`` finds the latest content (``state="current"``). ``locate_constructed`` finds
the content before the first use: before the first call of a module that has the tensor,
the first backward pass and the first optimizer step that used it (``state=
"constructed"``; see ``replaying.uses``). A target that no recording made is refused.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from meta_magic.errors import MaterializeError
from meta_magic.materializing.targets import Held, Target, group_targets
from meta_magic.recording.identities.origins import (
    LiveTensors,
    Origin,
    find_origin,
    read_version,
)
from meta_magic.recording.identities.storages import as_bytes, sum_bytes
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.uses import Uses
from meta_magic.replaying.verify import trace_back
from meta_magic.torch_private.tensor_internals import is_wrapper
from meta_magic.trace.program import Import, Program

Read: TypeAlias = Callable[[Program], ProgramCalls]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """The targets that one recording makes.

    Attributes:
        until: How many of its calls are considered; None for all.
        target_by_storage: The targets, by the number of their storage there.
    """

    origin: Origin
    program: Program
    until: int | None
    target_by_storage: dict[int, Target]


Groups: TypeAlias = dict[tuple[int, int | None], Located]
"""Targets grouped by the ``id`` of the recording that makes them, and by ``until``."""


def add_target(
    groups: Groups,
    target: Target,
    origin: Origin,
    found: tuple[Program, int],
    until: int | None = None,
) -> None:
    """Add a target, given the recording that makes it and its storage there."""
    program, number = found
    new = Located(origin=origin, program=program, until=until, target_by_storage={})
    groups.setdefault((id(program), until), new).target_by_storage[number] = target


def locate(targets: Sequence[Target], program: Program | None) -> Groups:
    """Return the recordings that made the targets, up to the end of ``program``."""
    groups: Groups = {}
    live = LiveTensors()
    for target in targets:
        origin, number = locate_one(target, program)
        if program is None:
            check_fresh(target, origin, number, live)
        add_target(groups, target, origin, (origin.program, number))
    return groups


def check_fresh(target: Target, origin: Origin, number: int, live: LiveTensors) -> None:
    """Refuse a target that was changed after its latest recording."""
    # A write to a DTensor does not count as one to the shard that it wraps.
    outer = [h.tensor for h in target.held if is_wrapper(h.tensor)]
    known = [origin.versions.get((-1, id(tensor)), 0) for tensor in outer]
    inner = [(tensor, read_version(tensor)) for tensor in target.tensors]
    is_stale = any(origin.is_stale(*pair, number, live) for pair in inner)
    if is_stale or known != [*map(read_version, outer)]:
        raise MaterializeError(
            f"cannot replay {target.name!r}: it was changed in place outside of "
            "any recording. Do that under %%meta or mm.record() as well, or choose "
            "init='reset', init='empty' or a checkpoint",
            target,
        )


def locate_one(target: Target, program: Program | None) -> tuple[Origin, int]:
    """Return the provenance of a target, and the number of its storage there."""
    found = find_origin(target.storage)
    if found is not None and program is not None:
        found = trace_back(*found, program)
    if found is None and any(is_wrapper(held.tensor) for held in target.held):
        raise MaterializeError(
            f"cannot replay {target.name!r}: no recording that has ended made this "
            f"{type(target.held[0].tensor).__name__}. Build the module, and call "
            "fully_shard() or parallelize_module(), in one mm.record() block, or "
            "choose init='reset' or init='empty'",
            target,
        )
    if found is None:
        where = "a recording that has ended" if program is None else "the given trace"
        raise MaterializeError(
            f"cannot replay {target.name!r}: it was not built under {where}. "
            "Build the module under %%meta or mm.record() and materialize it after "
            "that, or choose init='reset', init='empty' or a checkpoint",
            target,
        )
    return found


def find_redrawn(held: Sequence[Held]) -> list[Held]:
    """Return the real tensors with random numbers that a recorded cell drew.

    Factories that ignore the default device, such as ``torch.Tensor(3)``, make them.
    Their numbers differ from the CPU's: draws on meta had not moved the generator.
    """
    drawn_by_program: dict[int, set[int]] = {}
    found = []
    for item in held:
        if item.tensor.is_meta or item.tensor.layout is not torch.strided:
            continue
        storage = item.tensor.untyped_storage()
        located = find_origin(storage)
        if located is None or storage.device.type != "cpu":
            continue
        origin, number = located
        known = origin.checksums.get(number)
        if known is None or known != sum_bytes(as_bytes(storage)):
            continue  # written since
        drawn = drawn_by_program.get(id(origin.program))
        if drawn is None:
            drawn = ProgramCalls(origin.program).drawn_storages()
            drawn_by_program[id(origin.program)] = drawn
        if number in drawn:
            found.append(item)
    return found


class Moment(NamedTuple):
    """When a storage had been constructed.

    Attributes:
        first: The count of calls after which the storage first has its content.
        last: The count of calls up to which it has that.
        is_used: Whether the storage is used later; None if a use of a module made it.
    """

    program: Program
    storage: int
    first: int
    last: int
    is_used: bool | None


def locate_constructed(
    targets: Sequence[Target],
    program: Program | None,
    read: Read,
    late: Collection[Target] = (),
) -> tuple[Groups, list[Target]]:
    """Return the recordings that made the targets, up to their construction."""
    groups: Groups = {}
    live = LiveTensors()
    found = [locate_one(target, program) for target in targets]
    moments = [*find_moments(found, read)]
    ends = choose_ends(moments)
    at_end = []
    for target, (origin, number), moment in zip(targets, found, moments, strict=True):
        is_attribute = all(item.kind == "attribute" for item in target.held)
        is_late = moment.is_used is None and is_attribute
        if program is None and (is_late or not moment.is_used):
            check_fresh(target, origin, number, live)
        if is_late or target in late:
            at_end.append(target)
            add_target(groups, target, origin, (origin.program, number))
            continue
        end = ends[id(moment.program), moment.storage]
        add_target(groups, target, origin, (moment.program, moment.storage), end)
    return groups, at_end


def find_made_by_use(held: Sequence[Held], program: Program | None) -> list[Held]:
    """Return the tensors that a use of a module made, such as moments of Adam."""
    located = []
    for item in held:
        with suppress(MaterializeError):
            (target,) = group_targets([item], None)
            located.append((item, locate_one(target, program)))
    moments = find_moments([found for _, found in located], make_reader())
    pairs = zip(located, moments, strict=True)
    return [item for (item, _), moment in pairs if moment.is_used is None]


def make_reader() -> Read:
    """Return a function that reads the columns of a program, each once."""
    known: dict[int, ProgramCalls] = {}

    def read(program: Program) -> ProgramCalls:
        if id(program) not in known:
            known[id(program)] = ProgramCalls(program)
        return known[id(program)]

    return read


def find_moments(found: Sequence[tuple[Origin, int]], read: Read) -> Iterator[Moment]:
    """Yield when each of some storages had been constructed."""
    imports: dict[int, Mapping[int, Import]] = {}
    chains = [walk_back(origin.program, number, imports) for origin, number in found]
    used: dict[int, tuple[Program, set[int]]] = {}
    for chain in chains:
        for link in chain:
            used.setdefault(id(link[0]), (link[0], set()))[1].add(link[1])
    uses = {key: Uses(read(current)) for key, (current, _) in used.items()}
    first = {
        (key, storage): index
        for key, (_, numbers) in used.items()
        for storage, index in uses[key].find_first(numbers).items()
    }
    for chain in chains:
        yield find_moment(chain, first, uses, read)


def walk_back(
    program: Program, storage: int, imports: dict[int, Mapping[int, Import]]
) -> list[tuple[Program, int, bool]]:
    """Return the recordings that used a storage, the first one first.

    With its number in each, and whether it was written unseen before it. ``imports``
    has those of each program by storage; those read here are added.
    """
    chain = []
    while True:
        if id(program) not in imports:
            imports[id(program)] = {i.storage: i for i in program.imports}
        passed = imports[id(program)].get(storage)
        chain.append((program, storage, passed is not None and passed.is_stale))
        if passed is None:
            return chain[::-1]
        program, storage = passed.program, passed.origin


def find_moment(
    chain: Sequence[tuple[Program, int, bool]],
    first: Mapping[tuple[int, int], int],
    uses: Mapping[int, Uses],
    read: Read,
) -> Moment:
    """Return when a storage had been constructed, given its first use in each."""
    made_in, number, _ = chain[0]
    birth = read(made_in).births[number]
    is_made = birth < 0 or uses[id(made_in)].phase(birth) is None
    used = [n for n, (p, s, _) in enumerate(chain) if (id(p), s) in first]
    index = used[0] if used else len(chain) - 1
    program, storage, is_stale = chain[index]
    last = first.get((id(program), storage), len(read(program)))
    written = read(program).writers.find_last(storage, last)
    # Not written in this recording before its use: look in those before.
    while written < 0 and index and not is_stale:
        index -= 1
        program, storage, is_stale = chain[index]
        last = len(read(program))
        written = read(program).writers.find_last(storage, last)
    return Moment(program, storage, written + 1, last, bool(used) if is_made else None)


def choose_ends(moments: Iterable[Moment]) -> dict[tuple[int, int], int]:
    """Return the call after which to read each storage; few, as each is a replay."""
    ends: dict[tuple[int, int], int] = {}
    latest: dict[int, int] = {}
    for moment in sorted(moments, key=lambda moment: moment.last):
        key = id(moment.program)
        if latest.get(key, -1) < moment.first:
            latest[key] = moment.last
        ends[key, moment.storage] = latest[key]
    return ends
