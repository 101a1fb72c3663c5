"""Find what a module held when it was constructed, and not used yet.

That is what its tensors held before the first call of a module that has them, and the
first backward pass or step of an optimizer that came upon them: see ``replaying.uses``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from meta_magic.errors import MaterializeError
from meta_magic.materializing.located import Groups, check_fresh, locate_one
from meta_magic.materializing.targets import Held, Target, group_targets
from meta_magic.recording.identities.living_tensors import LivingTensors
from meta_magic.recording.identities.origins import Origin
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.uses import Uses
from meta_magic.trace.program import Import, Program

__all__ = ["find_made_by_use", "is_attribute", "locate_constructed", "make_reader"]

Read: TypeAlias = Callable[[Program], ProgramCalls]


class Moment(NamedTuple):
    """When a storage had been constructed.

    Attributes:
        program: The recording in which it had.
        storage: Its number there.
        first: The fewest calls of that after which it holds what it was to.
        last: The most.
        is_used: Whether it was used after that; None if a use of a module made it.
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
    """Return which recordings made the targets, up to where they were constructed.

    Args:
        targets: What is looked for.
        program: The recording at whose end to look; None for the latest.
        read: Returns the columns of a program.
        late: Targets that are to be as at the end, as plain attributes are that a call
            of the module made.

    Returns:
        The recordings, and the targets that are to be as at the end.

    Raises:
        MaterializeError: One was made by no recording, or changed outside of one.
    """
    groups, living = Groups(), LivingTensors()
    found = [locate_one(target, program) for target in targets]
    moments = [*find_all_moments(found, read)]
    ends = choose_ends(moments)
    at_end = []
    for target, (origin, number), moment in zip(targets, found, moments, strict=True):
        is_late = moment.is_used is None and is_attribute(target)
        if program is None and (is_late or not moment.is_used):
            check_fresh(target, origin, number, living)
        if is_late or target in late:
            at_end.append(target)
            groups.add(target, origin, (origin.program, number))
            continue
        end = ends[id(moment.program), moment.storage]
        groups.add(target, origin, (moment.program, moment.storage), end)
    return groups, at_end


def find_made_by_use(held: Sequence[Held], program: Program | None) -> list[Held]:
    """Return the tensors that a use of a module made, such as moments of an optimizer.

    Args:
        held: Tensors on meta. Of those that no recording made it is not known.
        program: The recording at whose end to look; None for the latest.
    """
    located = []
    for place in held:
        with suppress(MaterializeError):
            (target,) = group_targets([place], None)
            located.append((place, locate_one(target, program)))
    moments = find_all_moments([found for _, found in located], make_reader())
    pairs = zip(located, moments, strict=True)
    return [place for (place, _), moment in pairs if moment.is_used is None]


def make_reader() -> Read:
    """Return what reads the columns of a program, each once."""
    known: dict[int, ProgramCalls] = {}

    def read(program: Program) -> ProgramCalls:
        if id(program) not in known:
            known[id(program)] = ProgramCalls(program)
        return known[id(program)]

    return read


def is_attribute(target: Target) -> bool:
    """Whether a target is but a plain attribute, of a module or of another object."""
    return all(place.kind == "attribute" for place in target.held)


def find_all_moments(
    found: Sequence[tuple[Origin, int]], read: Read
) -> Iterator[Moment]:
    """Yield when each of some storages had been constructed, given where they are."""
    numbers: dict[int, list[int]] = {}
    programs = {id(origin.program): origin.program for origin, _ in found}
    for origin, number in found:
        numbers.setdefault(id(origin.program), []).append(number)
    by_program = {
        key: find_moments(programs[key], storages, read)
        for key, storages in numbers.items()
    }
    for origin, _ in found:
        yield next(by_program[id(origin.program)])


def find_moments(
    program: Program, storages: Sequence[int], read: Read
) -> Iterator[Moment]:
    """Yield when each of some storages had been constructed.

    Args:
        program: The latest recording that met them.
        storages: Their numbers there.
        read: Returns the columns of a program.
    """
    imports: dict[int, Mapping[int, Import]] = {}
    chains = [walk_back(program, storage, imports) for storage in storages]
    met: dict[int, tuple[Program, set[int]]] = {}
    for chain in chains:
        for link in chain:
            met.setdefault(id(link[0]), (link[0], set()))[1].add(link[1])
    uses = {key: Uses(read(current)) for key, (current, _) in met.items()}
    first = {
        (key, storage): index
        for key, (_, numbers) in met.items()
        for storage, index in uses[key].find_first(numbers).items()
    }
    for chain in chains:
        yield find_moment(chain, first, uses, read)


def walk_back(
    program: Program, storage: int, imports: dict[int, Mapping[int, Import]]
) -> list[tuple[Program, int, bool]]:
    """Return the recordings that met a storage, the first one first.

    With its number in each, and whether it was written unseen before it.

    Args:
        program: The latest of them.
        storage: Its number there.
        imports: What each imported, by storage; takes that of those met.
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
    while written < 0 and index and not is_stale:
        index -= 1
        program, storage, is_stale = chain[index]
        last = len(read(program))
        written = read(program).writers.find_last(storage, last)
    return Moment(program, storage, written + 1, last, bool(used) if is_made else None)


def choose_ends(moments: Iterable[Moment]) -> dict[tuple[int, int], int]:
    """Return at how few ends of recordings storages are as constructed.

    By recording and storage; usually one end is right for all.
    """
    ends: dict[tuple[int, int], int] = {}
    latest: dict[int, int] = {}
    for moment in sorted(moments, key=lambda moment: moment.last):
        key = id(moment.program)
        if latest.get(key, -1) < moment.first:
            latest[key] = moment.last
        ends[key, moment.storage] = latest[key]
    return ends
