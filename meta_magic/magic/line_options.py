"""The options of ``%%meta``, each described once for parser, help and completion."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from IPython.core.magic import line_cell_magic
from IPython.core.magic_arguments import argument, magic_arguments

__all__ = [
    "SMALLEST",
    "VALUES_BY_NAME",
    "line_cell_magic_with_options",
    "split_statement",
    "suggest",
]

SMALLEST: Final = {
    "depth": 1,
    "height": 120,
    "value_nbytes": 0,
    "value_flops": 0,
    "value_seconds": 0,
}
"""Of the settings that are numbers, the least that makes sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        names: How it is written, the long name first.
        help: What it does.
        example: A line with it.
        metavar: What stands for its value in the help; "" if it takes none.
        read: Turns the text of its value into one.
        values: Those that can be named, for completion.
        settings: What else ``argparse`` is told.
    """

    names: tuple[str, ...]
    help: str
    example: str
    metavar: str = ""
    read: Callable[[str], Any] = str
    values: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the arguments of ``add_argument``."""
        text = f"{self.help} Example: {self.example}".replace("%", "%%")
        if not self.metavar:
            return {"action": "store_true", "help": text, **dict(self.settings)}
        taken = {"type": self.read, "metavar": self.metavar}
        return {**taken, "help": text, **dict(self.settings)}


OPTIONS: Final = (
    Option(
        names=("--out", "-o"),
        metavar="NAME",
        help="Keep the trace under NAME, too; `_meta` always holds the newest.",
        example="%%meta -o trace",
    ),
    Option(names=("--quiet", "-q"), help="Show no report.", example="%%meta -q"),
    Option(
        names=("--depth",),
        metavar="N",
        read=int,
        help="Open N levels of modules, in every view and in the text.",
        example="%%meta --depth 3",
    ),
    Option(
        names=("--height",),
        metavar="PIXELS",
        read=int,
        help="Make the report's views so high.",
        example="%%meta --height 600",
    ),
    Option(
        names=("--as",),
        metavar="DEVICE",
        values=("cpu", "cuda", "meta"),
        settings=(("dest", "as_device"),),
        help="Record the kernels that this device would choose: cpu, cuda, cuda:8 (of "
        "which there are eight) or meta (default: cuda where torch sees one, else "
        "cpu); the tensors stay meta.",
        example="%%meta --as cuda",
    ),
    Option(
        names=("--assume",),
        metavar="WHAT",
        values=("nonzero=all", "nonzero=0.5", "routing=uniform", "values=nan"),
        settings=(("action", "append"), ("default", [])),
        help="Take for granted, where values take too much: nonzero=all, nonzero=0.5 "
        "(the part of a mask that is true), routing=uniform (each expert gets as many "
        "tokens), values=nan (what is read is that number).",
        example="%%meta --assume routing=uniform",
    ),
    Option(
        names=("--named",),
        metavar="MEANING",
        values=("plan", "real"),
        settings=(("default", "plan"),),
        help="What a device means that the cell names: plan (all tensors stay on meta, "
        "the report says where each would lie) or real (as torch means it).",
        example="%%meta --named real",
    ),
    Option(
        names=("--check-values",),
        help="Evaluate the indices, classes and masks that nobody knows, within the "
        "limits of values, and refuse them as the CPU does.",
        example="%%meta --check-values",
    ),
    Option(
        names=("--parameters",),
        help="Show parameters and constants in the flow, too.",
        example="%%meta --parameters",
    ),
    Option(
        names=("--value-nbytes",),
        metavar="BYTES",
        read=float,
        help="Bytes that the value of a tensor may take when the cell asks for it, as "
        "item() does (default: a quarter of the memory that is free).",
        example="%%meta --value-nbytes 1e9",
    ),
    Option(
        names=("--value-flops",),
        metavar="FLOPS",
        read=float,
        help="Operations that it may take (default: what the seconds allow).",
        example="%%meta --value-flops 1e12",
    ),
    Option(
        names=("--value-seconds",),
        metavar="SECONDS",
        read=float,
        help="Seconds that it may take (default: 10); all values of a cell may take "
        "six times as long.",
        example="%%meta --value-seconds 60",
    ),
    Option(
        names=("--no-cache",),
        help="Run every meta kernel, also those whose answer is known, to check the "
        "recorder against torch.",
        example="%%meta --no-cache",
    ),
    Option(names=("--help", "-h"), help="Show this help.", example="%meta --help"),
)

VALUES_BY_NAME: Final = {n: option.values for option in OPTIONS for n in option.names}
"""What completion offers."""

VALUED: Final = "|".join(
    n for option in OPTIONS if option.metavar for n in option.names
)
LEADING: Final = re.compile(rf"\s*(({VALUED})\s+\S+\s*|-\S+\s*)*")
"""The options at the beginning of the line of ``%meta``."""


def line_cell_magic_with_options(function: Callable[..., Any]) -> Any:
    """Make a method a magic of lines and cells, with these options and a statement."""
    statement = argument(
        "statement", nargs="*", help="For %%meta: the statement to run."
    )
    magic: Any = statement(line_cell_magic(function))
    for option in reversed(OPTIONS):
        magic = argument(*option.names, **option.describe())(magic)
    return magic_arguments()(magic)


def suggest(
    word: str, known: Iterable[str], help_line: str, *, is_sure: bool = True
) -> str:
    """Return what stands after a word that is not known: the nearest one, the help.

    Args:
        word: The word.
        known: Those that are.
        help_line: What lists them.
        is_sure: Whether it should be one of those; else "" where none is near.
    """
    nearest = get_close_matches(word, known, n=1, cutoff=0.7)
    if not nearest and not is_sure:
        return ""
    meant = f"did you mean {nearest[0]}? " if nearest else ""
    return f" ({meant}{help_line} lists what there is)"


def split_statement(line: str) -> tuple[str, str]:
    """Split the line of ``%meta`` into its options and the statement after them."""
    options = LEADING.match(line)
    end = options.end() if options is not None else 0
    return line[:end], line[end:]
