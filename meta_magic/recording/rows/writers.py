"""The parts that write one recording, in one record.

Most files of ``intercept`` need several of them: each takes a :class:`Writers`.
"""

from types import CodeType
from typing import NamedTuple

from meta_magic.recording.identities.call_sites import CallSites, TakeNote
from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.origins import find_recorded_placement
from meta_magic.recording.identities.storages import Clock
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.constants import Constants, Imports
from meta_magic.recording.rows.diagnostics import Diagnostics, FlagChanges
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.module_trees import ModuleNumbers
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.torch_private.replacing import Replacements
from meta_magic.trace.options import Options


class Writers(NamedTuple):
    """The parts that write one recording, each described at its class."""

    clock: Clock
    registry: TensorRegistry
    numbers: ModuleNumbers
    sites: CallSites
    calls: ModuleCallRecorder
    draws: Draws
    rows: RowWriter
    constants: Constants
    imports: Imports
    flags: FlagChanges
    diagnostics: Diagnostics
    plan: DevicePlan

    @property
    def note(self) -> TakeNote:
        """Takes a note on the line that runs now."""
        return self.diagnostics.note


class RecordingReplacements(Replacements):
    """Replacements that use parts of their recording."""

    def __init__(self, write: Writers) -> None:
        super().__init__()
        self._write = write
        self._plan = write.plan
        self._note = write.diagnostics.note


def make_writers(
    options: Options, cache: SignatureCache, cell_file: str, top: CodeType | None
) -> Writers:
    """Return the parts that write a recording, each given those that it needs."""
    clock, numbers, imports, draws = Clock(), ModuleNumbers(), Imports(), Draws()
    table, note = cache.geometries, imports.note
    registry = TensorRegistry(table, clock, note, find_recorded_placement)
    sites = CallSites(cell_file, top, numbers.of)
    calls = ModuleCallRecorder(registry, clock, numbers, sites)
    diagnostics = Diagnostics(sites)
    return Writers(
        clock=clock,
        registry=registry,
        numbers=numbers,
        sites=sites,
        calls=calls,
        draws=draws,
        rows=RowWriter(registry, clock, sites, calls, draws),
        constants=Constants(registry),
        imports=imports,
        flags=FlagChanges(clock),
        diagnostics=diagnostics,
        plan=DevicePlan(registry, sites, options, diagnostics.note),
    )
