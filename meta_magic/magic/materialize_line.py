"""``%meta materialize NAME``: the button of the report as a command.

Read :func:`run_command` first.
"""

import re
import shlex
import sys
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from meta_magic.errors import MaterializeError
from meta_magic.magic.line_options import suggest
from meta_magic.trace.progress import write_to_terminal

if TYPE_CHECKING:
    from meta_magic.materializing.preparation import Preparation
    from meta_magic.materializing.report import MaterializeReport


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
