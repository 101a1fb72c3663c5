"""``meta-magic``: check what the command's line names, and say what came of it."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from meta_magic.check.baselines import (
    Baseline,
    add_changes,
    read_baseline,
    write_baseline,
)
from meta_magic.check.check_json import render_json
from meta_magic.check.check_text import format_total, format_verdict
from meta_magic.check.checked_process import check_subject, refuse_subject
from meta_magic.check.command_line import make_parser, make_request, split_line
from meta_magic.check.subjects import read_subject
from meta_magic.check.verdicts import Request, Verdict, pick_exit_code
from meta_magic.errors import BudgetError, CheckError

__all__ = ["main"]

CANNOT: Final = 2
INTERRUPTED: Final = 130
"""What a shell says of a command that was interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    Args:
        argv: The line, without the command's own name; None for that of this process.
    """
    own, given = split_line(sys.argv[1:] if argv is None else argv)
    options = make_parser().parse_args(own)
    try:
        return check(options, given)
    except (BudgetError, CheckError, OSError) as error:
        print(f"meta-magic check: {error}", file=sys.stderr)  # noqa: T201  a command
        return CANNOT
    except KeyboardInterrupt:
        return INTERRUPTED


def check(options: argparse.Namespace, argv: tuple[str, ...]) -> int:
    """Check all that a line names; return the exit code.

    Raises:
        BudgetError: A budget is none.
        CheckError: A baseline or an argument is none.
        OSError: A file cannot be written.
    """
    request, before = make_request(options, argv), read_before(options)
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


def read_before(options: argparse.Namespace) -> Baseline:
    """Return the baseline that is named, or an empty one.

    Raises:
        CheckError: It is none, or is not there and not made either.
    """
    if options.baseline is None:
        if options.update:
            raise CheckError("--update needs the file that --baseline names")
        return {}
    path = Path(options.baseline)
    return {} if options.update and not path.exists() else read_baseline(path)


def run_all(
    options: argparse.Namespace, request: Callable[..., Request]
) -> Iterator[Verdict]:
    """Check one subject after another, and show on a terminal which."""
    for number, name in enumerate(options.paths, start=1):
        title = f"{number}/{len(options.paths)} {name}"
        show_progress(title)
        show = partial(show_value, title)
        try:
            asked = request(subject=read_subject(name))
            verdict = check_subject(asked, show, is_verbose=options.verbose)
        except CheckError as error:
            verdict = refuse_subject(name, str(error))
        finally:
            show_progress("")
        yield verdict


def show_value(title: str, line: str) -> None:
    """Show below which title, on a terminal, how far a value is."""
    show_progress(f"{title}  {line}" if line else title)


def show_progress(words: str) -> None:
    """Show words in the last line of a terminal, in the place of those before."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)  # noqa: T201


def write_files(options: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Write the files that are asked for.

    Raises:
        OSError: One of them cannot be written.
    """
    if options.junit is not None:
        from meta_magic.check.junit import render_junit  # noqa: PLC0415  few ask for it

        Path(options.junit).write_text(render_junit(verdicts), encoding="utf-8")
    if options.sarif is not None:
        from meta_magic.check.sarif import render_sarif  # noqa: PLC0415  as well

        log = render_sarif(verdicts, Path.cwd())
        Path(options.sarif).write_text(log, encoding="utf-8")
    if options.html is not None:
        write_pages(Path(options.html), verdicts)


def write_pages(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write a report for each recording, numbered from the second one on."""
    pages = [part.page for v in verdicts for part in v.parts if part.page]
    for number, page in enumerate(pages, start=1):
        name = path.name if number == 1 else f"{path.stem}-{number}{path.suffix}"
        path.with_name(name).write_text(page, encoding="utf-8")
