"""The live report and its Materialize panel; only this file imports ipywidgets.

Traits go to ``static/live.js``, messages come back. Work runs in threads, so that the
kernel can run other cells. Read :class:`MaterializePanel` first.
"""

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import anywidget
import torch
import traitlets
from torch import nn

from meta_magic.materializing.fills.inits import INITS
from meta_magic.materializing.materialize import materialize
from meta_magic.replaying.value_budget import free_nbytes, list_devices
from meta_magic.trace.units import format_bytes
from meta_magic.view.answers import Answers, answers_of, make_reference
from meta_magic.view.choices import (
    AS_PLANNED,
    CHECKPOINT,
    DTYPES,
    STATE_BY_NAME,
    Choice,
    Choosable,
    Outlook,
    TimeLeft,
    describe_end,
    describe_error,
    is_on_meta,
    look_ahead,
    render_materialize_report,
)
from meta_magic.view.fits_of_sizes import FitsOf, offer_fits
from meta_magic.view.payload import pack
from meta_magic.view.scripts import read_script, read_styles

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace
    from meta_magic.view.sliders import Designs


UPDATE_EVERY: Final = 0.1
"""Seconds between two progress messages: Jupyter servers drop faster ones."""


class CancelledError(Exception):
    """Raised by the progress callback to end ``materialize``."""


class MaterializePanel(anywidget.AnyWidget):
    """Fields, a button, a progress bar and a report for the modules of a trace.

    The front end sends ``choose``, ``start`` and ``cancel``; traits are the answers.
    """

    roots = traitlets.List(traitlets.Unicode()).tag(sync=True)
    places = traitlets.List(traitlets.Int()).tag(sync=True)  # indices in the trace
    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    inits = traitlets.List(traitlets.Unicode()).tag(sync=True)
    dtypes = traitlets.List(traitlets.Unicode()).tag(sync=True)
    values = traitlets.List(traitlets.Unicode()).tag(sync=True)
    choice = traitlets.Dict().tag(sync=True)  # the fields of Choice

    # The fields of Outlook, without its message.
    needed = traitlets.Unicode().tag(sync=True)
    free = traitlets.Unicode().tag(sync=True)
    is_enough = traitlets.Bool(default_value=True).tag(sync=True)
    is_real = traitlets.Bool(default_value=False).tag(sync=True)
    forecast = traitlets.Unicode().tag(sync=True)
    fitting = traitlets.Unicode().tag(sync=True)

    # idle, running, done, failed or cancelled
    state = traitlets.Unicode("idle").tag(sync=True)
    progress = traitlets.Float(0.0).tag(sync=True)  # from 0 to 1
    left = traitlets.Unicode().tag(sync=True)  # as text
    message = traitlets.Unicode().tag(sync=True)
    report = traitlets.Unicode().tag(sync=True)  # HTML, escaped

    def __init__(
        self,
        nodes: Sequence["ModuleNode"],
        modules: Sequence[weakref.ref[nn.Module]],
        **traits: Any,
    ) -> None:
        self._choosable = Choosable(nodes, modules)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._updated, self._left = 0.0, TimeLeft()
        nbytes = sum(n.parameter_nbytes + n.buffer_nbytes for n in nodes[:1])
        planned = [AS_PLANNED] if any(node.places for node in nodes) else []
        devices = [*planned, *list_devices()]
        super().__init__(
            roots=self._choosable.labels,
            devices=devices,
            inits=[*INITS, CHECKPOINT],
            dtypes=list(DTYPES),
            values=list(STATE_BY_NAME),
            choice=asdict(Choice(device=devices[0])),
            needed=format_bytes(nbytes),
            free=format_bytes(free_nbytes(torch.device("cpu"))),
            **traits,
        )
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        # Shown in place of the widget where no kernel is, as after nbconvert.
        return "Materialize: run the cell again"

    def close(self) -> None:
        """Cancel, vanish from the notebook, and release all references."""
        self._cancelled.set()
        self._choosable.forget()
        self.on_msg(self._receive, remove=True)
        if self.layout is not None:
            self.layout.close()
        super().close()

    def wait(self, timeout: float | None = None) -> None:
        """Return when nothing runs, or after ``timeout`` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _receive(self, _: object, content: Mapping[str, Any], __: object) -> None:
        kind = content.get("kind")
        if kind == "cancel":
            self._cancelled.set()
        elif kind == "choose":
            self._choose(Choice.read(content["choice"]))
            self.send({"kind": "answer"})
        elif kind == "start":
            self._start(Choice.read(content["choice"]))

    def _choose(self, choice: Choice) -> None:
        """Store a choice, and show what it would need."""
        if self.state == "running":
            return
        with self.hold_sync():
            self.choice = asdict(choice)
            self._update(message="", state="idle")
            self._forecast(choice)

    def _start(self, choice: Choice) -> None:
        # Messages may come on several threads: JupyterLab uses subshells for comms.
        with self._lock:
            if self.state == "running":
                return
            self._cancelled.clear()
            self.state = "running"
        with self.hold_sync():
            self.choice = asdict(choice)
            self.progress, self.left, self.report = 0.0, "", ""
            where = AS_PLANNED if choice.device == AS_PLANNED else f"on {choice.device}"
            self.message = f"materializing {self._choosable.label(choice)} {where}"
        self._thread = threading.Thread(
            target=self._run, args=(choice,), name="meta_magic materialize", daemon=True
        )
        self._thread.start()

    def _run(self, choice: Choice) -> None:
        """Materialize in a thread; no error may leave it."""
        self._left = TimeLeft()
        try:
            report = materialize(
                self._choosable.find(choice),
                progress=self._advance,
                **choice.arguments(),
            )
        except CancelledError:
            self._update(
                message="cancelled: the module is as it was", state="cancelled"
            )
        except BaseException as error:  # noqa: BLE001  the user's own code may run
            self._update(message=describe_error(error), state="failed")
        else:
            self.progress = 1.0
            self.report = render_materialize_report(report)
            self._forecast(choice)
            name = self._choosable.name(choice)
            end = describe_end(name, report.module, report.places)
            self._update(message=end, state="done")

    def _advance(self, fraction: float) -> None:
        if self._cancelled.is_set():
            raise CancelledError
        now = time.monotonic()
        if now - self._updated >= UPDATE_EVERY:
            self._updated = now
            with self.hold_sync():
                self.progress, self.left = fraction, self._left.describe(fraction)

    def _forecast(self, choice: Choice) -> None:
        try:
            wanted = self._choosable.find(choice)
            outlook = look_ahead(wanted, self._choosable.name(choice), choice)
        except Exception as error:  # noqa: BLE001  the user's own code may run
            outlook = Outlook(free=self.free, message=describe_error(error))
        self._update(**asdict(outlook))

    def _update(self, **traits: Any) -> None:
        for name, value in traits.items():
            setattr(self, name, value)


class Report(MaterializePanel):
    """The live report of a trace: all its views, and the Materialize panel."""

    _esm = f"{read_script('live')}\nexport default report;\n"
    _css = read_styles("live")

    payload = traitlets.Bytes().tag(sync=True)
    saved_id = traitlets.Unicode().tag(sync=True)  # of the saved report, to be hidden
    cell = traitlets.Unicode().tag(sync=True)  # its id in the front end
    settings = traitlets.Dict().tag(sync=True)
    sliders = traitlets.List(traitlets.Dict()).tag(sync=True)
    fit_state = traitlets.Dict().tag(sync=True)
    fit_at = traitlets.Dict().tag(sync=True)
    growths = traitlets.List(traitlets.Dict()).tag(sync=True)
    stretches = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        trace: "Trace",
        *parts: Any,
        designs: "Designs | None" = None,
        **traits: Any,
    ) -> None:
        find = make_reference(trace.program, trace)
        offers = Answers(
            "offer", find, lambda trace, asked: offer_fits(trace, asked.get("at", {}))
        )
        self._answers = (*answers_of(trace, designs), offers)
        self._fits = FitsOf(trace, self._update)
        sliders = []
        if trace.rerun is not None and trace.rerun.options.sliders:
            from meta_magic.view.sliders import offer_sliders  # noqa: PLC0415  few have

            sliders = offer_sliders(trace)
        super().__init__(*parts, sliders=sliders, **traits)

    def close(self) -> None:
        """Close the panel, and release the recording."""
        for answers in self._answers:
            answers.forget()
        self._answers = ()  # with the processes of sliders
        self._fits.forget()
        super().close()

    def _receive(self, _: object, content: Mapping[str, Any], __: object) -> None:
        for answers in self._answers:
            answers.receive(content, self.send)
        if content.get("kind") == "fit":
            self._fits.receive(content)
        super()._receive(_, content, __)


reports_by_key: dict[str, list[Report]] = {}


def show_report(
    trace: "Trace",
    key: str = "",
    *,
    packed: bytes | None = None,
    saved_id: str = "",
    settings: Mapping[str, Any] | None = None,
    designs: "Designs | None" = None,
) -> Report:
    """Return a live report of a trace, to be displayed.

    ``key`` is the cell, ``saved_id`` the ``id`` of the saved report that this one
    replaces, ``designs`` what the sliders know already.
    """
    rows = [
        (index, node, root)
        for index, (node, root) in enumerate(zip(trace.modules, trace.roots))  # noqa: B905
        if root is not None and is_on_meta(root())
    ]
    report = Report(
        trace,
        [node for _, node, _ in rows],
        [root for _, _, root in rows],
        places=[index for index, _, _ in rows],
        payload=pack(trace) if packed is None else packed,
        cell=key,
        saved_id=saved_id,
        settings=dict(settings or {}),
        designs=designs,
    )
    reports_by_key.setdefault(key, []).append(report)
    return report


def close_reports(key: str | None = None) -> None:
    """Close the reports of a cell, because it runs again; by default all reports."""
    for name in [key] if key is not None else list(reports_by_key):
        for report in reports_by_key.pop(name, ()):
            report.close()
