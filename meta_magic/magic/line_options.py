"""The options of ``%%meta``, each in one record for parser, help and completion.

An option of the report is a row of ``OPTIONS`` here, read in ``run.py``. One that a
recording must know is also an argument of ``session/record.py: record``, a field of
``trace/options.py: Options``, and a name in ``run.py: read_options``.

``%meta materialize`` has a parser of its own, at the end.
"""

import re
import shlex
import sys
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from io import StringIO
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Final

from IPython.core import magic as magics
from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments

from meta_magic.errors import MaterializeError
from meta_magic.trace.units import write_to_terminal

if TYPE_CHECKING:
    from meta_magic.materializing.preparation import Preparation
    from meta_magic.materializing.report import MaterializeReport


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


COMMAND: Final = "materialize"
LINE_WIDTH: Final = 30
FIRST_OPTION: Final = re.compile(r"(^|\s)(--[a-z]+|-h$)")


def is_command(line: str) -> bool:
    """Whether the line of ``%meta`` is this command; no statement looks like it."""
    words = line.split()
    return (
        len(words) > 1
        and words[0] == COMMAND
        and (words[1][0].isidentifier() or words[1][0] == "-")
        and not iskeyword(words[1])
    )


def run_command(shell: Any, line: str) -> "MaterializeReport | None":
    """Run the command, and return the report; a ``UsageError`` changes nothing."""
    from meta_magic.materializing.materialize import materialize, prepare  # noqa: PLC0415  torch
    from meta_magic.materializing.targets import Variables  # noqa: PLC0415  torch

    __tracebackhide__ = True
    parser = build_parser()
    name, words = split_line(line)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        hint = suggest(unknown[0], parser.format_help().split(), "%meta materialize -h")
        raise UsageError(f"%meta {COMMAND}: unrecognized arguments: {unknown[0]}{hint}")
    if options.help or not (name or options.all):
        print(parser.format_help())  # noqa: T201  asked for
        return None
    if name and options.all:
        raise UsageError(f"%meta {COMMAND}: give either --all or {name!r}, not both")
    wanted = Variables(shell.user_ns) if options.all else evaluate(shell, name)
    dtype = read_dtype(options.dtype)
    progress = show_progress if sys.stderr.isatty() and not options.plan else None
    arguments = {"init": options.init, "dtype": dtype, "state": options.state}
    try:
        if options.plan:
            print(describe(prepare(wanted, options.device, **arguments)))  # noqa: T201  asked for
            return None
        return materialize(wanted, options.device, progress=progress, **arguments)
    except MaterializeError as error:  # its text says more than a traceback
        raise UsageError(f"%meta {COMMAND}: {error}") from None
    finally:
        if progress is not None:
            write_to_terminal("")


def describe(prepared: "Preparation") -> str:
    """Return the plan as text."""
    from meta_magic.trace.units import format_bytes  # noqa: PLC0415  with torch

    needed, peak = format_bytes(prepared.nbytes), format_bytes(prepared.peak_nbytes)
    fits = "" if prepared.fits else ", and does not fit"
    forecast = str(prepared.forecast)
    taken = f"takes {needed} on {prepared.device}, {peak} at peak{fits}"
    return f"{forecast}; {taken}" if forecast else taken


def build_parser() -> MagicArgumentParser:
    """Return the parser of the line."""
    from meta_magic.materializing.fills.inits import INITS  # noqa: PLC0415  torch
    from meta_magic.materializing.fills.protocol import STATES  # noqa: PLC0415

    parser = MagicArgumentParser(
        f"meta {COMMAND}",
        description="Make a module, or another object with tensors, real, in place. "
        "Example: %meta materialize model.layers[0] --device cuda --dtype bfloat16",
    )
    parser.add_argument(
        "name", nargs="?", help="A module or another object: an expression."
    )
    parser.add_argument(
        "--all", action="store_true", help="All meta tensors of your variables."
    )
    parser.add_argument(
        "--device",
        help="cpu, cuda or cuda:1 (default: the device that the cell named, or cpu).",
    )
    parser.add_argument(
        "--init",
        default="replay",
        help=f"{', '.join(INITS)}, or the path of a checkpoint.",
    )
    parser.add_argument("--dtype", help="Cast to this dtype, such as bfloat16.")
    parser.add_argument(
        "--state",
        default=STATES[0],
        help="current (as after the cell) or constructed (as before any use).",
    )
    parser.add_argument(
        "--plan", action="store_true", help="Only print what it would do."
    )
    parser.add_argument("-h", "--help", action="store_true", help="Show this help.")
    return parser


def list_values() -> dict[str, list[str]]:
    """Return the options and values for completion; none before torch is imported."""
    if "torch" not in sys.modules:
        return {}
    import torch  # noqa: PLC0415  is there already

    from meta_magic.materializing.fills.inits import INITS  # noqa: PLC0415  torch
    from meta_magic.materializing.fills.protocol import STATES  # noqa: PLC0415

    n_gpus = torch.cuda.device_count()
    dtypes = {d: name for name, d in vars(torch).items() if isinstance(d, torch.dtype)}
    return {
        "--device": ["cpu", *["cuda"][:n_gpus], *(f"cuda:{i}" for i in range(n_gpus))],
        "--init": [*INITS],
        "--dtype": [name for d, name in dtypes.items() if d.is_floating_point],
        "--state": [*STATES],
        **{name: [] for name in ("--all", "--plan", "-h", "--help")},
    }


def split_line(line: str) -> tuple[str, list[str]]:
    """Return the expression, and the words after it, unquoted."""
    rest = line.split(maxsplit=1)[1]
    found = FIRST_OPTION.search(rest)
    end = len(rest) if found is None else found.start()
    try:
        return rest[:end].strip(), shlex.split(rest[end:])
    except ValueError as error:
        raise UsageError(f"%meta {COMMAND}: {error}") from None


def evaluate(shell: Any, name: str) -> Any:
    """Evaluate an expression in the user's namespace."""
    try:
        return eval(name, shell.user_global_ns, shell.user_ns)  # noqa: S307  the user's
    except Exception as error:  # noqa: BLE001  whatever the user's own code raises
        raise UsageError(
            f"%meta {COMMAND}: {name!r} cannot be evaluated: "
            f"{type(error).__name__}: {error}"
        ) from None


def read_dtype(name: str | None) -> Any:
    """Return the dtype of a name."""
    import torch  # noqa: PLC0415  only for those who materialize

    if name is None:
        return None
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"%meta {COMMAND}: --dtype {name}: torch has no such dtype")
    return dtype


def show_progress(fraction: float) -> None:
    """Draw a bar in the last line of the terminal."""
    done = round(fraction * LINE_WIDTH)
    bar = "#" * done + "." * (LINE_WIDTH - done)
    write_to_terminal(f"[{bar}] {fraction:.0%}")
