"""The command ``meta-magic check``: read its line, run each subject, print, exit.

Read :func:`check` first. This process imports no torch: ``meta-magic check --help``
must answer at once.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from meta_magic.check.baselines import (
    Baseline,
    add_changes,
    read_baseline,
    write_baseline,
)
from meta_magic.check.checked_process import check_subject
from meta_magic.check.diff_and_fit import add_arguments, add_fit_arguments, diff, fit
from meta_magic.check.outputs import (
    format_total,
    format_verdict,
    render_json,
    render_junit,
    render_sarif,
)
from meta_magic.check.records import (
    Request,
    Verdict,
    make_unchecked,
    pick_exit_code,
    read_subject,
)
from meta_magic.errors import BudgetError, CheckError, ExerciseError, hint_at
from meta_magic.trace.expectations import QUANTITIES, parse_amount, parse_budget
from meta_magic.trace.progress import show_line
from meta_magic.trace.units import format_bytes

UNCHECKED: Final = 2
INTERRUPTED: Final = 130
"""The exit code by which shells report an interrupted command."""

LEAST_NBYTES: Final = 2**29
"""The memory that Python and torch need for themselves."""

WRONG_WITHOUT_BATCH: Final = "--wrong="
"""How ``--wrong`` is handed to the parser where no batch is named."""

EXIT_CODES: Final = (
    "Exit codes: 0 all is right; 1 a program fails, or is over its budget; 2 something "
    "cannot be checked, with the reason."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Args:
        argv: The line, without the command's own name; None for that of this process.
    """
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = make_parser().parse_known_args(join_wrong(arguments[:at]))
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    argv = tuple(arguments[at + 1 :])
    try:
        if options.command == "class":
            from meta_magic.teach import exercises  # noqa: PLC0415  needs torch

            notebook = Path(options.notebook)
            return (
                exercises.build(notebook, Path(options.out))
                if options.task == "build"
                else exercises.grade_folder(Path(options.folder), notebook)
            )
        command = {"diff": diff, "fit": fit}.get(options.command)
        if command is not None:
            return command(options, make_requester(options, argv))
        return check(options, argv)
    except BrokenPipeError:  # who reads the output, as `head`, has enough
        return UNCHECKED
    except (BudgetError, CheckError, ExerciseError, OSError) as error:
        print(f"meta-magic {options.command}: {error}", file=sys.stderr)  # noqa: T201  a command
        return UNCHECKED
    except KeyboardInterrupt:
        return INTERRUPTED


def join_wrong(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``--wrong`` and ``batch=NAME`` joined to one.

    ``argparse`` could not distinguish an optional ``batch=NAME`` from a path.
    """
    joined: list[str] = []
    for one in arguments:
        if joined[-1:] == [WRONG_WITHOUT_BATCH] and one.startswith("batch="):
            joined[-1] = f"--wrong={one}"
        else:
            joined.append(WRONG_WITHOUT_BATCH if one == "--wrong" else one)
    return joined


def check(options: argparse.Namespace, argv: tuple[str, ...]) -> int:
    """Check all subjects of a line; return the exit code.

    Raises:
        BudgetError: The budget cannot be read.
        CheckError: The baseline or an argument cannot be read.
        OSError: A file cannot be written.
    """
    request, before = make_requester(options, argv), read_before(options)
    verdicts = []
    for verdict in run_all(options, request):
        verdicts.append(add_changes(verdict, before))
        if not options.json:
            print(format_verdict(verdicts[-1]), flush=True)  # noqa: T201  a command
    if options.json:
        print(render_json(verdicts))  # noqa: T201  as well
    elif len(verdicts) > 1:
        print(format_total(verdicts))  # noqa: T201  as well
    write_files(options, verdicts)
    if options.update:
        write_baseline(Path(options.baseline), verdicts, before)
    return pick_exit_code(verdicts)


class Parser(argparse.ArgumentParser):
    """Names the word of its help that is nearest to an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Exit with a message."""
        unknown = re.search(r"(?:arguments: |choice: ')([\w-]+)", message)
        words = re.findall(r"[\w-]+", self.format_help())
        super().error(message + (hint_at(unknown[1], words) if unknown else ""))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="meta-magic", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser(
        "check",
        allow_abbrev=False,
        help="run programs on torch's meta device and report errors",
        description="Run scripts, notebooks and functions without data, memory or a "
        "GPU, and report what is wrong with them.",
        epilog=EXIT_CODES,
    )
    add_class_parser(commands)
    checked.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="script.py, notebook.ipynb, pkg.module:function or file.py:function; "
        "write the arguments of a script after --",
    )
    add_run_options(checked.add_argument_group("how to run it").add_argument)
    add_output_options(checked.add_argument_group("what to do with the results"))
    compared = commands.add_parser(
        "diff",
        allow_abbrev=False,
        help="say what one design changes in another",
        description="Record two programs, match their modules, and print what differs: "
        "modules, numbers, parameters, FLOPs, memory.",
        epilog="Exit codes: 0 nothing differs; 1 something does; 2 one cannot be read.",
    )
    add_arguments(compared)
    add_run_options(compared.add_argument_group("how to run them").add_argument)
    fitted = commands.add_parser(
        "fit",
        allow_abbrev=False,
        help="say how much memory a program needs, and which accelerators have it",
        description="Record a program, or training and inference of a model's config; "
        "print the memory at the peak, and the smallest accelerators that have room.",
    )
    add_fit_arguments(fitted)
    add_run_options(fitted.add_argument_group("how to run it").add_argument)
    for one in commands.choices.values():
        one.set_defaults(parser=one)
    return parser


def add_class_parser(commands: Any) -> None:
    """Add the commands for classes; ``teach/exercises.py`` runs them."""
    parser = commands.add_parser("class", help="build and grade exercises")
    tasks = parser.add_subparsers(dest="task", required=True)
    made = tasks.add_parser("build", help="check a notebook, and hide its solutions")
    made.add_argument("notebook", help="the teacher's notebook")
    made.add_argument("-o", "--out", required=True, help="folder of the learner's copy")
    graded = tasks.add_parser("grade", help="write a table of grades, as CSV")
    graded.add_argument("folder", help="learners' notebooks, at any depth")
    graded.add_argument("--notebook", required=True, help="with the exercises")


def add_run_options(add: Callable[..., Any]) -> None:
    """Add the options for recording, arguments and limits."""
    add(
        "--as",
        dest="as_device",
        metavar="DEVICE",
        help="record the kernels of this device: cpu (default) or cuda",
    )
    add(
        "--world",
        type=int,
        metavar="N",
        help="run a script as one of N processes, as torchrun would start them",
    )
    add(
        "--ranks",
        metavar="RANKS",
        help='ranks to run: "0,7", all, or differing (the first two, the last, '
        "those that the script names, each that a recorded rank waits for); a hang is "
        "an error (default: 0)",
    )
    add(
        "--per-node",
        type=int,
        metavar="N",
        help="processes of one machine (default: 8, or all if fewer)",
    )
    add(
        "--named",
        default="plan",
        metavar="MEANING",
        help="meaning of a device that the program names: plan (all stays on meta) or "
        "real",
    )
    add(
        "--assume",
        action="append",
        default=[],
        metavar="WHAT",
        help="assume this of unknown values: values=nan, routing=uniform, ...",
    )
    add(
        "--check-values",
        action="store_true",
        help="compute indices and classes, and report those out of range",
    )
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit of each program (default: 300)",
    )
    add(
        "--memory",
        type=read_nbytes,
        default=psutil.virtual_memory().total // 2,
        metavar="SIZE",
        help="memory limit of each program, on Linux: 8GB (default: half of this "
        "machine's)",
    )
    add(
        "--sandbox",
        action="store_true",
        help="refuse to write files, to use the network, and to start processes",
    )
    add(
        "--args",
        default="[]",
        metavar="JSON",
        help="arguments of functions: a list or an object; a tensor is "
        '{"shape": [2, 3], "dtype": "int64"}; @FILE reads a file',
    )
    add(
        "--factory",
        default="",
        metavar="MODULE:FUNCTION",
        help="function that returns the arguments: a tuple, a dict, or both as a pair",
    )


def add_output_options(group: Any) -> None:
    """Add the options for budgets, baselines and files."""
    add = group.add_argument
    add(
        "--budget",
        default="",
        metavar="LIMITS",
        help='"params<7e9, peak_nbytes<80GB": fail what takes more of '
        + ", ".join(QUANTITIES),
    )
    add(
        "--init",
        action="store_true",
        help="report the parameters and buffers that nothing initialized, and those "
        "that hold another kind of values than their constructor gave",
    )
    add(
        "--wrong",
        metavar="[batch=NAME]",
        help="report likely mistakes of programs that run, too, such as a softmax over "
        "the batch; with batch=B also the first call that mixes the samples of a batch "
        "of size B; `# meta: ok` at the end of a line silences it",
    )
    add(
        "--dims",
        default="",
        metavar="NAMES",
        help="show shapes by these names of sizes: B,T,D, B=8 for a number, or auto",
    )
    add("--baseline", metavar="FILE", help="report what changed since FILE was written")
    add("--update", action="store_true", help="write the results to the baseline")
    add("--depth", type=int, default=1, metavar="N", help="levels of modules to show")
    add("--json", action="store_true", help="print JSON")
    add("--junit", metavar="FILE", help="write JUnit XML")
    add("--sarif", metavar="FILE", help="write SARIF, which annotates lines")
    add("--html", metavar="FILE", help="write the report; FILE-2 for the second one")
    add("--verbose", action="store_true", help="show what programs print")


def read_nbytes(text: str) -> int:
    """Return the number of bytes of a text such as 8GB.

    Raises:
        argparse.ArgumentTypeError: It is no such text, or too little.
    """
    nbytes = parse_amount(text)
    if nbytes is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 8GB")
    if nbytes < LEAST_NBYTES:
        least = format_bytes(LEAST_NBYTES)
        raise argparse.ArgumentTypeError(f"{text!r} is too little: at least {least}")
    return int(nbytes)


def make_requester(
    options: argparse.Namespace, argv: tuple[str, ...]
) -> Callable[..., Request]:
    """Return a function that makes the request for a subject.

    Raises:
        BudgetError: The budget cannot be read.
        CheckError: The arguments are no JSON.
    """
    given = vars(options).get  # only ``check`` has options for results
    budget, wrong = given("budget", ""), given("wrong")
    if options.ranks is not None and options.world is None:
        raise CheckError("--ranks needs --world: how many processes are there?")
    return partial(
        Request,
        argv=argv,
        arguments=read_arguments(options.args),
        factory=options.factory,
        settings={
            "as_device": options.as_device,
            "named": options.named,
            "assume": options.assume,
            "check_values": options.check_values,
            "check": wrong is not None and (wrong or True),
            "dims": given("dims", ""),
            "world": options.world,
            "ranks": options.ranks or "0",
            "per_node": options.per_node,
        },
        limits=parse_budget(budget) if budget else (),
        seconds=options.timeout,
        nbytes=options.memory,
        is_sandboxed=options.sandbox,
        depth=given("depth", 1),
        has_page=given("html") is not None,
        has_design=given("baseline") is not None,
        checks_contents=bool(given("init")),
    )


def read_arguments(text: str) -> str:
    """Return the JSON of ``--args``, which may be in a file."""
    try:
        text = Path(text[1:]).read_text("utf-8") if text.startswith("@") else text
        json.loads(text)
    except (OSError, ValueError) as error:
        raise CheckError(f"--args is no JSON: {error}") from None
    return text


def read_before(options: argparse.Namespace) -> Baseline:
    """Return the baseline that the line names, or an empty one."""
    if options.baseline is None:
        if options.update:
            raise CheckError("--update needs the file that --baseline names")
        return {}
    path = Path(options.baseline)
    is_new = options.update and not path.exists()
    return {} if is_new else read_baseline(path, is_rewritten=options.update)


def run_all(
    options: argparse.Namespace, request: Callable[..., Request]
) -> Iterator[Verdict]:
    """Check one subject after another, with a line of progress on a terminal."""
    for number, name in enumerate(options.paths, start=1):
        title = f"{number}/{len(options.paths)} {name}"
        show_line(title)
        show = partial(show_value, title)
        try:
            asked = request(subject=read_subject(name))
            verdict = check_subject(asked, show, is_verbose=options.verbose)
        except CheckError as error:
            verdict = Verdict(name=name, parts=(make_unchecked(str(error)),))
        finally:
            show_line("")
        yield verdict


def show_value(title: str, line: str) -> None:
    """Show how far the computation of a value is."""
    show_line(f"{title}  {line}" if line else title)


def write_files(options: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Write the files of ``--junit``, ``--sarif`` and ``--html``."""
    if options.junit is not None:
        Path(options.junit).write_text(render_junit(verdicts), encoding="utf-8")
    if options.sarif is not None:
        log = render_sarif(verdicts, Path.cwd())
        Path(options.sarif).write_text(log, encoding="utf-8")
    if options.html is not None:
        path = Path(options.html)
        pages = [part.page for v in verdicts for part in v.parts if part.page]
        for number, page in enumerate(pages, start=1):
            name = path.name if number == 1 else f"{path.stem}-{number}{path.suffix}"
            path.with_name(name).write_text(page, encoding="utf-8")
