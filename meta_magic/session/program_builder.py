"""Build a ``Program`` from what a recording wrote: at its end, or for a value before.

``Writers`` are the parts that write; ``make_writers`` makes them. ``ProgramBuilder``
builds the program at the end, and a snapshot for ``loss.item()`` in the middle;
``read_columns`` is cheaper than a snapshot, for a loop that reads a value in each step.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.rows.module_trees import ModuleNumbers, Tree
from meta_magic.recording.rows.writers import Writers
from meta_magic.replaying.forward_replay import ReplayColumns
from meta_magic.trace.options import DeviceName
from meta_magic.trace.program import Growing, Program

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption, Evaluation, RaisedCall
    from meta_magic.trace.signature import Signature

GAP: Final = (
    "torch's generator was used between two recordings, before the draws of the first "
    "were made (seed the second one)"
)

Found = TypeVar("Found", "Evaluation", "Assumption")


class ProgramBuilder:
    """Builds programs from what a recording wrote so far."""

    def __init__(self, written: Writers, device: DeviceName) -> None:
        self._writers = written
        self._device = device
        self.raised: RaisedCall | None = None
        self._signatures: list[Signature] = []
        self._tensors, self._deaths = Growing(), Growing()

    def snapshot(self) -> Program:
        """Return what a replay needs of the program so far; long columns as views."""
        write = self._writers
        write.rows.flush()
        views = {
            "words": write.rows.words.view(),
            "storage_by_tensor": self._tensors.follow(write.registry.storage_by_tensor),
            "deaths": self._deaths.follow(write.registry.deaths),
        }
        columns = {name: view.cast("B") for name, view in views.items()}
        nothing = {"module_rows": b"", "module_values": b"", "modules": ()}
        return self._build([], {**columns, **nothing}, omits_failures=True)

    def read_columns(self) -> ReplayColumns:
        """Return what a forward replay reads; cheaper than a snapshot."""
        write = self._writers
        write.rows.flush()
        return ReplayColumns(
            words=write.rows.words.view(),
            storage_by_tensor=write.registry.storage_by_tensor,
            signatures=self._read_signatures(),
            deaths=write.registry.deaths,
            randomness=write.draws.build_randomness,
            find_constant=write.constants.find,
        )

    def _read_signatures(self) -> "list[Signature]":
        """Return the signatures; only new ones are read."""
        known = self._signatures
        added = self._writers.rows.entries[len(known) :]
        known += [entry.signature for entry in added]
        return known

    def build(self, trees: Sequence[Tree], *, omits_failures: bool) -> Program:
        """Return the whole program; its caveats may omit failures."""
        write = self._writers
        write.rows.flush()
        nodes = (call for call, _ in write.rows.forward_by_sequence.values())
        columns = {
            "words": write.rows.words.view().tobytes(),
            "storage_by_tensor": write.registry.storage_by_tensor.tobytes(),
            "deaths": write.registry.deaths.tobytes(),
            "module_rows": write.calls.rows.tobytes(),
            "module_values": write.calls.values.tobytes(),
            "modules": _name_modules(write.numbers, trees),
            "facts": write.rows.roles.build(write.calls, nodes),
        }
        return self._build(trees, columns, omits_failures=omits_failures)

    def _build(
        self, trees: Sequence[Tree], columns: dict[str, Any], *, omits_failures: bool
    ) -> Program:
        write, diagnostics = self._writers, self._writers.diagnostics
        positions = write.sites.build_positions()
        failures = () if omits_failures else describe_failures(diagnostics)
        gaps = [GAP][: write.draws.has_gap]
        texts = [(text, None) for text in (*gaps, *write.imports.caveats)]
        n_calls = write.clock.now  # the call that runs now may have evaluations already
        owners = dict(trees[0].owner_by_storage) if trees else {}
        for tree in trees[1:]:
            for storage, number in tree.owner_by_storage.items():
                owners.setdefault(storage, number)
        return Program(
            signatures=tuple(self._read_signatures()),
            call_sites=write.sites.build_call_sites(positions),
            positions=positions,
            nbytes_by_storage=tuple(write.registry.nbytes_by_storage.items()),
            structures=tuple(write.calls.structures),
            calls_while_built=tuple(write.calls.while_built),
            owner_by_storage=tuple(owners.items()),
            randomness=write.draws.build_randomness(),
            constants=write.constants.build(),
            imports=write.imports.build(),
            written_unseen=tuple(sorted(write.constants.written_unseen)),
            caveats=(*failures, *diagnostics.caveats, *texts),
            evaluations=_list_until(n_calls, diagnostics.evaluations),
            assumptions=_list_until(n_calls, diagnostics.assumptions),
            kernels=tuple(diagnostics.kernels),
            flags=tuple(write.flags.changes),
            as_device=self._device,
            raised=self.raised,
            **columns,
        )


def _list_until(n_calls: int, found: Sequence[Found]) -> tuple[Found, ...]:
    """Return the evaluations or assumptions of the first calls, in order."""
    return tuple(found[: bisect_left(found, n_calls, key=attrgetter("call"))])


def describe_failures(diagnostics: Diagnostics) -> Iterator[tuple[str, int | None]]:
    """Yield a sentence and a line for each call that raised, and the cell went on."""
    for name, line in diagnostics.failures:
        yield f"{name} failed on meta, and the cell went on without it", line


def _name_modules(
    numbers: ModuleNumbers, trees: Sequence[Tree]
) -> tuple[tuple[int | None, str | None, str], ...]:
    """Return root, fqn and class name of each module, by its number."""
    names = numbers.class_names
    rows: list[tuple[int | None, str | None, str]]
    rows = [(None, None, name) for name in names]
    for root, tree in enumerate(trees):
        for number, fqn in tree.fqn_by_module.items():
            rows[number] = root, fqn, names[number]
    return tuple(rows)
