"""Record a script, the call of a function, or the cells of a notebook, in this process.

The child process of ``meta-magic check train.py`` runs :func:`run_script`, that of
``meta-magic check pkg.model:step`` :func:`run_function`; both end in
:func:`record_block`. The cells of a notebook run under ``%%meta``, in their order
(:func:`run_notebook`); diagnostics name the line of the ``.ipynb`` file.
"""

import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import (
    decode_source,
    find_spec,
    module_from_spec,
    spec_from_file_location,
)
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from meta_magic.check.judging import Judge, judge_unstarted
from meta_magic.check.records import (
    BlockResult,
    Diagnostic,
    Request,
    Subject,
    read_subject,
)
from meta_magic.errors import CheckError, WorldError
from meta_magic.ranks.nursery import run_side_by_side
from meta_magic.ranks.recorded_ranks import enter_main, find_mismatches
from meta_magic.session.record import record
from meta_magic.session.recording import Recording
from meta_magic.trace.expectations import CHECK_SECONDS
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import (
    LIMITS,
    N_VALUES,
    Options,
    Rerun,
    ValueLimits,
    list_names,
    make_call_rerun,
    make_rerun,
)
from meta_magic.trace.trace import Trace
from meta_magic.trace.world import Peers, SentCalls, read_ranks, read_world
from meta_magic.trials.sandbox import Refused, enter_sandbox

if TYPE_CHECKING:
    from meta_magic.magic.extension import RanCell


def read_options(request: Request) -> Options:
    """Return the options of the recording.

    Raises:
        CheckError: One of the values is not valid.
    """
    settings = {n: v for n, v in request.settings.items() if n != "ranks"}
    limits = ValueLimits(seconds=pick_seconds(request))
    try:
        return record(limits=limits, **settings).options._replace(is_check=True)
    except ValueError as error:
        raise CheckError(str(error)) from None


def pick_seconds(request: Request) -> float:
    """Return the time limit of one value, so that all end before the child's does."""
    most = LIMITS.seconds * max(1, request.seconds / CHECK_SECONDS)
    return min(most, request.seconds / N_VALUES)


def start_sandbox(request: Request) -> list[str]:
    """Refuse writing files, network and processes from now on, with ``--sandbox``.

    Returns:
        Descriptions of what was refused; the list grows.
    """
    if not request.is_sandboxed:
        return []
    # The first call of each writes to the disk, which must not count as the program's.
    tempfile.gettempdir()
    torch.empty(1, device="meta").relu()
    return enter_sandbox()


def record_block(
    request: Request,
    file: str,
    namespace: dict[str, Any],
    block: Callable[[], object],
    reruns: Sequence[Rerun | None] = (),
    options: Options | None = None,
) -> tuple[BlockResult, Trace]:
    """Run a block under a recording, and return its results.

    Args:
        request: What was asked for.
        file: The file whose lines are reported.
        namespace: The variables of its module.
        block: Runs the code.
        reruns: When the block has run, its last entry holds what a second recording
            needs, for repairs.
        options: Options of the recording; None for those of the request.
    """
    options = read_options(request) if options is None else options
    recording = Recording(file, options=options, namespace=namespace)
    refused = start_sandbox(request)
    error: BaseException | None = None
    kept: list[object] = []  # keeps the returned model alive until it is described
    try:
        kept.append(recording.guard.run(block))
    except (Exception, SystemExit, KeyboardInterrupt, Refused) as raised:  # noqa: BLE001  the user's own
        is_success = isinstance(raised, SystemExit) and not raised.code
        error = None if is_success else raised
    rerun = reruns[-1] if reruns else None
    text = None if rerun is None else rerun.text
    source = CellSource(text=text or "", file=file)
    trace = recording.finish(error, namespace, source)
    return Judge(request, refused).judge(replace(trace, rerun=rerun), error), trace


def run_script(request: Request) -> Iterator[BlockResult]:
    """Run a script as ``python script.py`` or torchrun does; yield its parts."""
    settings = request.settings
    size = settings.get("world")
    if size is None:
        yield run_alone(request)[0]
        return
    try:
        path = request.subject.path
        code = "" if path is None else path.read_text("utf-8", errors="replace")
        ranks = read_ranks(settings["ranks"], size, code)
        seconds = request.seconds + request.grace
        results = run_side_by_side(
            run_rank, request, ranks, seconds, code, is_check=True
        )
    except (ValueError, WorldError) as error:
        raise CheckError(str(error)) from None
    for rank, (part, _) in results.items():
        yield replace(part, name=f"rank {rank}")
    found = find_mismatches({rank: sent for rank, (_, sent) in results.items()})
    file = str(request.subject.path)
    is_whole = all(part.outcome != "unchecked" for part, _ in results.values())
    if found and is_whole:
        diagnostics = tuple(
            Diagnostic(
                rule="hang",
                level="error",
                text=str(mismatch),
                file=file,
                line=mismatch.line,
            )
            for mismatch in found
        )
        yield BlockResult(
            name="ranks", outcome="error", file=file, diagnostics=diagnostics
        )


def run_rank(
    rank: int, peers: Peers, request: Request
) -> tuple[BlockResult, SentCalls]:
    """Run a script as one rank of a world; return its results and its collectives."""
    options = read_options(request)
    world = read_world(
        request.settings.get("world"), rank, request.settings.get("per_node")
    )
    part, trace = run_alone(request, options._replace(world=world, peers=peers))
    return part, SentCalls() if trace is None else trace.sent


def run_alone(
    request: Request, options: Options | None = None
) -> tuple[BlockResult, Trace | None]:
    """Run a script in this process; return its results."""
    path = cast("Path", request.subject.path)
    source = path.read_bytes()
    try:
        code: CodeType = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return judge_unstarted(error, str(path)), None
    main = enter_main(path, request.argv)
    rerun = make_rerun(
        text=decode_source(source),
        file=str(path),
        of_module=vars(main),
        variables=vars(main),
        names=list_names(code),
        # No other rank runs while an edit is tried.
        options=(options or read_options(request))._replace(peers=None),
    )
    return record_block(
        request,
        str(path),
        vars(main),
        lambda: exec(code, vars(main)),  # noqa: S102  what was asked for
        [rerun],
        options,
    )


def run_function(request: Request) -> Iterator[BlockResult]:
    """Import a module and call a function of it; yield its one part."""
    subject = request.subject
    sys.path.insert(0, str(Path.cwd() if subject.path is None else subject.path.parent))
    sys.argv = [subject.name]
    variables: dict[str, Any] = {}
    reruns: list[Rerun | None] = []

    def run() -> object:
        function = find_function(subject)
        arguments, keywords = find_arguments(request)
        check_call(function, arguments, keywords)
        if isinstance(function, FunctionType):
            given = inspect.signature(function).bind(*arguments, **keywords)
            given.apply_defaults()
            code, of_module = function.__code__, function.__globals__
            options = read_options(request)
            reruns.append(make_call_rerun(code, of_module, given.arguments, options))
        variables.update(getattr(function, "__globals__", {}))
        variables["result"] = value = function(*arguments, **keywords)
        return value

    yield record_block(request, find_file(subject), variables, run, reruns)[0]


def find_file(subject: Subject) -> str:
    """Return the file of a subject's module."""
    if subject.path is not None:
        return str(subject.path)
    try:
        spec = find_spec(subject.module)
    except ModuleNotFoundError:  # its package does not exist
        spec = None
    if spec is None:
        raise CheckError(f"there is no module {subject.module!r}")
    return spec.origin or ""


def find_function(subject: Subject) -> Callable[..., object]:
    """Import the module of a function, and return the function."""
    path = subject.path
    module = resolve_name(f"{subject.module}:") if path is None else load_file(path)
    try:
        function: object = attrgetter(subject.function)(module)
    except AttributeError:
        raise CheckError(
            f"{module.__name__!r} has no function {subject.function!r}"
        ) from None
    if not callable(function):
        raise CheckError(f"{subject.name} is no function, but {type(function)}")
    return function


def load_file(path: Path) -> ModuleType:
    """Import a file under its own name, as ``import file`` beside it would."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CheckError(f"{path.name} is no Python file")
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_arguments(request: Request) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call: of ``--args``, or what ``--factory`` returns."""
    given: Any = read_tensors(json.loads(request.arguments))
    if request.factory:
        given = find_function(read_subject(request.factory))()
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):  # noqa: PLR2004  both of them
        arguments, keywords = given
        return arguments, keywords
    if isinstance(given, Mapping):
        return (), given
    return (given if isinstance(given, (list, tuple)) else [given]), {}


def read_tensors(value: Any) -> Any:
    """Return JSON with a tensor for each ``{"shape": [2, 3], "dtype": "int64"}``."""
    if isinstance(value, list):
        return [read_tensors(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" not in value or not {*value} <= {"shape", "dtype"}:
        return {name: read_tensors(item) for name, item in value.items()}
    name = value.get("dtype", "float32")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckError(f"torch has no dtype {name!r}")
    return torch.zeros(value["shape"], dtype=dtype)


def check_call(
    function: Callable[..., object],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    """Refuse arguments that a function does not take."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        raise CheckError(
            f"the function cannot be called: {error}; give it arguments by --args or "
            "--factory"
        ) from None
    except ValueError:  # a function in C without a signature
        return


MAY_RAISE: Final = "raises-exception"
"""The tag of a cell that is expected to raise; ``nbclient`` has it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One code cell.

    Attributes:
        number: Among the code cells, from 1.
        text: Its source.
        lines: For each of its lines the line of the file; None where that is unknown.
        may_raise: Whether it is expected to raise.
    """

    number: int
    text: str
    lines: tuple[int | None, ...]
    may_raise: bool = False

    def find_line(self, line: int | None) -> int | None:
        """Return the line of the file for a line of the cell, from 1."""
        if line is None:
            return next(iter(self.lines), None)
        return self.lines[line - 1] if 0 < line <= len(self.lines) else None


def run_notebook(request: Request) -> Iterator[BlockResult]:
    """Run the cells; yield a part for each recorded one, up to the first that fails."""
    path = cast("Path", request.subject.path)
    if request.checks_contents:
        raise CheckError(
            "--init checks scripts and functions: of a notebook, a later cell may "
            "initialize what an earlier one built"
        )
    cells = read_cells(path)
    read_options(request)
    from meta_magic.magic.extension import NotebookShell  # noqa: PLC0415  imports IPython

    os.chdir(path.parent)  # as a kernel does
    shell = NotebookShell(path, write_line(request))
    cell_lines = CellLines(str(path))
    judge = Judge(request, start_sandbox(request), cell_lines)
    for cell in cells:
        if not cell.text.strip():
            continue
        ran = shell.run(cell.text, cell.number)
        cell_lines.add(cell, ran)
        part = judge_cell(judge, cell, ran, cell_lines)
        if part is not None:
            yield part
        if part is not None and part.outcome != "right" and ran.error is not None:
            return


def write_line(request: Request) -> str:
    """Return the line of ``%%meta`` with the options of the command."""
    settings = request.settings
    arguments = ["%%meta", "--quiet", "--named", settings["named"]]
    arguments += ["--value-seconds", f"{pick_seconds(request):g}"]
    if settings["as_device"] is not None:
        arguments += ["--as", settings["as_device"]]
    if settings.get("world") is not None:
        arguments += [
            "--world",
            str(settings.get("world")),
            "--rank",
            settings["ranks"],
        ]
    if settings.get("per_node") is not None:
        arguments += ["--per-node", str(settings.get("per_node"))]
    for text in settings["assume"]:
        arguments += ["--assume", text]
    if settings.get("dims"):
        arguments += ["--dims", settings["dims"]]
    wrong = settings.get("check", False)
    arguments += ["--check", *([wrong] if isinstance(wrong, str) else [])] * bool(wrong)
    return " ".join([*arguments, *["--check-values"] * settings["check_values"]])


class CellLines:
    """Finds the line of the notebook's file for a line of a cell that ran."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._cells: dict[str, Cell] = {}

    def add(self, cell: Cell, ran: "RanCell") -> None:
        """Keep the file name that a cell was compiled under."""
        if ran.trace is not None:
            self._cells[ran.trace.cell.file] = cell

    def __call__(
        self, file: str | None, line: int | None
    ) -> tuple[str | None, int | None]:
        """Return file and line to report for a line of a recorded file."""
        cell = self._cells.get(file or "")
        if cell is None:
            return file, line
        return self.path, cell.find_line(line)


def judge_cell(
    judge: Judge, cell: Cell, ran: "RanCell", cell_lines: CellLines
) -> BlockResult | None:
    """Return the results of a cell; None if it ran without a recording."""
    error = None if cell.may_raise else ran.error
    name = f"cell {cell.number}"
    if ran.trace is not None:
        return judge.judge(ran.trace, error, name)
    if error is None:
        return None
    line = getattr(error, "lineno", None) or 1
    return judge_unstarted(error, cell_lines.path, cell.find_line(line), name)


def read_cells(path: Path) -> tuple[Cell, ...]:
    """Return the code cells of a notebook."""
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        found = list(find_cells(notebook))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise CheckError(f"the notebook cannot be read ({kind}: {error})") from None
    language = find_language(notebook)
    if language != "python":
        raise CheckError(f"its kernel runs {language!r}, not Python")
    lines = locate_lines(text, [source for source, _ in found])
    return tuple(
        Cell(number=number, text="".join(source), lines=own, may_raise=may_raise)
        for number, ((source, may_raise), own) in enumerate(
            zip(found, lines, strict=True), start=1
        )
    )


def find_language(notebook: dict[str, Any]) -> str:
    """Return the language of a notebook's kernel; Python where none is named."""
    metadata = notebook.get("metadata", {})
    named = (
        metadata.get("language_info", {}).get("name"),
        metadata.get("kernelspec", {}).get("language"),
        "python" if "python" in str(metadata.get("kernelspec", {}).get("name")) else "",
    )
    language = str(next(filter(None, named), "python")).lower()
    return "python" if language in {"python", "ipython"} else language


def find_cells(notebook: dict[str, Any]) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of each code cell, and whether it may raise.

    Before format 4 a notebook has ``worksheets``, and ``input`` instead of ``source``.
    """
    sheets = notebook.get("worksheets", [notebook])
    for sheet in sheets:
        for cell in sheet["cells"]:
            if cell["cell_type"] == "code":
                source = cell.get("source", cell.get("input", ""))
                tags = cell.get("metadata", {}).get("tags", ())
                yield "".join(source).splitlines(keepends=True), MAY_RAISE in tags


def locate_lines(
    text: str, sources: Sequence[Sequence[str]]
) -> Iterator[tuple[int | None, ...]]:
    """Yield for each cell the line of the file of each of its lines."""
    known = [line.strip(" \t,") for line in text.splitlines()]
    start = 0
    for source in sources:
        found: list[int | None] = []
        for line in source:
            options = json.dumps(line), json.dumps(line, ensure_ascii=False)
            rest = range(start, len(known)) if None not in found else ()
            at = next((n for n in rest if known[n] in options), None)
            start = start if at is None else at + 1
            found.append(None if at is None else at + 1)
        yield tuple(found)
