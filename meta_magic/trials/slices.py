"""The statements of earlier cells, and the modules of the user, that a block rests on.

A notebook defines a class in one cell, builds the model in the next, and calls it in a
third. If the call fails, the mistake is often in the first. So the statements of
earlier cells that bind what the block reads are put before its text, and the whole is
recorded again as one block: whatever explains a block then explains a notebook. Read
:func:`join_slice` first.
"""

import ast
import importlib.util
import linecache
import site
import struct
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Final, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from torch import nn
from torch.optim import Optimizer

from meta_magic.errors import TrialError
from meta_magic.session.operand_names import is_shells
from meta_magic.trace.notes import EarlierCell, name_cell
from meta_magic.trace.options import ModuleText, Rerun, keep, list_names, walk_codes
from meta_magic.trace.program import MODULE_HEADER, MODULE_LINE
from meta_magic.trace.signature import SourcePosition
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import end_with_value, find_bound, split_block
from meta_magic.trials.statements import (
    IMPORTS,
    Chosen,
    Statement,
    choose_statements,
    read_enclosing,
    read_statements,
)

MAX_CELLS: Final = 200
"""How many cells back the statements are looked for."""

MAX_MODULES: Final = 20
MAX_LINES: Final = 20_000
"""How many modules of the user, and how many lines, the whole text may have."""

FILE: Final = "<cells>"
"""The file name under which the whole text runs."""


class SourcePart(NamedTuple):
    """A cell or a file in the whole text.

    Attributes:
        name: What messages call it: ``In[2]``, ``models/net.py``; "" for the block.
        first: Its first line in the whole text, from 1.
        path: Path of a file; "" for a cell.
    """

    name: str
    first: int
    typed: str
    path: str = ""


class Slice(NamedTuple):
    """A block with all that it rests on, as one block.

    Attributes:
        parts: Modules, then cells, then the block itself.
        names: The names in the code before the block.
        used: Names of variables that are used as they are, not made again.
        skipped: Lines of slow code that is left out, such as a training loop.
        is_cut: Whether older cells, which may have made ``used``, were not read.
    """

    rerun: Rerun
    parts: tuple[SourcePart, ...]
    names: frozenset[str]
    used: tuple[str, ...]
    skipped: tuple[str, ...]
    is_cut: bool

    def describe_limits(self, *but: str) -> str:
        """Return sentences on what does not run again, without some variables."""
        names = ", ".join(name for name in self.used if name not in but)
        limits = [f"used as it is, not made again: {names}"] if names else []
        if names and self.is_cut:
            limits.append(f"only the last {MAX_CELLS} cells were read")
        if self.skipped:
            limits.append(f"took long, not run again: {', '.join(self.skipped)}")
        return "; ".join(limits)

    @property
    def typed(self) -> str:
        """The whole text as the user typed it."""
        return "\n".join(part.typed for part in self.parts)

    @property
    def n_above(self) -> int:
        """How many lines are above the cell or the file that has the block."""
        return self.parts[-1].first - 1

    def find(self, line: int) -> tuple[SourcePart, int]:
        """Return the part that has a line, and the line's number in it."""
        part = [one for one in self.parts if one.first <= line][-1]
        return part, line - part.first + 1

    def say(self, line: int) -> str:
        """Return a line as messages say it: ``line 3``, or ``In[2], line 6``."""
        part, own = self.find(line)
        return f"{part.name}, line {own}" if part.name else f"line {own}"


def restore_lines(again: Trace, trace: Trace, joined: Slice | None) -> Trace:
    """Return a recording of a trace's block with the trace's text, at its lines."""
    program = again.program
    if joined is None:
        return replace(again, cell=trace.cell)
    files = {name_cell(at.file): at.file for at in trace.program.positions}
    files |= {"": trace.rerun.file if trace.rerun else ""}

    def restore(at: SourcePosition | None) -> SourcePosition | None:
        if at is None or at.file != FILE:
            return at
        part, line = joined.find(at.line)
        file = part.path or files.get(part.name, FILE)
        return replace(at, file=file, line=line, end_line=line + at.end_line - at.line)

    def find_line(line: int | None) -> int | None:
        return line - joined.n_above if line and line > joined.n_above else None

    calls = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    calls = calls.copy()
    lines = calls[:, MODULE_LINE]
    calls[:, MODULE_LINE] = np.maximum(lines, joined.n_above) - joined.n_above
    sites = (
        replace(one, position=restore(one.position), line=find_line(one.line))
        for one in program.call_sites
    )
    restored = replace(
        program,
        module_rows=calls.tobytes(),
        call_sites=tuple(sites),
        positions=tuple(restore(one) or one for one in program.positions),
    )
    notes = (replace(n, line=find_line(n.line), lines=()) for n in again.recorded_notes)
    return replace(
        again, program=restored, cell=trace.cell, recorded_notes=tuple(notes)
    )


class Source(NamedTuple):
    """A cell, or the file that has the block, before it is a part.

    Attributes:
        text: Its statements that run again, at their lines.
        own_line: The line of the block, if it has the block; else 0.
    """

    name: str
    typed: str
    text: str
    path: str = ""
    own_line: int = 0


def join_slice(trace: Trace) -> Slice | None:
    """Return a block with the statements before it that it rests on, if any."""
    rerun = trace.rerun
    if rerun is None:
        return None
    read = _read_file(rerun) if rerun.text is None else _read_cells(rerun, trace)
    if read is None:
        return None
    sources, chosen = read
    modules = [*find_modules("\n".join(one.text for one in sources))]
    names = dict.fromkeys([*chosen.kept, *sorted(chosen.unbound)])
    used = tuple(name for name in names if _is_data(name, rerun))
    earlier = rerun.earlier[-MAX_CELLS:]
    skipped = (f"{earlier[one.cell].name}, line {one.first}" for one in chosen.skipped)
    return _join(rerun, modules, sources, names, used, tuple(skipped))


def describe_alone(trace: Trace) -> str:
    """Return which variables a block uses as they are if it runs without others."""
    rerun = trace.rerun
    names = () if rerun is None else sorted(rerun.names & {*rerun.before})
    used = [name for name in names if rerun and _is_data(name, rerun)]
    return f"used as it is, not made again: {', '.join(used)}" if used else ""


def _find_trained(rerun: Rerun) -> frozenset[str]:
    """Return the names of models and optimizers."""
    variables = dict(vars(sys.modules[rerun.module]))
    for name, former in rerun.before.items():
        with suppress(LookupError):
            variables[name] = former.read()
    kinds = (nn.Module, Optimizer)
    return frozenset(n for n, value in variables.items() if isinstance(value, kinds))


def _is_data(name: str, rerun: Rerun) -> bool:
    """Whether a name is a variable of the user, and no module or code of a library."""
    former = rerun.before.get(name)
    try:
        value = vars(sys.modules[rerun.module])[name] if former is None else former
        value = former.read() if former is not None else value
    except LookupError:  # it is gone, or was never there
        return former is not None
    name_of_module = getattr(value, "__module__", None) or ""
    module = sys.modules.get(name_of_module)
    is_library = (
        isinstance(value, (FunctionType, BuiltinFunctionType, type))
        and name_of_module != rerun.module
        and not (module is not None and is_own(module))
    )
    return not (is_shells(name) or isinstance(value, ModuleType) or is_library)


Read: TypeAlias = tuple[list[Source], Chosen]
"""Sources, and what the block rests on."""


def _read_cells(rerun: Rerun, trace: Trace) -> Read | None:
    """Return the cells that a cell rests on, and the cell itself."""
    cell = trace.cell
    typed = cell.head + trace.source if cell.first_line > 1 else trace.source
    own = EarlierCell("", typed, read=lambda _: rerun.text or "")
    cells = [*rerun.earlier[-MAX_CELLS:], own]
    texts = [one.read(one.typed) for one in cells]
    statements = [*_walk_statements(cells, texts)]
    chosen = choose_statements(statements, len(cells) - 1, trained=_find_trained(rerun))
    own_text = _blank(texts[-1], len(cells) - 1, chosen.statements)
    sources = [*_blank_all(cells[:-1], texts[:-1], chosen)]
    return [*sources, Source("", typed, own_text, own_line=1)], chosen


def _read_file(rerun: Rerun) -> Read | None:
    """Return a block's file, and of a plain cell earlier cells, that it rests on."""
    cells = _list_earlier(rerun.file)
    texts = [one.read(one.typed) for one in cells]
    earlier = [*_walk_statements(cells, texts)]
    try:
        found = read_enclosing(rerun, _find_trained(rerun), earlier, len(cells))
    except TrialError:  # it is not known which context is the recording
        found = None
    if found is None:
        return None
    path = rerun.file if Path(rerun.file).is_file() else ""
    source = Source("", found.typed, found.text, path, found.own_line)
    return [*_blank_all(cells, texts, found.chosen), source], found.chosen


def _list_earlier(file: str) -> list[EarlierCell]:
    """Return the cells that ran before a plain cell, by the shell's own history."""
    own = name_cell(file)
    if not own:
        return []
    shell = import_module("IPython").get_ipython()
    history = import_module("meta_magic.magic.cell").History(shell)
    cells: list[EarlierCell] = history.cells
    names = [one.name for one in cells]
    return cells[: names.index(own) if own in names else None][-MAX_CELLS:]


def _blank_all(
    cells: Sequence[EarlierCell], texts: Sequence[str], chosen: Chosen
) -> Iterator[Source]:
    """Yield the cells that have statements which run again."""
    for number, (cell, text) in enumerate(zip(cells, texts, strict=True)):
        blanked = _blank(text, number, chosen.statements)
        if blanked.strip():
            yield Source(cell.name, cell.typed, blanked)


def _walk_statements(
    cells: Sequence[EarlierCell], texts: Sequence[str]
) -> Iterator[Statement]:
    """Yield the statements of cells that ran; one that raised does not run again."""
    for number, (cell, text) in enumerate(zip(cells, texts, strict=True)):
        for one in read_statements(text, cell.seconds):
            has_raised = 0 < cell.failed_line <= one.last
            can_run = one.is_repeatable and not has_raised
            if not has_raised or one.first <= cell.failed_line:
                yield one._replace(cell=number, is_repeatable=can_run)


def _join(
    rerun: Rerun,
    modules: Sequence[ModuleType],
    sources: Sequence[Source],
    given: Collection[str],
    used: tuple[str, ...],
    skipped: tuple[str, ...],
) -> Slice | None:
    """Return modules and sources as one block; None where there is only the block."""
    parts, texts, spans, line = [], [], [], 1
    for module in modules:
        path = str(module.__file__)
        text = "".join(linecache.getlines(path)).rstrip("\n")
        parts.append(SourcePart(shorten_path(path), line, text, path))
        texts.append(text)
        spans.append(ModuleText(module.__name__, line, line + text.count("\n")))
        line = spans[-1].last + 1
    n_before = line - 1
    for one in sources:
        typed = one.typed.rstrip("\n").split("\n")
        lines = one.text.rstrip("\n").split("\n")
        n_lines = max(len(typed), len(lines))
        texts.append("\n".join(lines + [""] * (n_lines - len(lines))))
        both = "\n".join(typed + [""] * (n_lines - len(typed)))
        parts.append(SourcePart(one.name, line, both, one.path))
        line += n_lines
    own_line = parts[-1].first + sources[-1].own_line - 1
    try:
        own = ast.parse("\n" * n_before + "\n".join(texts[len(modules) :]))
        end_with_value(own.body)
        names = list_names(compile(own, FILE, "exec"))
        above, _ = split_block(own, own_line)
        before = compile(above, FILE, "exec")
    except (SyntaxError, ValueError):
        return None
    if line > MAX_LINES or not (modules or list_names(before)):
        return None
    variables = vars(sys.modules[rerun.module])
    others = {n: keep(variables[n]) for n in names if n in variables}
    # A name that these cells bind does not exist before them: ``a, b = 3, a`` fails.
    made = find_bound(above) - {*given}
    there = {**others, **rerun.before}
    joined = replace(
        rerun,
        text="\n".join(texts),
        file=FILE,
        names=names,
        before={n: one for n, one in there.items() if n not in made},
        modules=tuple(spans),
        own_line=own_line,
    )
    is_cut = len(rerun.earlier) > MAX_CELLS
    return Slice(joined, tuple(parts), list_names(before), used, skipped, is_cut)


def _blank(text: str, cell: int, chosen: Sequence[Statement]) -> str:
    """Return a cell's text with the lines of chosen statements; others are empty."""
    own = [one for one in chosen if one.cell == cell]
    lines = {n for one in own for n in range(one.first, one.last + 1)}
    listed = enumerate(text.split("\n"), 1)
    return "\n".join(line if n in lines else "" for n, line in listed)


def find_modules(text: str) -> Iterator[ModuleType]:
    """Yield the modules of the user that a text imports, those that they import first.

    A module whose file was changed since it was imported is left out.
    """
    found: dict[str, ModuleType] = {}

    def visit(code: str, package: str) -> None:
        for name in list_imported(code, package):
            module = sys.modules.get(name)
            if name in found or len(found) > MAX_MODULES or not is_own(module):
                continue
            found[name] = module  # a circle ends here
            lines = linecache.getlines(str(module.__file__))
            visit("".join(lines), str(module.__package__ or ""))
            found[name] = found.pop(name)

    visit(text, "")
    yield from found.values()


def list_imported(code: str, package: str) -> list[str]:
    """Return the full names of modules that a text may import."""
    try:
        nodes = [one for one in ast.walk(ast.parse(code)) if isinstance(one, IMPORTS)]
    except SyntaxError:
        return []
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            continue
        dots = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(dots, package) if node.level else dots
        except ImportError:
            continue
        names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parents = [
        name.rsplit(".", n)[0] for name in names for n in range(name.count("."), 0, -1)
    ]
    return [*dict.fromkeys([*parents, *names])]


def is_own(module: object) -> TypeGuard[ModuleType]:
    """Whether a module is a file of the user that is as it was when it was imported."""
    if type(module) is not ModuleType:
        return False
    path = getattr(module, "__file__", None)  # a built-in module has none
    if not path or not path.endswith(".py"):
        return False
    is_installed = any(Path(path).is_relative_to(folder) for folder in list_installed())
    if is_installed or module.__name__ == "__main__":
        return False
    return is_unchanged(module, path)


def is_unchanged(module: ModuleType, path: str) -> bool:
    """Whether a file is as it was when it was imported.

    It is not older than the bytecode that was written then, if any was, and has the
    code of the module's functions and methods.
    """
    return not _is_newer(module, path) and _has_code(module, path)


def _is_newer(module: ModuleType, path: str) -> bool:
    """Whether a file differs from what its bytecode says of it."""
    cached = getattr(module, "__cached__", None)
    try:
        header = Path(cached).read_bytes()[:16] if cached else b""
        then = struct.unpack("<II", header[8:])
        now = Path(path).stat()
    except (OSError, struct.error):
        return False
    is_by_time = header[4:8] == bytes(4)
    seconds, nbytes = int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF
    return is_by_time and then != (seconds, nbytes)


def _has_code(module: ModuleType, path: str) -> bool:
    """Whether a file's text has the code of a module's functions and methods."""
    loader = getattr(module.__spec__, "loader", None)
    if not isinstance(loader, SourceFileLoader | None):
        return True  # it changed the code, as pytest changes assertions
    try:
        text = "".join(linecache.getlines(path))
        whole = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    classes = [one for one in vars(module).values() if isinstance(one, type)]
    held = [*vars(module).values(), *(v for one in classes for v in vars(one).values())]
    codes = [one.__code__ for one in held if isinstance(one, FunctionType)]
    known = {*map(_summarize, walk_codes(whole))}
    return all(_summarize(one) in known for one in codes if one.co_filename == path)


def _summarize(code: CodeType) -> tuple[object, ...]:
    """Return what a function does, and at which lines."""
    constants = [one for one in code.co_consts if not isinstance(one, CodeType)]
    lines = code.co_firstlineno, code.co_linetable
    return code.co_name, *lines, code.co_code, code.co_names, repr(constants)


def find_edited(files: Collection[str]) -> set[str]:
    """Return those of some files that are not as they were when they were imported."""
    known = {path for path in files if Path(path).is_file()}
    modules = [one for one in [*sys.modules.values()] if type(one) is ModuleType]
    named = [(one, str(vars(one).get("__file__"))) for one in modules if known]
    return {
        path for one, path in named if path in known and not is_unchanged(one, path)
    }


@lru_cache(1)
def list_installed() -> tuple[str, ...]:
    """Return the folders of Python's library and of installed packages."""
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages()]
    own = Path(__file__).parents[1]
    return (*folders, site.getusersitepackages(), str(own))


def shorten_path(path: str) -> str:
    """Return a path as messages show it: from the working directory, if below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name
