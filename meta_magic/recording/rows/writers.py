"""The parts that write one recording, in one record.

Most files of ``intercept`` need several of them: each takes a :class:`Writers`.
"""

from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from meta_magic.recording.identities.call_sites import (
    CallSites,
    TakeNote,
    describe_function,
)
from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.origins import find_recorded_placement
from meta_magic.recording.identities.storages import Clock
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.constants import Constants, Imports
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.module_trees import ModuleNumbers
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.recording.signatures.entries import LiveCall, OpTable
from meta_magic.torch_private.dispatcher import pad_packed
from meta_magic.torch_private.modes import device_constructors
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import FLAGS
from meta_magic.trace.notes import Note
from meta_magic.trace.options import Options

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption, Evaluation, KernelChoice


class Diagnostics:
    """Collects the notes, caveats and facts of a recording, each with its line.

    Attributes:
        notes: What the user should know; a dictionary, so that each is there once.
        caveats: (text, line of the cell or None) of everything that may make a replay
            differ from the same block on a real device.
        unasked: The calls, as operator and key, that there was no time to ask about.
    """

    def __init__(self, sites: CallSites) -> None:
        self.notes: dict[Note, None] = {}
        self.caveats: dict[tuple[str, int | None], None] = {}
        self.failures: dict[tuple[str, int | None], None] = {}
        self.kernels: list[KernelChoice] = []
        self.evaluations: list[Evaluation] = []
        self.assumptions: list[Assumption] = []
        self.n_answered = 0
        self.n_unseen: dict[str, int] = {}
        self.unasked: set[tuple[OpTable, tuple[object, ...]]] = set()
        self.nbytes_real = 0
        self._sites = sites

    def note(self, kind: str, text: str) -> None:
        """Note something about the line that runs now."""
        self.note_at(kind, text, self._sites.current_line())

    def note_at(self, kind: str, text: str, line: int | None) -> None:
        """Note something about a line."""
        self.notes.setdefault(Note(kind=kind, text=text, line=line))

    def note_caveat(self, text: str) -> None:
        """Note a difference that a device may make, at the line that runs now."""
        self.caveats[self.locate(text)] = None

    def locate(self, text: str) -> tuple[str, int | None]:
        """Return a text with the line that runs now."""
        return text, self._sites.current_line()

    def drop_unasked(self) -> None:
        """Drop the signatures of these calls: a later recording asks about them."""
        for table, key in self.unasked:
            table.entries.pop(key, None)

    def count_unseen(self, name: str) -> None:
        """Count a call that is not recorded, by the class of its tensor."""
        self.n_unseen[name] = self.n_unseen.get(name, 0) + 1

    def count_real(self, call: LiveCall, n_storages: int) -> None:
        """Count the real memory of a call; note it if the code did not ask for it."""
        real = ((t, seen[1]) for t, seen in call.outputs if not seen[2].is_meta)
        new = ((t, ref.number) for t, ref in real if ref and ref.number >= n_storages)
        made = {number: tensor.untyped_storage().nbytes() for tensor, number in new}
        self.nbytes_real += sum(made.values())
        function = self._sites.function
        is_asked = function in device_constructors() or function is pad_packed
        if made and not call.inputs and not is_asked:
            name = describe_function(function) or "an operator called by itself"
            text = f"{name} ignored the meta device and made a real tensor on the CPU"
            self.note("factory", text)


class FlagChanges(Replacements):
    """Context manager that notes the flags set within it, or before it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.changes: list[tuple[int, str, Any]] = []
        self._clock = clock
        self._known = {name: flag.default for name, flag in FLAGS.items()}

    def __enter__(self) -> None:
        for name, flag in FLAGS.items():
            self._note(name, flag.read())
            for owner, setter in flag.setters:
                self.replace_here(owner, {setter: partial(self._set, name)})

    def _set(self, flag: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        returned = plain(*args, **kwargs)
        self._note(flag, FLAGS[flag].read())
        return returned

    def _note(self, name: str, value: Any) -> None:
        if self._known[name] != value:
            self._known[name] = value
            self.changes.append((self._clock.now, name, value))


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
