"""The options of ``%%meta``, each in one record for parser, help and completion.

An option of the report is a row of ``OPTIONS`` here, read in ``run.py``. One that a
recording must know is also an argument of ``session/record.py: record``, a field of
``trace/options.py: Options``, and a name in ``run.py: read_options``.
"""

import re
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from io import StringIO
from typing import Any, Final

from IPython.core import magic as magics
from IPython.core.magic_arguments import argument, magic_arguments

SMALLEST: Final = {
    "depth": 1,
    "height": 120,
    "value_nbytes": 0,
    "value_flops": 0,
    "value_seconds": 0,
}
"""The smallest valid values of numeric settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        names: How it is written, the long name first.
        metavar: The name of its value in the help; "" for a flag.
        read: Converts the text of its value.
        values: Values that completion offers.
        settings: Further arguments of ``add_argument``.
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
        kind: dict[str, Any] = {"action": "store_true"}
        if self.metavar:
            kind = {"type": self.read, "metavar": self.metavar}
        return {**kind, "help": text, **dict(self.settings)}


OPTIONS: Final = (
    Option(
        names=("--out", "-o"),
        metavar="NAME",
        help="Keep the trace as NAME, too; `_meta` is always the newest trace.",
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
        help="Height of the report's views, in pixels.",
        example="%%meta --height 600",
    ),
    Option(
        names=("--as",),
        metavar="DEVICE",
        values=("cpu", "cuda", "meta"),
        settings=(("dest", "as_device"),),
        help="Record the kernels of this device: cpu, cuda, cuda:8 (eight of them) or "
        "meta (default: cpu). What the code puts on a GPU has those of CUDA in any "
        "case. Tensors stay on meta.",
        example="%%meta --as cuda",
    ),
    Option(
        names=("--world",),
        metavar="N",
        read=int,
        help="Record the cell as one of N processes, as torchrun would start them: "
        "process groups, meshes, DDP, FSDP and DTensor find them, and nothing is sent.",
        example="%%meta --world 8",
    ),
    Option(
        names=("--rank",),
        metavar="R",
        read=int,
        help="The process to record, from 0 (default: 0).",
        example="%%meta --world 8 --rank 3",
    ),
    Option(
        names=("--ranks",),
        metavar="RANKS",
        values=("differing", "all"),
        help="Also record these ranks: all, numbers (0,7), or differing (0, 1, the "
        "last, those that the cell names, and each that one of these waits for). Each "
        "is recorded in a process of its own, with the earlier cells that the cell "
        "rests on.",
        example="%%meta --world 8 --ranks 0,7",
    ),
    Option(
        names=("--per-node",),
        metavar="N",
        read=int,
        help="Processes of one machine (default: 8, or all if fewer).",
        example="%%meta --world 16 --per-node 4",
    ),
    Option(
        names=("--assume",),
        metavar="WHAT",
        values=("nonzero=all", "nonzero=0.5", "routing=uniform", "values=nan"),
        settings=(("action", "append"), ("default", [])),
        help="Assume this where a value takes too much to compute: nonzero=all, "
        "nonzero=0.5 (the part of a mask that is true), routing=uniform (all experts "
        "get equally many tokens), values=nan (the number that the cell reads).",
        example="%%meta --assume routing=uniform",
    ),
    Option(
        names=("--dims",),
        metavar="NAMES",
        settings=(("default", ""),),
        help="Show sizes by these names of the cell: variables, arguments such as "
        "n_embd=64, fields of dataclasses, B=8 for the one 8 in the cell, or auto "
        "(variables and fields).",
        example="%%meta --dims B,T,D",
    ),
    Option(
        names=("--param", "-p"),
        metavar="NAME=VALUES",
        settings=(("action", "append"), ("default", []), ("dest", "params")),
        help="Give the report a slider for this number of the cell: its values are "
        "FIRST..LAST, FIRST..LAST:STEP or [64,96,128]. A move records the cell again, "
        "unless it plots, writes files or downloads.",
        example="%%meta -p d_model=256..4096:256 -p n_layers=2..80",
    ),
    Option(
        names=("--diff",),
        metavar="TRACE",
        values=("last",),
        help="Mark what differs from an earlier trace: last, or the name of one.",
        example="%%meta --diff last",
    ),
    Option(
        names=("--named",),
        metavar="MEANING",
        values=("plan", "real"),
        settings=(("default", "plan"),),
        help="Meaning of a device that the cell names: plan (all tensors stay on meta, "
        "and the report shows the device of each) or real (torch makes real tensors).",
        example="%%meta --named real",
    ),
    Option(
        names=("--check-values",),
        help="Compute unknown indices, classes and masks, within the limits of values, "
        "and raise the CPU's error for those that it refuses.",
        example="%%meta --check-values",
    ),
    Option(
        names=("--check",),
        help="Also note likely mistakes in code that runs, such as a softmax over the "
        "batch, and sizes at which it fails. A line that ends with `# meta: ok` has no "
        "notes. With `--check batch=B` also the first call that mixes the samples of a "
        "batch of size B.",
        example="%%meta --check",
    ),
    Option(
        names=("--teach",),
        help="Show a lesson instead of the report: for each line a question to answer, "
        "and then a picture of what the line did.",
        example="%%meta --teach",
    ),
    Option(
        names=("--exercise",),
        metavar="NAME",
        help="Grade the cell as the answer to an exercise, and show why it is wrong.",
        example="%%meta --exercise outer",
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
        help="Memory limit of a value that the cell asks for, as item() does (default: "
        "a quarter of the free memory).",
        example="%%meta --value-nbytes 1e9",
    ),
    Option(
        names=("--value-flops",),
        metavar="FLOPS",
        read=float,
        help="Limit of the FLOPs of such a value (default: none but the time limit).",
        example="%%meta --value-flops 1e12",
    ),
    Option(
        names=("--value-seconds",),
        metavar="SECONDS",
        read=float,
        help="Time limit of such a value (default: 10); all values of a cell together "
        "may take six times as long.",
        example="%%meta --value-seconds 60",
    ),
    Option(
        names=("--no-cache",),
        help="Run every meta kernel, even for calls in the operator cache, to check "
        "the recorder against torch.",
        example="%%meta --no-cache",
    ),
    Option(names=("--help", "-h"), help="Show this help.", example="%meta --help"),
)

VALUES_BY_NAME: Final = {n: option.values for option in OPTIONS for n in option.names}
"""Options with the values that completion offers."""

VALUED: Final = "|".join(
    n for option in OPTIONS if option.metavar for n in option.names
)
LEADING: Final = re.compile(rf"\s*((--check\s+batch=|({VALUED})\s+)\S+\s*|-\S+\s*)*")
"""The options at the start of the line of ``%meta``."""


def line_cell_magic_with_options(function: Callable[..., Any]) -> Any:
    """Make a method a line and cell magic with ``OPTIONS`` and a statement."""
    statement = argument(
        "statement", nargs="*", help="For %%meta: the statement to run."
    )
    magic: Any = statement(magics.line_cell_magic(function))
    for option in reversed(OPTIONS):
        magic = argument(*option.names, **option.describe())(magic)
    return magic_arguments()(magic)


def suggest(
    word: str, known: Iterable[str], help_line: str, *, is_sure: bool = True
) -> str:
    """Return a hint after an unknown word: the nearest known one, and the help.

    ``help_line`` lists the known words. If not ``is_sure``, there is no hint unless a
    known word is near.
    """
    nearest = get_close_matches(word, known, n=1, cutoff=0.7)
    if not nearest and not is_sure:
        return ""
    meant = f"did you mean {nearest[0]}?" if nearest else ""
    listed = f"{help_line} lists what there is" if help_line else ""
    return f" ({' '.join(filter(None, (meant, listed)))})"


BLANK: Final = frozenset(
    {tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT}
)


def silence_at_semicolon(magic: Any) -> Any:
    """Return a magic that returns None after a semicolon; IPython has it since 8.3."""

    @wraps(magic)
    def silenced(magics: Any, line: str, cell: str | None = None) -> object:
        __tracebackhide__ = True
        value: object = magic(magics, line, cell)
        return None if ends_with_semicolon(line if cell is None else cell) else value

    return silenced


def ends_with_semicolon(code: str) -> bool:
    """Whether the last token of code, without comments, is a semicolon."""
    try:
        tokens = [*tokenize.generate_tokens(StringIO(code).readline)]
    except (SyntaxError, tokenize.TokenError):
        return False
    last = [token.string for token in tokens if token.type not in BLANK][-1:]
    return last == [";"]


output_can_be_silenced: Callable[[Any], Any] = getattr(
    magics, "output_can_be_silenced", silence_at_semicolon
)
