"""Record a script, or the call of a function, in this process.

The child process of ``meta-magic check train.py`` runs :func:`run_script`, that of
``meta-magic check pkg.model:step`` :func:`run_function`; both end in
:func:`record_block`.
"""

import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from typing import Any, cast

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
