"""What a recording learns besides its calls: notes, doubts, values, assumptions."""

from typing import TYPE_CHECKING

from meta_magic.recording.identities.places import Places
from meta_magic.trace.notes import Note

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption, Evaluation, KernelChoice

__all__ = ["Findings"]


class Findings:
    """Collects what the parts of a recording find, each with the line that ran.

    Attributes:
        notes: What the user should know; a dictionary, so that each stands once.
        doubts: (what, line of the cell or None) of all that may make a replay differ
            from the same block on a real device.
        failures: (operator, line) of the calls that raised.
        kernels: Which kernels were chosen.
        evaluations: The calls that were answered with real values, in order.
        assumptions: The calls whose sizes or values were assumed, in order.
        n_answered: How many calls were answered with values, or with those assumed.
        n_unseen: Calls that were not recorded, by the class of tensor they were on.
    """

    def __init__(self, places: Places) -> None:
        self.notes: dict[Note, None] = {}
        self.doubts: dict[tuple[str, int | None], None] = {}
        self.failures: dict[tuple[str, int | None], None] = {}
        self.kernels: list[KernelChoice] = []
        self.evaluations: list[Evaluation] = []
        self.assumptions: list[Assumption] = []
        self.n_answered = 0
        self.n_unseen: dict[str, int] = {}
        self._places = places

    def note(self, kind: str, text: str) -> None:
        """Note something about the line that runs now."""
        self.note_at(kind, text, self._places.current_line())

    def note_at(self, kind: str, text: str, line: int | None) -> None:
        """Note something about a line."""
        self.notes.setdefault(Note(kind=kind, text=text, line=line))

    def doubt(self, text: str) -> None:
        """Note what may differ on a device, at the line that runs now."""
        self.doubts[self.locate(text)] = None

    def locate(self, text: str) -> tuple[str, int | None]:
        """Return a text with the line that runs now."""
        return text, self._places.current_line()

    def count_unseen(self, name: str) -> None:
        """Count a call that is not recorded, by what it was on."""
        self.n_unseen[name] = self.n_unseen.get(name, 0) + 1
