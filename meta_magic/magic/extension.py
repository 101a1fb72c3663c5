"""``%load_ext meta_magic``: install everything into a shell, and remove it again.

Read :func:`load` first. Nothing here imports torch, so that loading takes no seconds.

``meta-magic check notebook.ipynb`` runs cells in a :class:`NotebookShell`.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meta_magic.magic.awaiting import AwaitTransformer
from meta_magic.magic.line_options import VALUES_BY_NAME
from meta_magic.magic.magics import COMMANDS, MetaMagics
from meta_magic.magic.materialize_line import list_values
from meta_magic.magic.plain_cells import PlainCells
from meta_magic.magic.run import read_limits
from meta_magic.magic.tracebacks import UsersFrame

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    HAS_MATCHERS = True
except ImportError:  # before IPython 8.6
    HAS_MATCHERS = False


MAGICS: Final = ("%%meta", "%meta")
ASSIGNED: Final = re.compile(r"\s*([\w.,\s]+=)?\s*(?=%meta\s)")
"""Text that may precede ``%meta``."""

HOOK: Final = "complete_command"
"""The hook that IPython calls before it has matchers."""

Values = Mapping[str, Sequence[str]]
"""Options, each with the values that completion offers."""


class LineCompleter:
    """Completes lines of the magics while it is installed."""

    def __init__(
        self,
        shell: Any,
        options: Values,
        commands: Sequence[str],
        list_command_options: Callable[[], Values],
    ) -> None:
        """Install it.

        The first of the commands takes the path of a module, and has its own options.
        """
        self._shell = shell
        self._options = options
        self._commands = commands
        self._list_command_options = list_command_options
        if HAS_MATCHERS:
            ask = lambda context: self.match(context)  # noqa: E731, PLW0108  IPython sets attributes of it, which a method refuses
            self._matcher = context_matcher()(ask)
            shell.Completer.custom_matchers.append(self._matcher)
            return
        for magic in MAGICS:
            shell.set_hook(HOOK, self.answer_hook, str_key=magic)

    def remove(self) -> None:
        """Uninstall it."""
        if HAS_MATCHERS:
            self._shell.Completer.custom_matchers.remove(self._matcher)
            return
        for magic in MAGICS:
            self._shell.strdispatchers[HOOK].strs.pop(magic, None)

    def match(self, context: Any) -> dict[str, Any]:
        """Return completions as IPython's matchers do."""
        line = context.text_until_cursor
        is_body = context.cursor_line > 0 and line.startswith(MAGICS[0])
        typed, found = ("", []) if is_body else self.find(line)
        return {
            "completions": [SimpleCompletion(text, type="param") for text in found],
            "matched_fragment": typed,
            "suppress": bool({*found} - {*self._commands}),
        }

    def answer_hook(self, _shell: Any, event: Any) -> list[str]:
        """Return completions as IPython's hooks do, which cut words at ``=``."""
        typed, found = self.find(event.text_until_cursor)
        n_before = len(typed) - len(event.symbol)
        return [text[n_before:] for text in found]

    def find(self, line: str) -> tuple[str, list[str]]:
        """Return the last word of a line, and its completions."""
        *words, typed = ASSIGNED.sub("", line).split(" ")
        magic, *before = [*filter(None, words)] or [""]
        if magic not in MAGICS:
            return "", []
        is_command = magic == "%meta" and before[:1] == [self._commands[0]]
        options = self._list_command_options() if is_command else self._options
        option, equals, _ = typed.partition("=")
        if equals and option in options:
            found = [f"{option}={text}" for text in options[option]]
        elif before and options.get(before[-1]):
            found = [*options[before[-1]]]
        elif typed.startswith("-"):
            found = [*options]
        elif is_command and len(before) == 1:
            found = complete_path(self._shell.user_ns, typed)
        else:
            found = [*self._commands] if magic == "%meta" and not before else []
        return typed, [text for text in found if text.startswith(typed)]


MAX_LOOK: Final = 100
"""Items of a list or dict that are searched for a module."""


def complete_path(namespace: Mapping[str, Any], typed: str) -> list[str]:
    """Return the paths of modules that begin with the typed text, one level deeper.

    It searches only lists, dicts and modules, without calling methods of their classes:
    completion must not run the user's code.
    """
    if "torch" not in sys.modules:
        return []
    known = {
        name: value
        for name, value in list(namespace.items())
        if (typed[:1] == "_" or name[:1] != "_") and has_modules(value)
    }
    while True:
        inside = [path for path in known if typed.startswith((f"{path}.", f"{path}["))]
        if not inside:
            return [path for path in known if path.startswith(typed)]
        path = max(inside, key=len)
        known = {path + step: below for step, below in list_steps(known[path]).items()}


def list_steps(value: Any) -> dict[str, Any]:
    """Return the children of a module, list or dict by ``.name`` or ``[index]``."""
    from meta_magic.materializing.targets import write_step  # noqa: PLC0415  torch
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415
    from meta_magic.torch_private.module_internals import children_of  # noqa: PLC0415

    if not is_module(value):
        return {step: held for step, held in walk_held(value) if has_modules(held)}
    try:
        children = children_of(value)
    except AttributeError:  # its class did not call super().__init__()
        return {}
    return {write_step(value, n): m for n, m in children.items() if m is not None}


def has_modules(value: object) -> bool:
    """Whether a value is a module, or a list or dict that begins with modules."""
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415  torch

    if is_module(value):
        return True
    if not issubclass(type(value), list | tuple | dict):
        return False
    return any(is_module(held) for _, held in islice(walk_held(value), MAX_LOOK))


def is_module(value: object) -> bool:
    """Whether a value is a module; ``isinstance`` could run code of its class."""
    from torch import nn  # noqa: PLC0415  is there already

    return issubclass(type(value), nn.Module)


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


MAGIC = "%%meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCell:
    """The results of a cell."""

    trace: Any
    error: BaseException | None


class Shell(InteractiveShell):
    """A shell without windows: ``%matplotlib`` must not wait for one."""

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing."""


class NotebookShell:
    """Runs cells one after another, as a kernel does.

    ``line`` is the line of ``%%meta`` above each cell.
    """

    def __init__(self, path: Path, line: str) -> None:
        settings = Config()
        settings.HistoryManager.enabled = False
        settings.InteractiveShell.colors = "NoColor"
        self._shell: Any = Shell.instance(config=settings)
        load(self._shell)
        self._shell.magics_manager.registry["MetaMagics"].is_check = True
        self._line = line
        self._loop = asyncio.new_event_loop()
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))

    def run(self, text: str, number: int) -> RanCell:
        """Run a cell as ``In[number]``; an error is returned, not raised."""
        self._shell.execution_count = number
        names = self._shell.user_ns
        before = names.get("_meta")
        result = self._loop.run_until_complete(self._run(text))
        trace = names.get("_meta")
        return RanCell(
            trace=None if trace is before else trace,
            error=result.error_before_exec or result.error_in_exec,
        )

    async def _run(self, text: str) -> Any:
        """Run a cell under ``%%meta``, with its own line numbers."""
        is_own = text.lstrip().split(maxsplit=1)[:1] == [MAGIC]
        whole = text if is_own else f"{self._line}\n{text}"
        code, failed = text, None
        try:
            self._shell.transform_cell(text)  # raises for a cell that IPython refuses
            code = self._shell.transform_cell(whole)
        except Exception:  # noqa: BLE001  IPython reports it below
            failed = sys.exc_info()
        result = await self._shell.run_cell_async(
            text,
            store_history=True,
            transformed_cell=code,
            preprocessing_exc_tuple=failed,
        )
        self._shell.events.trigger("post_run_cell", result)
        return result
