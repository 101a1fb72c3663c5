"""Show a trace in a front end: the saved report, the live one, and why a cell failed.

IPython shows the traceback when the cell has ended. In a notebook, an empty output is
made above the traceback, and the explanation is written into it later, step by step, so
that the traceback does not wait for it. In a terminal a child process makes the
explanation; one that takes over a second is shown below the traceback. Read
:func:`build_outputs` and :class:`FailedCell` first.
"""

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.getipython import get_ipython
from IPython.display import display

from meta_magic.session.collector import RARE_COLLECTION

if TYPE_CHECKING:
    from meta_magic.designs.differences import Difference
    from meta_magic.explain.across_cells import PendingExplanation
    from meta_magic.ranks.recorded_ranks import Ranks
    from meta_magic.trace.trace import Trace
    from meta_magic.view.widgets import Report


class Outputs(NamedTuple):
    """The two outputs of a trace.

    Attributes:
        bundle: Mime bundle of the report that stays when the notebook is saved.
        live: The widget that replaces it while there is a kernel, or None.
    """

    bundle: dict[str, str]
    live: "Report | None" = None


SECONDS: Final = 1.0
"""Seconds for recording the designs that the sliders of a saved notebook show."""


def build_outputs(
    shell: Any, trace: "Trace", key: str, settings: Mapping[str, Any]
) -> Outputs:
    """Return the outputs of a trace, and close earlier reports of its cell.

    Args:
        settings: ``depth``, ``parameters``, ``height``; of a failed cell, also ``line``
            and ``why`` (see ``view/page.py``); with ``--diff`` also ``difference``, as
            ``Difference.describe`` gives it.
    """
    from meta_magic.view.html import build_bundle  # noqa: PLC0415  needs torch

    line = settings.get("line")
    text = line and f"{line} (run %meta to print it)"
    if not is_notebook(shell):
        if text:
            return Outputs({"text/plain": text})
        from meta_magic.view.sliders import offer_sliders  # noqa: PLC0415  as above

        bundle = build_bundle(trace, depth=settings["depth"])
        found = settings.get("difference")
        lines = [found["text"], *found["changes"]] if found else []
        lines.append(bundle["text/plain"])
        errors = [one["error"] for one in offer_sliders(trace) if one["error"]]
        lines += [f"note: a slider cannot be moved: {error}" for error in errors]
        bundle["text/plain"] = "\n".join(lines)
        return Outputs(bundle)
    from meta_magic.view.page import render_snapshot, store_sliders  # noqa: PLC0415
    from meta_magic.view.payload import pack  # noqa: PLC0415
    from meta_magic.view.widgets import close_reports, show_report  # noqa: PLC0415  takes 0.2 s to import

    close_reports(key)
    if trace.is_empty:
        return Outputs(build_bundle(trace, depth=settings["depth"]))
    packed, uid = pack(trace), f"mm-{uuid4().hex[:8]}"
    stored, designs = store_sliders(trace, packed, SECONDS)
    html = render_snapshot(trace, packed, uid, settings, stored)
    bundle = build_bundle(trace, html, settings["depth"])
    bundle["text/plain"] = text or bundle["text/plain"]
    live = show_report(
        trace, key, packed=packed, saved_id=uid, settings=settings, designs=designs
    )
    return Outputs(bundle, live)


def show(trace: "Trace", settings: Mapping[str, Any]) -> None:
    """Show a report in the notebook, or as text where there is none."""
    shell = get_ipython()
    if shell is None:
        print(trace.summary(settings["depth"]))  # noqa: T201  asked for
        return
    outputs = build_outputs(shell, trace, find_cell_id(shell) or uuid4().hex, settings)
    display(outputs.bundle, raw=True)
    if outputs.live is not None:
        display(outputs.live)


def show_difference(difference: "Difference") -> None:
    """Show the report of a design with its changes marked; as text elsewhere."""
    trace = difference.after
    if trace is None or not is_notebook(get_ipython()):
        print(difference)  # noqa: T201  asked for
        return
    show(trace, {"depth": None, "difference": difference.describe()})


def show_ranks(ranks: "Ranks") -> None:
    """Show recorded processes one above the other; as text outside of notebooks."""
    if not is_notebook(get_ipython()):
        print(ranks)  # noqa: T201  asked for
        return
    from meta_magic.view.html import render_ranks  # noqa: PLC0415

    bundle = {"text/plain": str(ranks), "text/html": render_ranks(ranks)}
    display(bundle, raw=True)


def show_charts(trace: "Trace", of: str, device: str) -> None:
    """Show a chart of a trace, outside of notebooks as a line of text."""
    from meta_magic.view.charts import (  # noqa: PLC0415
        memory_bundle,
        roofline_bundle,
        treemap_bundle,
    )

    charts: Mapping[str, tuple[Callable[[Trace], dict[str, object] | None], str]] = {
        "parameters": (treemap_bundle, "no module of this trace has parameters"),
        "memory": (memory_bundle, "no tensor of this trace takes memory"),
        "roofline": (
            partial(roofline_bundle, device=device),
            "no operator of this trace computes anything",
        ),
    }
    if of not in charts:
        raise ValueError(f"there is no chart of {of!r}: choose {' or '.join(charts)}")
    build, otherwise = charts[of]
    bundle = build(trace)
    if bundle is None:
        print(otherwise)  # noqa: T201  asked for
    elif is_notebook(get_ipython()):
        display(bundle, raw=True)
    else:
        print(bundle["text/plain"])  # noqa: T201  asked for


def is_notebook(shell: Any) -> bool:
    """Whether the front end of a shell is a browser."""
    return hasattr(shell, "kernel")


def find_cell_id(shell: Any) -> str | None:
    """Return the front end's id of the running cell, if it sends one."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell_id: str | None = (parent or {}).get("metadata", {}).get("cellId")
    return cell_id


def silence_shell() -> None:
    """Show nothing from now on: a forked child must not write to the front end."""
    shell = get_ipython()
    if shell is None:
        return
    shell.display_pub = CapturingDisplayPublisher(shell=shell)
    shell.displayhook = DisplayHook(shell=shell)
    kernel: Any = getattr(shell, "kernel", None)
    if kernel:  # it would log that it sends nothing, and its log may be a file
        kernel.session.send = lambda *_, **__: None


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
        from meta_magic.trace.summary import describe_failure  # noqa: PLC0415  torch

        whole = "\n".join(filter(None, (describe_failure(self._trace), text)))
        html = f'<div id="{self._why}"><pre>{escape(whole)}</pre></div>'
        return {"text/plain": whole, "text/html": html}


def describe_recording(trace: "Trace") -> str:
    """Return the line that opens the recording of a failed cell."""
    n_operators = trace.program.n_calls
    plural = "" if n_operators == 1 else "s"
    where = f" up to line {trace.error_line}" if trace.error_line else ""
    return f"Recording: {n_operators:,} operator{plural}{where}"
