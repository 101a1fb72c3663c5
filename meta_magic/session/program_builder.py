"""Put the columns of a recording together: at its end, or for a value in its middle."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.module_numbers import ModuleNumbers
from meta_magic.recording.identities.origins import find_place
from meta_magic.recording.identities.places import Places
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.rows.flag_changes import FlagChanges
from meta_magic.recording.rows.imports import Imports
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.module_trees import Tree
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.replaying.row_columns import Columns
from meta_magic.trace.options import DeviceName
from meta_magic.trace.program import Growing, Program

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption, Evaluation, RaisedCall
    from meta_magic.trace.signature import Signature

GAP: Final = (
    "torch's generator was used between two recordings, without the numbers that the "
    "first draws (seed the second one)"
)

Found = TypeVar("Found", "Evaluation", "Assumption")


class Written(NamedTuple):
    """All that one recording writes, each part with what it keeps.

    Attributes:
        registry: Tensors and storages.
        numbers: Modules.
        places: Where calls come from.
        calls: Module calls.
        draws: Random numbers.
        rows: Operator calls.
        constants: Content that came from outside.
        imports: Storages of earlier recordings.
        flags: What was set of torch's backends.
        findings: All else.
    """

    registry: TensorRegistry
    numbers: ModuleNumbers
    places: Places
    calls: ModuleCallRecorder
    draws: Draws
    rows: RowWriter
    constants: Constants
    imports: Imports
    flags: FlagChanges
    findings: Findings


class ProgramBuilder:
    """Builds programs from what a recording wrote so far.

    Args:
        written: The parts that write.
        clock: How many operator calls were written.
        device: Whose kernels are recorded.

    Attributes:
        raised: The call that ended the recording by an error, once that is known.
    """

    def __init__(self, written: Written, clock: Clock, device: DeviceName) -> None:
        self._written = written
        self._clock = clock
        self._device = device
        self.raised: RaisedCall | None = None
        self._signatures: tuple[Signature, ...] = ()
        self._tensors, self._deaths = Growing(), Growing()

    def snapshot(self) -> Program:
        """Return what was recorded so far, as far as a replay needs it.

        Its longest columns are views: there may be one for each step of a training.
        """
        write = self._written
        write.rows.flush()
        views = {
            "words": write.rows.words.view(),
            "storage_by_tensor": self._tensors.follow(write.registry.storage_by_tensor),
            "deaths": self._deaths.follow(write.registry.deaths),
        }
        columns = {name: view.cast("B") for name, view in views.items()}
        nothing = {"module_rows": b"", "module_values": b"", "modules": ()}
        return self._build([], {**columns, **nothing}, has_failed=True)

    def build(self, trees: Sequence[Tree], *, has_failed: bool) -> Program:
        """Return the program.

        Args:
            trees: The module trees, as far as they are known.
            has_failed: Whether the recording ended by an error, or has not ended: what
                failed is then no doubt.
        """
        write = self._written
        write.rows.flush()
        columns = {
            "words": write.rows.words.view().tobytes(),
            "storage_by_tensor": write.registry.storage_by_tensor.tobytes(),
            "deaths": write.registry.deaths.tobytes(),
            "module_rows": write.calls.rows.tobytes(),
            "module_values": write.calls.values.tobytes(),
            "modules": name_modules(write.numbers, trees),
            "facts": write.rows.roles.build(
                write.calls,
                (call for call, _ in write.rows.forward_by_sequence.values()),
            ),
        }
        return self._build(trees, columns, has_failed=has_failed)

    def _build(
        self, trees: Sequence[Tree], columns: dict[str, Any], *, has_failed: bool
    ) -> Program:
        """Return the program of what was written, given its long columns."""
        write, findings = self._written, self._written.findings
        self._read_signatures()
        positions = write.places.build_positions()
        failures = () if has_failed else describe_failures(findings)
        texts = [*[GAP][: write.draws.has_gap], *write.imports.doubts]
        n_calls = self._clock.now  # what was found of the next one may have no call
        return Program(
            signatures=self._signatures,
            places=write.places.build_places(positions),
            positions=positions,
            nbytes_by_storage=tuple(write.registry.nbytes_by_storage.items()),
            structures=tuple(write.calls.structures),
            calls_while_built=tuple(write.calls.while_built),
            owner_by_storage=tuple(find_owners(trees).items()),
            randomness=write.draws.build_randomness(),
            constants=write.constants.build(),
            imports=write.imports.build(),
            torn=tuple(sorted(write.constants.torn)),
            doubts=(*failures, *findings.doubts, *((text, None) for text in texts)),
            evaluations=list_until(n_calls, findings.evaluations),
            assumptions=list_until(n_calls, findings.assumptions),
            kernels=tuple(findings.kernels),
            flags=tuple(write.flags.changes),
            as_device=self._device,
            raised=self.raised,
            **columns,
        )

    def _read_signatures(self) -> None:
        """Take in the signatures that were met since: often there are many before."""
        added = self._written.rows.entries[len(self._signatures) :]
        self._signatures += tuple(entry.signature for entry in added)


def list_until(n_calls: int, found: Sequence[Found]) -> tuple[Found, ...]:
    """Return what was found of the first calls, in order."""
    return tuple(found[: bisect_left(found, n_calls, key=attrgetter("call"))])


def describe_failures(findings: Findings) -> Iterator[tuple[str, int | None]]:
    """Yield in words, with their line, the calls that raised."""
    for name, line in findings.failures:
        yield f"{name} failed on meta, and the cell went on without it", line


def name_modules(
    numbers: ModuleNumbers, trees: Sequence[Tree]
) -> tuple[tuple[int | None, str | None, str], ...]:
    """Return root, fqn and class name of each module, by its number."""
    rows: list[tuple[int | None, str | None, str]]
    names = numbers.class_names
    rows = [*zip(repeat(None), repeat(None), names)]
    for root, tree in enumerate(trees):
        for number, fqn in tree.fqn_by_module.items():
            rows[number] = root, fqn, names[number]
    return tuple(rows)


def find_owners(trees: Sequence[Tree]) -> dict[int, int]:
    """Return the number of the first module that holds a storage, by that."""
    owners: dict[int, int] = {}
    for tree in trees:
        if not owners:
            owners.update(tree.owner_by_storage)
            continue
        for storage, number in tree.owner_by_storage.items():
            owners.setdefault(storage, number)
    return owners


def make_written(
    cache: SignatureCache, clock: Clock, cell_file: str, top: CodeType | None
) -> Written:
    """Return the parts that write a recording, each given those that it needs."""
    numbers, imports, draws = ModuleNumbers(), Imports(), Draws()
    registry = TensorRegistry(cache.geometries, clock, imports.note, find_place)
    places = Places(cell_file, top, numbers.of)
    calls = ModuleCallRecorder(registry, clock, numbers, places)
    return Written(
        registry=registry,
        numbers=numbers,
        places=places,
        calls=calls,
        draws=draws,
        rows=RowWriter(registry, clock, places, calls, draws),
        constants=Constants(registry),
        imports=imports,
        flags=FlagChanges(clock),
        findings=Findings(places),
    )


class LiveColumns:
    """The columns of the running recording.

    Args:
        written: What writes them.
    """

    def __init__(self, written: Written) -> None:
        self._written = written
        self._signatures: list[Signature] = []

    def read(self) -> Columns:
        """Return what is recorded up to now."""
        write, known = self._written, self._signatures
        write.rows.flush()
        known += [entry.signature for entry in write.rows.entries[len(known) :]]
        return Columns(
            words=write.rows.words.view(),
            storage_by_tensor=write.registry.storage_by_tensor,
            signatures=known,
            deaths=write.registry.deaths,
            randomness=write.draws.build_randomness,
        )

    def is_changed(self) -> bool:
        """Whether a replay would not do just what was recorded on any machine."""
        return bool(self._written.flags.changes or self._written.findings.assumptions)
