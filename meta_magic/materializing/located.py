"""Find the recordings that made the targets, or drew real tensors of the module."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from meta_magic.errors import MaterializeError
from meta_magic.materializing.targets import Held, Target
from meta_magic.recording.identities.living_tensors import LivingTensors, read_version
from meta_magic.recording.identities.origins import Origin, find_origin
from meta_magic.recording.identities.storage_bytes import as_bytes, sum_bytes
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.replay import trace_back
from meta_magic.trace.program import Program

__all__ = ["Groups", "Located", "check_fresh", "find_redrawn", "locate", "locate_one"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """The targets that one recording makes.

    Attributes:
        origin: What is known of the latest recording that met them.
        program: The recording.
        until: The calls of it that are looked at; None for all.
        target_by_storage: The targets, by the number of their storage there.
    """

    origin: Origin
    program: Program
    until: int | None
    target_by_storage: Mapping[int, Target]


class Groups:
    """Targets grouped by the recording, and the end of it, that makes them."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int | None], Located] = {}
        self._targets: dict[tuple[int, int | None], dict[int, Target]] = {}

    def add(
        self,
        target: Target,
        origin: Origin,
        found: tuple[Program, int],
        until: int | None = None,
    ) -> None:
        """Add a target.

        Args:
            target: The target.
            origin: What is known of the latest recording that met it.
            found: The recording that makes it, and its number there.
            until: The calls of that which are looked at.
        """
        program, number = found
        key = id(program), until
        targets = self._targets.setdefault(key, {})
        targets[number] = target
        self._groups.setdefault(
            key,
            Located(
                origin=origin, program=program, until=until, target_by_storage=targets
            ),
        )

    def __iter__(self) -> Iterator[Located]:
        return iter(self._groups.values())


def locate(targets: Sequence[Target], program: Program | None) -> Groups:
    """Return which recordings made the targets.

    Args:
        targets: What is looked for.
        program: The recording at whose end to look; None for the latest.

    Raises:
        MaterializeError: One was made by no recording, or changed outside of one.
    """
    groups, living = Groups(), LivingTensors()
    for target in targets:
        origin, number = locate_one(target, program)
        if program is None:
            check_fresh(target, origin, number, living)
        groups.add(target, origin, (origin.program, number))
    return groups


def check_fresh(
    target: Target, origin: Origin, number: int, living: LivingTensors
) -> None:
    """Refuse a target that was changed after its latest recording.

    Raises:
        MaterializeError: It was.
    """
    if any(
        origin.is_stale(tensor, read_version(tensor), number, living)
        for tensor in target.tensors
    ):
        raise MaterializeError(
            f"cannot replay {target.name!r}: it was changed in place outside of "
            "any recording. Do that under %%meta or mm.record(), too, or choose "
            "init='reset', init='empty' or a checkpoint",
            target,
        )


def locate_one(target: Target, program: Program | None) -> tuple[Origin, int]:
    """Return the recording that made a target, and the number of its storage there.

    Raises:
        MaterializeError: There is none.
    """
    found = find_origin(target.storage)
    if found is not None and program is not None:
        found = trace_back(*found, program)
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
    """Return the tensors that the recorded cell itself drew for real, unchanged since.

    Factories that ignore the default device make them, such as ``torch.Tensor(3)``:
    with random numbers from where its generator stood, because meta had not moved it.
    """
    drawn_by_program: dict[int, set[int]] = {}
    found = []
    for place in held:
        if place.tensor.is_meta or place.tensor.layout is not torch.strided:
            continue
        storage = place.tensor.untyped_storage()
        located = find_origin(storage)
        if located is None or storage.device.type != "cpu":
            continue
        origin, number = located
        known = origin.checksums.get(number)
        if known is None or known != sum_bytes(as_bytes(storage)):
            continue
        drawn = drawn_by_program.get(id(origin.program))
        if drawn is None:
            drawn = ProgramCalls(origin.program).drawn_storages()
            drawn_by_program[id(origin.program)] = drawn
        if number in drawn:
            found.append(place)
    return found
