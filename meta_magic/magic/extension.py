"""Install the magics into a shell, and remove every trace of them again."""

from typing import Any

from meta_magic.magic.completion import LineCompleter
from meta_magic.magic.debugger import UsersFrame
from meta_magic.magic.line_options import VALUES_BY_NAME
from meta_magic.magic.magics import HELP, MetaMagics
from meta_magic.magic.materialize_line import COMMAND, list_values
from meta_magic.magic.plain_cells import PlainCells
from meta_magic.magic.repair_line import REPAIR
from meta_magic.magic.torch_versions import describe_untested
from meta_magic.magic.tracebacks import WHOLE
from meta_magic.magic.transformer import AwaitTransformer
from meta_magic.magic.value_formats import ValueFormats

__all__ = ["load", "unload"]

STATE = "_meta_magic_installed"
"""Name on the shell, not in a module: ``%reload_ext`` reloads only the top package."""


def load(shell: Any) -> None:
    """Register ``%%meta`` and ``%meta``; loading twice is as loading once."""
    unload(shell)
    magics, transformer = MetaMagics(shell), AwaitTransformer(shell)
    MetaMagics.meta.parser.allow_abbrev = False
    commands = (COMMAND, WHOLE, REPAIR, HELP)
    completer = LineCompleter(shell, VALUES_BY_NAME, commands, list_values)
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
    """Have reports of :func:`meta_magic.materialize` shown as people read them.

    By name, so that torch is not imported; they stay, as they change nothing else.
    """
    formatters = shell.display_formatter.formatters
    home = "meta_magic.materializing.report", "MaterializeReport"
    formatters["text/html"].for_type_by_name(*home, render_report)
    formatters["text/plain"].for_type_by_name(
        *home, lambda report, printer, _: printer.text(str(report))
    )


def render_report(report: Any) -> str:
    """Return a report as HTML."""
    from meta_magic.view.materialize_html import render_materialize_report  # noqa: PLC0415  needs torch

    return render_materialize_report(report)


def unload(shell: Any) -> None:
    """Remove whatever :func:`load` put into the shell."""
    installed = shell.__dict__.pop(STATE, None)
    if installed is None:
        return
    magics, transformer, parts = installed
    for part in parts:
        part.remove()
    shell.input_transformers_cleanup.remove(transformer)
    shell.events.unregister("pre_run_cell", magics.note_cell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("meta", None)
    shell.magics_manager.registry.pop("MetaMagics", None)
    shell.configurables.remove(magics)
