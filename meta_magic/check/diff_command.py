"""The command ``meta-magic diff A B``: what one design changes in another.

A and B are what ``meta-magic check`` takes, or a script of a git revision:
``train.py@HEAD~3``. Each is recorded in a child process. Read :func:`diff` first.
"""

import argparse
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from meta_magic.check.checked_process import check_subject
from meta_magic.check.records import Part, Request, read_subject
from meta_magic.errors import CheckError
from meta_magic.trace.units import format_line

if TYPE_CHECKING:
    from meta_magic.designs.design import Design

DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``meta-magic diff`` takes besides the options of a recording."""
    for name in ("before", "after"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help="script.py, pkg.module:function, file.py:function or notebook.ipynb; "
            "script.py@REVISION is the script as git has it",
        )
    parser.add_argument("--json", action="store_true", help="print JSON")


def diff(options: argparse.Namespace, request: Callable[..., Request]) -> int:
    """Print what differs; return 0 if nothing does, else 1.

    Raises:
        CheckError: A subject cannot be read, or fails.
    """
    before, after = (
        read_one(name, request) for name in (options.before, options.after)
    )
    from meta_magic.designs.differences import compare  # noqa: PLC0415  imports torch

    found = compare(before, after)
    if options.json:
        record = {
            "text": found.text,
            "numbers": dict(found.numbers),
            "totals": dict(found.totals),
            "changes": [asdict(one) for one in found.changes],
        }
        print(json.dumps(record, indent=2))  # noqa: T201  a command
    else:
        print(found)  # noqa: T201  as well
    return DIFFERENT if found else 0


def read_one(name: str, request: Callable[..., Request]) -> "Design":
    """Return the design of a subject, recorded in a child process.

    Raises:
        CheckError: It cannot be read, or fails.
    """
    with open_revision(name) as path:
        asked = request(subject=read_subject(path), has_design=True)
        try:
            parts = check_right(asked)
        except CheckError as error:
            raise CheckError(f"{name}: {error}") from None
    designs = [part.design for part in parts if part.design is not None]
    if not designs:
        raise CheckError(f"{name}: nothing was recorded")
    largest: Design = max(designs, key=lambda one: one.totals["params"])
    return largest


def check_right(asked: Request) -> tuple[Part, ...]:
    """Return the recordings of a subject that runs.

    Raises:
        CheckError: It fails, with the line and the message.
    """
    parts = check_subject(asked, lambda _: None).parts
    for part in parts:
        for found in part.diagnostics[:1]:  # the worst comes first
            if part.outcome != "right":
                text = found.text.partition("\n")[0]
                raise CheckError(format_line(found.line) + text)
    return parts


@contextmanager
def open_revision(name: str) -> Iterator[str]:
    """Yield a subject's name; of ``script.py@REVISION`` that of a copy by git.

    The copy has the whole repository as it was, so that the script finds its modules.

    Raises:
        CheckError: git does not know the revision, or the file in it.
    """
    path, at, revision = name.rpartition("@")
    if not at or Path(name).exists():
        yield name
        return
    file = Path(path).absolute()
    root = Path(run_git(file.parent, "rev-parse", "--show-toplevel").decode().strip())
    archive = run_git(root, "archive", "--format=tar", revision)
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        copy = Path(folder, file.resolve().relative_to(root.resolve()))
        if not copy.is_file():
            raise CheckError(f"{name}: {revision} has no such file")
        yield str(copy)


def run_git(folder: Path, *arguments: str) -> bytes:
    """Return the output of a command of git.

    Raises:
        CheckError: It failed, with its message.
    """
    try:
        command: list[Any] = ["git", "-C", folder, *arguments]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        raise CheckError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise CheckError(f"git: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
