"""The Materialize panel without its widget: what it offers, checks, says and shows.

``widgets`` sends a :class:`Choice` of the user here: :class:`Choosable` finds the
module, :func:`look_ahead` says what materializing it would take, and
:func:`render_materialize_report` writes what it did as HTML.
"""

import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.inits import INITS
from meta_magic.materializing.materialize import list_fitting, prepare
from meta_magic.materializing.report import (
    DRAWN_OTHERWISE,
    KEPT,
    LEFT,
    UNINITIALIZED,
    WHY_OTHERWISE,
    format_on_meta,
    format_seconds,
)
from meta_magic.materializing.targets import (
    Variables,
    find_modules,
    find_tensors,
    write_path,
)
from meta_magic.replaying.value_budget import free_nbytes
from meta_magic.trace.units import format_bytes, format_shape

if TYPE_CHECKING:
    from meta_magic.materializing.report import FilledTensor, MaterializeReport
    from meta_magic.trace.modules import ModuleNode


CHECKPOINT: Final = "checkpoint"
"""The choice of ``init`` that reads the field for a path."""

AS_PLANNED: Final = "as planned"
"""The choice of ``device`` that takes the devices that the cell names."""

AFTER_CELL: Final = "as after the cell"
AS_CONSTRUCTED: Final = "as constructed"
STATE_BY_NAME: Final = {AFTER_CELL: "current", AS_CONSTRUCTED: "constructed"}
"""The choices of ``state``, and the arguments that they mean."""

REPLAYED: Final = (INITS[0], CHECKPOINT)
"""The choices of ``init`` that replay, which need a state."""

AS_BUILT: Final = "as built"
DTYPES: Final = (AS_BUILT, "float32", "bfloat16", "float16")
NO_PATH: Final = "type the path of a checkpoint: a file, an index or a directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fields of the panel.

    Attributes:
        root: Index of the root module; the index after the last means all variables.
        device: Name of the device, or ``as planned``.
        dtype: Name of a dtype in torch, or ``as built``.
        values: A name of ``STATE_BY_NAME``; used only by a replay.
        checkpoint: Path to read when ``init`` is ``checkpoint``.
    """

    root: int = 0
    path: str = ""
    device: str = "cpu"
    init: str = INITS[0]
    dtype: str = AS_BUILT
    values: str = AFTER_CELL
    checkpoint: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Choice":
        """Return the choice that a front end sent; unknown fields are ignored."""
        names = cls.__dataclass_fields__
        return cls(**{name: fields[name] for name in names if name in fields})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`materialize`, without the module."""
        path = self.checkpoint.strip()
        if self.init == CHECKPOINT and not path:
            raise MaterializeError(NO_PATH)
        values = self.values if self.init in REPLAYED else AFTER_CELL
        return {
            "device": None if self.device == AS_PLANNED else self.device,
            "init": Path(path) if self.init == CHECKPOINT else self.init,
            "dtype": None if self.dtype == AS_BUILT else getattr(torch, self.dtype),
            "state": STATE_BY_NAME[values],
        }


def is_on_meta(module: nn.Module | None) -> bool:
    """Whether a module still exists and has a tensor on meta."""
    return module is not None and any(h.tensor.is_meta for h in find_tensors(module))


def describe_root(node: "ModuleNode") -> str:
    """Return a root as the report names it."""
    return f"{node.name}: {node.class_name}" if node.name else node.class_name


def describe_error(error: BaseException) -> str:
    """Return the message of an error, with its type if it is not ours."""
    is_ours = isinstance(error, MaterializeError)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


ALL: Final = "all that your variables hold"
"""The choice of everything on meta, such as optimizers, batches and modules."""


class Choosable:
    """The root modules of a trace that are on meta, by weak references."""

    def __init__(
        self, nodes: Sequence["ModuleNode"], modules: Sequence[weakref.ref[nn.Module]]
    ) -> None:
        self._modules = tuple(modules)
        self._names = [node.name for node in nodes]
        roots = [describe_root(node) for node in nodes]
        self.labels = [*roots, ALL] if roots else []

    def forget(self) -> None:
        """Release the modules."""
        self._modules = ()

    def find(self, choice: Choice) -> object:
        """Return the chosen module, or the variables of the notebook."""
        if self._modules and self._is_all(choice):
            return Variables(vars(sys.modules["__main__"]))
        return self._find_modules(choice)[choice.path]

    def name(self, choice: Choice) -> str:
        """Return the chosen module as Python code; "" if that is not known."""
        if self._is_all(choice):
            return ""
        root = self._names[choice.root]
        if not choice.path or not root:
            return root if not choice.path else ""
        return write_path(self._find_modules(choice), root, choice.path)

    def label(self, choice: Choice) -> str:
        """Return the choice as text."""
        if choice.path:
            return self.name(choice) or choice.path
        return self.labels[choice.root]

    def _is_all(self, choice: Choice) -> bool:
        return choice.root == len(self._names)

    def _find_modules(self, choice: Choice) -> dict[str, nn.Module]:
        reference = self._modules[choice.root] if self._modules else None
        root = None if reference is None else reference()
        modules = {} if root is None else dict(find_modules(root))
        if choice.path not in modules:
            raise MaterializeError(GONE)
        return modules


GONE: Final = (
    "the module is gone: it was deleted or built anew; run the cell again for a new "
    "Materialize button"
)

REAL: Final = "nothing: all of it is real already"

PATIENCE: Final = 1.0
"""Seconds before a remaining time is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a choice would do; the panel has traits of the same names.

    Attributes:
        needed: The bytes that it takes; "" where that is not known.
        is_real: Whether there is nothing to do.
        forecast: What would be replayed, and how long that takes.
        fitting: What would fit, if it does not.
        message: Why it cannot be done; "" if it can.
    """

    needed: str = ""
    free: str = ""
    is_enough: bool = True
    is_real: bool = False
    forecast: str = ""
    fitting: str = ""
    message: str = ""


def look_ahead(wanted: object, name: str, choice: Choice) -> Outlook:
    """Return what a choice would do."""
    arguments = choice.arguments()
    prepared = prepare(wanted, **arguments)
    free = format_bytes(free_nbytes(prepared.device))
    if not prepared.targets:
        return Outlook(needed=REAL, free=free, is_real=True)
    fits, needed = prepared.fits, format_bytes(prepared.nbytes)
    at_peak = format_bytes(prepared.peak_nbytes)
    if prepared.peak_nbytes > prepared.nbytes and at_peak != needed:
        needed += f", {at_peak} at peak"
    found = [] if fits else [*list_fitting(prepared, name or "the module", arguments)]
    return Outlook(
        needed=needed,
        free=free,
        is_enough=fits,
        forecast=str(prepared.forecast),
        fitting=" or ".join(found),
    )


def describe_end(name: str, kind: str, devices: str) -> str:
    """Return the message after success, with the line to type next.

    ``name`` is the module as Python code; "" if that is not known.
    """
    if kind == Variables.__name__:
        return f"what your variables hold is now real, on {devices}"
    if not name:
        return f"the {kind} is now real, on {devices}"
    return f"`{name}` is now real, on {devices}: call `{name}(…)` in the next cell"


class TimeLeft:
    """Estimates the remaining time of a task that starts now."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._total: float | None = None

    def describe(self, fraction: float) -> str:
        """Return the remaining time as text, given the part done; "" at first."""
        elapsed = time.monotonic() - self._started
        if elapsed < PATIENCE or not fraction:
            return ""
        total = elapsed / fraction
        # Smoothed: steps differ in length, and the number must not jump.
        self._total = total if self._total is None else (3 * self._total + total) / 4
        left = max(self._total - elapsed, 0.0)
        return f"{format_seconds(left)} left"


COLUMNS: Final = ("tensor", "kind", "shape", "dtype", "bytes", "filled by", "tied to")

MAX_OPEN: Final = 12
"""A table with more tensors is folded at first."""

RED: Final = {
    UNINITIALIZED: (
        "UNINITIALIZED: {} whatever was in memory before",
        "{:,} uninitialized",
    ),
    DRAWN_OTHERWISE: (
        f"DRAWN OTHERWISE: {{}} {WHY_OTHERWISE}",
        "{:,} drawn otherwise",
    ),
    LEFT: ("LEFT ON META: {} no values, and what uses it fails", LEFT),
}
"""Warning and title of tensors in red: they differ from those of a real run."""

MAX_ROWS: Final = 1000
"""Rows of a table; more would make the notebook's file large."""

STYLES: Final = ("report.css", "panel.css")


def render_materialize_report(report: "MaterializeReport") -> str:
    """Return headline, warnings, notes and tensors as HTML.

    Every name comes from the user's code and is escaped.
    """
    static = files("meta_magic.view") / "static"
    style = "".join((static / name).read_text("utf-8") for name in STYLES)
    good = [t for t in report.tensors if t.filled_by not in RED]
    parts = [f"<style>{style}</style>", f"<p>{escape(format_headline(report))}</p>"]
    for source, (warning, title) in RED.items():
        found = [t for t in report.tensors if t.filled_by == source]
        if found:
            n = len(found)
            holds = "1 tensor holds" if n == 1 else f"{n:,} tensors hold"
            parts.append(f'<p class="mm-danger">{warning.format(holds)}</p>')
            parts.append(render_folded(found, title.format(n)))
    on_meta = [format_on_meta(report.on_meta)] if report.on_meta else []
    notes = [*report.notes, *on_meta]
    if notes:
        parts.append(
            f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
        )
    if good:
        parts.append(render_folded(good, summarize(good)))
    return f'<div class="mm-report mm-materialized">{"".join(parts)}</div>'


def format_headline(report: "MaterializeReport") -> str:
    """Return one line: the module, its devices, bytes and seconds."""
    made = [t for t in report.tensors if t.filled_by not in (KEPT, LEFT)]
    tensors = f"{len(made):,} tensor{'' if len(made) == 1 else 's'}"
    return (
        f"{report.module} on {report.places} · {tensors}, "
        f"{format_bytes(report.nbytes)} · {report.seconds:.2f} s"
    )


def summarize(tensors: Sequence["FilledTensor"]) -> str:
    """Return the number of tensors by source, the most frequent first."""
    counts = Counter(t.filled_by for t in tensors).most_common()
    return ", ".join(
        f"{n:,} kept as before" if kind == KEPT else f"{n:,} by {kind}"
        for kind, n in counts
    )


def render_folded(tensors: Sequence["FilledTensor"], title: str) -> str:
    """Return the table of some tensors, folded if it is long."""
    is_open = " open" if len(tensors) <= MAX_OPEN else ""
    table = render_table(tensors[:MAX_ROWS])
    if len(tensors) > MAX_ROWS:
        table += f"<div>… {len(tensors) - MAX_ROWS:,} more</div>"
    return f"<details{is_open}><summary>{escape(title)}</summary>{table}</details>"


def render_table(tensors: Iterable["FilledTensor"]) -> str:
    """Return one row for each tensor, below the names of the columns."""
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = "".join(map(render_row, tensors))
    return (
        f'<table class="mm-tensors"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def render_row(tensor: "FilledTensor") -> str:
    """Return the row of a tensor."""
    cells = (
        tensor.kind,
        format_shape(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        format_bytes(tensor.nbytes),
        tensor.filled_by,
        tensor.tied_to or "",
    )
    is_bad = tensor.filled_by in RED
    opened = '<tr class="mm-danger">' if is_bad else "<tr>"
    named = f'<th scope="row">{escape(tensor.name)}</th>'
    return (
        f"{opened}{named}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    )
