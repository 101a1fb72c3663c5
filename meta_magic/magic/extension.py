"""``%load_ext meta_magic``: install everything into a shell, and remove it again.

Read :func:`load` first. Nothing here imports torch, so that loading takes no seconds.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from meta_magic.magic.awaiting import AwaitTransformer
from meta_magic.magic.completion import LineCompleter
from meta_magic.magic.line_options import VALUES_BY_NAME
from meta_magic.magic.magics import COMMANDS, MetaMagics
from meta_magic.magic.materialize_line import list_values
from meta_magic.magic.plain_cells import PlainCells
from meta_magic.magic.run import read_limits
from meta_magic.magic.tracebacks import UsersFrame

STATE = "_meta_magic_installed"
"""An attribute of the shell: ``%reload_ext`` drops the state of modules."""

PRINTED: Final = (
    ("meta_magic.materializing.report", "MaterializeReport"),
    ("meta_magic.cost.costs", "Cost"),
    ("meta_magic.cost.step_times", "StepTime"),
    ("meta_magic.designs.diff", "CheckpointDifference"),
    ("meta_magic.explain.across_cells", "Condition"),
    ("meta_magic.explain.explanations", "Explanation"),
    ("meta_magic.explain.lineage.lineage_records", "Lineage"),
    ("meta_magic.trials.fit", "Fit"),
)
"""Module and name of the classes of answers that are shown as text."""

NEWEST_TESTED: Final = (2, 15)
"""The newest torch in ``tests/conformance/RESULTS.md``."""


def load(shell: Any) -> None:
    """Install ``%%meta`` and ``%meta``; loading twice is the same as once."""
    unload(shell)
    magics, transformer = MetaMagics(shell), AwaitTransformer(shell)
    MetaMagics.meta.parser.allow_abbrev = False
    completer = LineCompleter(shell, VALUES_BY_NAME, COMMANDS, list_values)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(transformer)
    shell.events.register("pre_run_cell", magics.note_cell)
    add_formatters(shell)
    formats, debugger = ValueFormats(magics), UsersFrame(shell)
    parts = (completer, formats, debugger, PlainCells(magics))
    setattr(shell, STATE, (magics, transformer, parts))
    untested = describe_untested()
    if untested:
        print(untested)  # noqa: T201  one line, and no failure


def add_formatters(shell: Any) -> None:
    """Show answers as ``print`` shows them, not as the fields of a record.

    By the name of their class, so that torch is not imported. :func:`unload` leaves
    these formatters: they change nothing else.
    """
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type_by_name(*PRINTED[0], render_report)
    for home in PRINTED:
        formatters["text/plain"].for_type_by_name(
            *home, lambda answer, printer, _: printer.text(str(answer))
        )


def render_report(report: Any) -> str:
    """Return a report as HTML."""
    from meta_magic.view.choices import render_materialize_report  # noqa: PLC0415  needs torch

    return render_materialize_report(report)


def unload(shell: Any) -> None:
    """Remove from the shell whatever :func:`load` installed."""
    installed = shell.__dict__.pop(STATE, None)
    if installed is None:
        return
    magics, transformer, parts = installed
    for part in parts:
        part.remove()
    shell.input_transformers_cleanup.remove(transformer)
    shell.events.unregister("pre_run_cell", magics.note_cell)
    for kind, names in magics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    shell.magics_manager.registry.pop("MetaMagics", None)
    shell.configurables.remove(magics)


def describe_untested() -> str:
    """Return a warning about a torch newer than all tested ones; "" otherwise."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return ""
    if tuple(map(int, installed.split(".")[:2])) <= NEWEST_TESTED:
        return ""
    newest = ".".join(map(str, NEWEST_TESTED))
    return f"meta_magic was tested with torch up to {newest}; this is {installed}."


class ValueFormats:
    """Shows tensors of recorded cells with their values in ``Out[n]``, if cheap.

    It replaces the shell's ``format``. A formatter of the type ``Tensor`` would not be
    asked for a list or a table of tensors.
    """

    def __init__(self, magics: MetaMagics) -> None:
        self._magics = magics
        shell: Any = magics.shell
        self._formatter = shell.display_formatter
        self._before = self._formatter.format
        self._formatter.format = self.format

    def remove(self) -> None:
        """Restore the shell, unless another extension replaced ``format`` meanwhile."""
        if vars(self._formatter).get("format") == self.format:
            self._formatter.format = self._before

    def format(self, *args: Any, **kwargs: Any) -> Any:
        """Return an object in all formats of the shell.

        A recorded cell shows the planned device of a tensor, a plain cell ``meta``.
        """
        if "meta_magic.session.recording" not in sys.modules:  # nothing was recorded
            return self._before(*args, **kwargs)
        from meta_magic.session.recording import run_with_values  # noqa: PLC0415  needs torch

        return run_with_values(
            lambda: self._before(*args, **kwargs),
            read_limits(self._magics).little(),  # nobody asked for this value
            has_placements=self._magics.is_recorded,
        )
