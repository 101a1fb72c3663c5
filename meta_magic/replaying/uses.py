"""Find where the construction of modules ends and their use begins.

``materialize(model, state="constructed")`` gives parameters as they were before the
first use: a module call, a backward pass, or a step of an optimizer. Calls inside of a
constructor, and lazy initialization in the first call, do not count as use.
"""

from bisect import bisect
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Plan, Step, StepKind
from meta_magic.trace.program import MODULE_HEADER, Program
from meta_magic.trace.signature import Phase

USES: Final[tuple[Phase, ...]] = ("forward", "backward", "optimizer")

READ_AS_ATTRIBUTE: Final = "ParametrizationList"
"""A module of torch that is called whenever a parametrized tensor is read."""


class Uses:
    """Which calls of a recording use its modules."""

    def __init__(self, recorded: ProgramCalls) -> None:
        self._recorded, program = recorded, recorded.program
        self._words = memoryview(program.words).cast("I")
        self._phases = [site.phase for site in program.call_sites]
        self._module_rows = memoryview(program.module_rows).cast("I")
        self._outermost = list(self._find_outermost(program))

    def _find_outermost(self, program: Program) -> Iterator[int | None]:
        """Yield the outermost call around each module call; None if it is not a use."""
        built, found = set(program.calls_while_built), list[int | None]()
        for call in range(len(self._module_rows) // MODULE_HEADER):
            number, parent = self._module_rows[call * MODULE_HEADER :][:2]
            outermost = found[parent - 1] if parent else call
            is_read = not parent and program.modules[number][2] == READ_AS_ATTRIBUTE
            found.append(None if call in built or is_read else outermost)
            yield found[-1]

    def phase(self, index: int) -> Phase | None:
        """Return the kind of use that a call belongs to; None if it is not a use."""
        offset = self._recorded.program.offsets[index]
        phase = self._phases[self._words[offset + 1] - 1]
        if phase in ("backward", "optimizer"):
            return phase
        is_forward = phase != "init" and self.module_call(index) is not None
        return "forward" if is_forward else None

    def module_call(self, index: int) -> int | None:
        """Return the outermost module call that an operator call is in."""
        word = self._words[self._recorded.program.offsets[index] + 2]
        is_inside = word and not word & 1 and self._outermost
        return self._outermost[(word >> 1) - 1] if is_inside else None

    def find_first(self, storages: Collection[int]) -> dict[int, int]:
        """Return the first call that uses each storage after it was made, if any.

        A call of the module that owns a storage is a use, even without reading it.
        """
        births = self._recorded.births
        found = self._find_first_calls(storages)
        pending = set(storages)
        start = min((births[s] for s in pending), default=0) + 1
        for index in range(start, len(self._recorded)):
            if not pending:
                break
            signature, tensors = self._recorded.tensors(index)
            used = pending.intersection(tensors)
            if not used or signature.is_view or self.phase(index) is None:
                continue
            for storage in used:
                if found.get(storage, index) < index:
                    pending.discard(storage)
                elif births[storage] < index and (
                    births[storage] < 0
                    or self.phase(births[storage]) is None
                    # To fill a storage that a use made is no use.
                    or storage in self._recorded.call(index).read
                ):
                    found[storage] = index
                    pending.discard(storage)
        return found

    def _find_first_calls(self, storages: Collection[int]) -> dict[int, int]:
        """Return the start of the first call of a module that owns each storage."""
        program = self._recorded.program
        owners = dict(program.owner_by_storage)
        starts: dict[tuple[int, str], list[int]] = {}
        for call, outermost in enumerate(self._outermost):
            number, _, _, _, first, *_ = self._module_rows[call * MODULE_HEADER :][:7]
            root, fqn, _ = program.modules[number]
            if outermost is not None and root is not None and fqn is not None:
                starts.setdefault((root, fqn), []).append(first)
        found: dict[int, int] = {}
        for storage in owners.keys() & storages:
            root, fqn, _ = program.modules[owners[storage]]
            for name in walk_up(fqn or ""):
                known = starts.get((root or 0, name), [])
                later = known[bisect(known, self._recorded.births[storage]) :]
                if later and later[0] < found.get(storage, later[0] + 1):
                    found[storage] = later[0]
        return found


def walk_up(fqn: str) -> Iterator[str]:
    """Yield the names of a module and of its parents, up to the root."""
    yield fqn
    while fqn:
        fqn = fqn.rpartition(".")[0]
        yield fqn


def find_phases(
    plan: Plan, given: Mapping[int, frozenset[Phase]]
) -> dict[int, frozenset[Phase]]:
    """Return the storages whose content comes from uses, with the kinds of use."""
    uses, births = Uses(plan.recorded), plan.recorded.births
    found = dict(given)
    for step in plan.steps:
        call = step.call
        if step.kind != StepKind.RUN or call.signature.is_view:
            continue
        read = call.read
        phases = frozenset[Phase]().union(*(found.get(s, ()) for s in read))
        phase = uses.phase(call.number) if read else None
        phases |= {phase} if phase else set()
        made = {s for s in call.outputs if births[s] == call.number}
        for storage in made | call.written:
            is_anew = storage in made or fills(plan, step, storage)
            kept = frozenset() if is_anew else found.get(storage, frozenset())
            if phases | kept:
                found[storage] = phases | kept
            else:
                found.pop(storage, None)
    return found


def fills(plan: Plan, step: Step, storage: int) -> bool:
    """Whether a step overwrites a whole storage."""
    nbytes = plan.recorded.nbytes_by_storage[storage]
    call = step.call
    at = call.usage.overwritten
    return any(call.inputs[i] == storage and call.fills(i, nbytes) for i in at)
