"""Show why a cell failed above its traceback, and a line for its recording below.

IPython shows the traceback when the cell has ended; the line is shown after that. In a
notebook, an empty output is made above the traceback, and the explanation is written
into it later, step by step, so that the traceback does not wait for it. In a terminal a
child process makes the explanation; one that takes over a second is shown below the
traceback. Read :class:`FailedCell` first.
"""

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from IPython.display import display

from meta_magic.magic.reports import build_outputs, is_notebook
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.summary import describe_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meta_magic.explain.across_cells import PendingExplanation
    from meta_magic.trace.trace import Trace

WAIT: Final = 1.0
"""How many seconds the traceback waits for the explanation in a terminal."""

LATER: Final = "looking for the cause"
TRYING: Final = "trying edits"
"""The ends of an explanation in a notebook that is not whole yet."""


class FailedCell:
    """Shows why a cell failed, and the line that opens its recording.

    Args:
        settings: ``depth``, ``parameters``, ``height`` of the report; None for none.
    """

    def __init__(
        self, shell: Any, trace: "Trace", key: str, settings: "Mapping[str, Any] | None"
    ) -> None:
        self._shell = shell
        self._trace = trace
        self._key = key
        self._settings = settings
        self._handle: Any = None
        self._why = ""
        self._late: PendingExplanation | None = None

    def start(self, show: "Callable[..., Any]") -> None:
        """Show why the cell failed; in a notebook, its first line."""
        failed = self._trace.failed
        is_of_torch = failed is not None and failed.is_of_torch
        if is_of_torch and is_notebook(self._shell):
            self._why = f"mm-{uuid4().hex[:8]}"
            self._handle = show(self._build_bundle(LATER), is_open=True)
            return
        from meta_magic.explain.across_cells import PendingExplanation  # noqa: PLC0415  torch

        self._late = PendingExplanation(self._trace)
        if self._late.is_done(WAIT):
            self._show_why(show)

    def _show_why(self, show: "Callable[..., Any]") -> None:
        """Show the explanation, if it says more than the error."""
        if self._late is not None:
            self._late.finish()
        self._late, explanation = None, self._trace.explanation
        if explanation is not None and not explanation.is_silent:
            self._why = f"mm-{uuid4().hex[:8]}"
            show(self._build_bundle(explanation.text))

    def end(self) -> None:
        """Show the rest, below the traceback."""
        with RARE_COLLECTION:
            if self._late is not None:
                self._show_why(partial(display, raw=True))
            if self._handle is not None:
                self._show_steps()
            if self._settings is None or self._trace.is_empty:
                return
            settings = {
                **self._settings,
                "line": describe_recording(self._trace),
                "why": self._why,
            }
            outputs = build_outputs(self._shell, self._trace, self._key, settings)
        display(outputs.bundle, raw=True)
        if outputs.live is not None:
            display(outputs.live)

    def _show_steps(self) -> None:
        """Write the explanation into its output as it becomes known."""
        from meta_magic.explain.across_cells import walk_steps  # noqa: PLC0415  torch

        found, text, shown = None, "", LATER
        for found in walk_steps(self._trace):
            text = found.text
            shown = text if found.n_tried or found.declined else f"{text}\n{TRYING}"
            self._handle.update(self._build_bundle(shown), raw=True)
        vars(self._trace)["explanation"] = found
        if shown != text:
            self._handle.update(self._build_bundle(text), raw=True)

    def _build_bundle(self, text: str) -> dict[str, str]:
        """Return an explanation's text as a mime bundle; the report may replace it."""
        whole = "\n".join(filter(None, (describe_failure(self._trace), text)))
        html = f'<div id="{self._why}"><pre>{escape(whole)}</pre></div>'
        return {"text/plain": whole, "text/html": html}


def describe_recording(trace: "Trace") -> str:
    """Return the line that opens the recording of a failed cell."""
    n_operators = trace.program.n_calls
    plural = "" if n_operators == 1 else "s"
    where = f" up to line {trace.error_line}" if trace.error_line else ""
    return f"Recording: {n_operators:,} operator{plural}{where}"
