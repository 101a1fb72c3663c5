"""The note on an error of a ``with record()`` that says why it failed, if it is shown.

Finding that out takes a while, and most such errors are expected, as in a test: so it
is done when the note is printed, and not before.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["note_explanation"]

SHORT: Final = "print(trace.explanation) says why"


class ExplanationNote(str):  # noqa: SLOT000  it keeps a trace
    """A note that says where the explanation is; as text, the explanation itself.

    Attributes:
        trace: What it is of.
    """

    trace: "Trace"

    def __str__(self) -> str:
        explanation = self.trace.explanation
        return "" if explanation is None else f"\n{explanation.text}"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # An error that is sent to another process takes no trace along.
        return str, (SHORT,)


def note_explanation(error: BaseException, trace: "Trace") -> None:
    """Have an error say below its traceback why it came, where torch had a part in it.

    Not twice, where one recording is within another.
    """
    failed = trace.failed
    notes = getattr(error, "__notes__", ())
    is_noted = any(isinstance(note, ExplanationNote) for note in notes)
    if failed is None or is_noted or not isinstance(error, Exception):
        return
    if failed.function is not None or failed.remarks or failed.loading is not None:
        note = ExplanationNote(SHORT)
        note.trace = trace
        error.add_note(note)
