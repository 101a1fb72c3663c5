"""The options of ``meta-magic check``, and what they ask of a child."""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from meta_magic.check.verdicts import Request
from meta_magic.errors import CheckError
from meta_magic.trace.expectations import QUANTITIES, parse_amount, parse_budget
from meta_magic.trace.units import format_bytes

__all__ = ["make_parser", "make_request", "split_line"]

LEAST_NBYTES: Final = 2**29
"""What Python and torch take for themselves."""

EXIT_CODES: Final = (
    "Exit codes: 0 all is right; 1 a program fails, or is over its budget; 2 something "
    "cannot be checked, with the reason."
)


def split_line(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split a line at ``--``, behind which the arguments of scripts stand."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at]], (*words[at + 1 :],)


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the line of the command."""
    parser = argparse.ArgumentParser(prog="meta-magic", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        allow_abbrev=False,
        help="run programs on torch's meta device, and say what is wrong",
        description="Run scripts, notebooks and functions without data, memory or a "
        "device, and say what is wrong with them.",
        epilog=EXIT_CODES,
    )
    check.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="script.py, notebook.ipynb, pkg.module:function or file.py:function; a "
        "script's own arguments stand behind --",
    )
    add_recording(check)
    add_outcome(check)
    return parser


def add_recording(check: argparse.ArgumentParser) -> None:
    """Add what is said of a recording."""
    group = check.add_argument_group("how to run it")
    add = group.add_argument
    add(
        "--as",
        dest="as_device",
        metavar="DEVICE",
        help="whose kernels: cpu (default), cuda",
    )
    add(
        "--named",
        default="plan",
        metavar="MEANING",
        help="what a named device means: plan (all stays on meta) or real",
    )
    add(
        "--assume",
        action="append",
        default=[],
        metavar="WHAT",
        help="what holds for unknown values: routing=uniform, value=3, ...",
    )
    add(
        "--check-values",
        action="store_true",
        help="compute indices and classes, and refuse those out of range",
    )
    add_limits(group.add_argument)
    add_arguments(group.add_argument)


def add_arguments(add: Callable[..., object]) -> None:
    """Add what functions are called with."""
    add(
        "--args",
        default="[]",
        metavar="JSON",
        help='of functions: a list or an object; a tensor is {"shape": [2, 3], '
        '"dtype": "int64"}; @FILE reads a file',
    )
    add(
        "--factory",
        default="",
        metavar="MODULE:FUNCTION",
        help="returns the arguments of functions: a tuple, a dict, or both as a pair",
    )


def add_limits(add: Callable[..., object]) -> None:
    """Add what a subject may take and do."""
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="what each may take (default: 300)",
    )
    add(
        "--memory",
        type=read_nbytes,
        default=psutil.virtual_memory().total // 2,
        metavar="SIZE",
        help="what each may take of this machine's memory, on Linux: 8GB (default: "
        "half of it)",
    )
    add(
        "--sandbox",
        action="store_true",
        help="refuse to write files, to use the network, and to start processes",
    )


def read_nbytes(text: str) -> int:
    """Return a number of bytes, as it is written: 8GB.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    nbytes = parse_amount(text)
    if nbytes is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; one is written as 8GB")
    if nbytes < LEAST_NBYTES:
        least = format_bytes(LEAST_NBYTES)
        raise argparse.ArgumentTypeError(f"{text!r} is too little: at least {least}")
    return int(nbytes)


def add_outcome(check: argparse.ArgumentParser) -> None:
    """Add what is done with what came of it."""
    group = check.add_argument_group("what to do with what is found")
    add = group.add_argument
    add(
        "--budget",
        default="",
        metavar="LIMITS",
        help='"params<7e9, peak_nbytes<80GB" fails what takes more; of '
        + ", ".join(QUANTITIES),
    )
    add("--baseline", metavar="FILE", help="say what changed since FILE was kept")
    add("--update", action="store_true", help="keep what is now as the baseline")
    add("--depth", type=int, default=1, metavar="N", help="levels of modules to show")
    add("--json", action="store_true", help="print JSON")
    add("--junit", metavar="FILE", help="write JUnit's XML")
    add("--sarif", metavar="FILE", help="write SARIF, which annotates lines")
    add("--html", metavar="FILE", help="write the report; FILE-2 for the second one")
    add("--verbose", action="store_true", help="show what programs print")


def make_request(
    options: argparse.Namespace, argv: tuple[str, ...]
) -> Callable[..., Request]:
    """Return what makes a request for a subject.

    Raises:
        BudgetError: The budget is none.
        CheckError: The arguments are no JSON.
    """
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
        },
        limits=parse_budget(options.budget) if options.budget else (),
        seconds=options.timeout,
        nbytes=options.memory,
        is_sandboxed=options.sandbox,
        depth=options.depth,
        has_page=options.html is not None,
    )


def read_arguments(text: str) -> str:
    """Return the JSON of arguments, as it stands there or in a file.

    Raises:
        CheckError: It is none.
    """
    try:
        text = Path(text[1:]).read_text("utf-8") if text.startswith("@") else text
        json.loads(text)
    except (OSError, ValueError) as error:
        raise CheckError(f"--args is no JSON: {error}") from None
    return text
