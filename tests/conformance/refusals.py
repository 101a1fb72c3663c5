"""How many programs that the CPU refuses ``record()`` refuses likewise.

``python -m tests.conformance.refusals`` prints, of each source of programs, how many
that the CPU refuses are refused with the same type and text, with other text, with
another type, or are accepted; and how many that the CPU runs are refused.
"""

import argparse
import datetime as dt
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map, tree_map_only

import meta_magic as mm
from meta_magic.recording.as_device.oracle import proxy_tensors
from tests.conformance.apart import Crashed, run_apart
from tests.conformance.copies import Copies
from tests.conformance.kept_rows import KeptRows
from tests.conformance.refused_programs import SOURCES, Program, can_copy

WAYS: Final = ("record", "plain meta", "FakeTensorMode")
COLUMNS: Final = (
    "same",
    "other text",
    "other type",
    "accepted",
    "refused",
    "valueless",
)
RUNS: Final = ""
VALUELESS: Final = "MissingValueError"


class Found(NamedTuple):
    """What one way made of a program.

    Attributes:
        program: Its name.
        way: One of ``WAYS``.
        found: One of ``COLUMNS``; "" if it runs, as on the CPU.
        wanted: Type and text of what the CPU raises; "" if it runs.
        met: The same of this way.
    """

    program: str
    way: str
    found: str
    wanted: str
    met: str


def describe(error: Exception) -> str:
    """Return the type and the text of an error."""
    text = str(error).partition("Exception raised from")[0]  # places in C++
    return f"{type(error).__name__}: {text}"


def catch(program: Program, device: str, context: AbstractContextManager[Any]) -> str:
    """Return what a program raises in a context on a device, "" if nothing."""
    torch.manual_seed(0)
    try:
        with context:
            program.run(*tree_map(Copies(device), program.inputs))
    except Exception as error:
        return describe(error)
    return RUNS


def run_in(way: str, program: Program) -> str:
    """Return what is raised in one of ``WAYS``, "" if nothing."""
    if way == "FakeTensorMode":
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        inputs = tree_map(Copies("cpu"), program.inputs)
        fake = tree_map_only(torch.Tensor, mode.from_tensor, inputs)
        return catch(Program(program.name, (), lambda: program.run(*fake)), "cpu", mode)
    if way == "record":
        return catch(program, "meta", mm.record(as_device="cpu"))
    return catch(program, "meta", torch.device("meta"))


def compare(wanted: str, met: str) -> str:
    """Return in which of ``COLUMNS`` a program belongs, "" if it is to run and runs."""
    if met.startswith(VALUELESS):
        return "valueless"
    if wanted == met:
        return "same" if wanted else RUNS
    if not wanted:
        return "refused"
    if not met:
        return "accepted"
    is_type = wanted.partition(":")[0] == met.partition(":")[0]
    return "other text" if is_type else "other type"


def judge_programs(programs: Iterator[Program], ways: tuple[str, ...]) -> list[Found]:
    """Return what each way made of programs."""
    found = []
    for program in programs:
        if not can_copy(program):
            continue
        wanted = catch(program, "cpu", nullcontext())
        for way in ways:
            met = run_in(way, program)
            found.append(Found(program.name, way, compare(wanted, met), wanted, met))
    return found


def warm_up() -> None:
    """Import what torch imports when first asked, before there are children."""
    with mm.record(as_device="cpu"):
        torch.nn.functional.gelu(torch.ones(2)).sum()


class Ledger:
    """What operators and modules gave, kept in a file, so that a long run can go on.

    Args:
        path: The file, made when it is not there; None to write none.
    """

    def __init__(self, path: Path | None) -> None:
        self._rows = KeptRows(path)
        self.found_by_name = {
            (source, name): [Found(*one) for one in found]
            for source, name, found in self._rows.earlier
        }

    def add(self, source: str, name: str, found: list[Found]) -> None:
        """Take in what one of a source gave."""
        self.found_by_name[source, name] = found
        self._rows.add([source, name, found])


def sweep(options: Any, source: str, ledger: Ledger) -> Iterator[Found]:
    """Yield what became of the programs of a source."""
    for index, (name, programs) in enumerate(SOURCES[source](options.limit)):
        if index % options.every or name not in (options.names or [name]):
            continue
        if (source, name) not in ledger.found_by_name:
            ledger.add(source, name, judge_apart(name, programs, options.ways))
        found = ledger.found_by_name[source, name]
        print(name, *describe_found(found), sep="\n", file=sys.stderr, flush=True)
        yield from found


def judge_apart(
    name: str, programs: Iterator[Program], ways: tuple[str, ...]
) -> list[Found]:
    """Return what each way made of programs, in a process of their own."""
    try:
        found: list[Found] = run_apart(lambda: judge_programs(programs, ways))
    except Crashed as error:
        return [Found(name, "record", "crashed", "", str(error))]
    return found


def make_rows(source: str, found: list[Found], ways: tuple[str, ...]) -> Iterator[str]:
    """Yield the rows of a source."""
    for way in ways:
        own = [f for f in found if f.way == way]
        n_refused = sum(bool(f.wanted) for f in own)
        counts = Counter(f.found for f in own)
        shown = " | ".join(str(counts[column]) for column in COLUMNS)
        yield f"| {source} | {way} | {len(own):,} | {n_refused:,} | {shown} |"


def describe_found(found: list[Found]) -> Iterator[str]:
    """Yield what ``record()`` does otherwise than the CPU, each kind once."""
    kinds: dict[tuple[str, ...], list[Found]] = {}
    for one in found:
        if one.way == "record" and one.found not in {"same", RUNS}:
            kinds.setdefault((one.found, one.program), []).append(one)
    for (kind, program), members in sorted(kinds.items()):
        texts = [" ".join(t.split())[:160] for t in (members[0].wanted, members[0].met)]
        yield f"- {kind}: {program} ({len(members)}): {texts[0]!r} is {texts[1]!r}"


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the command's line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators and modules; all if none")
    parser.add_argument("--sources", nargs="*", default=SOURCES, choices=SOURCES)
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--limit", type=int, default=None, help="samples of each dtype")
    parser.add_argument("--every", type=int, default=1, help="so many operators, one")
    parser.add_argument("--shrink", action="store_true", help="also small calls")
    parser.add_argument("--ledger", type=Path, help="a file to keep, and to go on from")
    return parser


def main() -> None:
    """Print the table, and what is otherwise than on the CPU."""
    options = make_parser().parse_args()
    options.ways = tuple(options.ways)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    warm_up()
    if options.shrink:
        proxy_tensors.MAX_NUMEL, proxy_tensors.KEPT = 128, 2
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print(f"| programs | | all | refused by the CPU | {' | '.join(COLUMNS)} |")
    print("|---|---|" + (len(COLUMNS) + 2) * "--:|", flush=True)
    found, ledger = [], Ledger(options.ledger)
    for source in options.sources:
        own = list(sweep(options, source, ledger))
        print("\n".join(make_rows(source, own, options.ways)), flush=True)
        found += own
    print("", *describe_found(found), sep="\n")


if __name__ == "__main__":
    main()
