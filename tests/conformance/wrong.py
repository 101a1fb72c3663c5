"""How many programs that run and are wrong are noted, and how many right ones.

``python -m tests.conformance.wrong [FOLDER]`` reads a folder of programs as
``explanations`` does (those that warn or are silent), each broken and mended; then the
programs of ``wrong_programs``, the scripts, and some architectures in training and
evaluation, whose code counts as the user's.
"""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from meta_magic import Note, Trace, record
from meta_magic.cost.wrong.mistakes import find_wrong
from tests.conformance.apart import Crashed, run_apart
from tests.conformance.broken_programs import mend
from tests.conformance.explanations import record_cell
from tests.conformance.wrong_programs.run_case import read_cases

HERE = Path(__file__).parent
KIND = re.compile(r"^kind: +(warning|silent)$", re.MULTILINE)
CULPRITS = re.compile(r"^culprit: +([\d, ]+) \|", re.MULTILINE)


class Noted(NamedTuple):
    """What is noted of a program.

    Attributes:
        name: Its name.
        notes: Kind, line, other lines and text of each note.
        error: What ended it, if anything did.
        seconds: Time of the recording, then that of the rules.
        n_calls: Operator calls.
    """

    name: str
    notes: list[tuple[str, int | None, tuple[int, ...], str]]
    error: str | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    n_calls: int = 0


def describe(name: str, trace: Trace) -> Noted:
    """Return what is noted of a recording."""
    start = time.process_time()
    notes: tuple[Note, ...] = trace.wrong
    spent = time.process_time() - start
    rows = [(n.kind, n.line, n.lines, n.text) for n in notes]
    seconds = trace.seconds, spent
    return Noted(name, rows, trace.error, seconds, trace.program.n_calls)


def note(name: str, text: str) -> Noted:
    """Return what is noted of a program, which runs in a child."""
    try:
        found: Noted = run_apart(lambda: describe(name, record_cell(text, "<program>")))
    except Crashed as error:
        return Noted(name, [], str(error))
    return found


def run_model(name: str, *, is_training: bool) -> Noted:
    """Return what is noted of an architecture, all of whose code is the user's."""
    from tests.conformance.architectures import find_inputs, make_build

    build = make_build(name)
    inputs = find_inputs(build().eval())
    if inputs is None:
        return Noted(name, [], "no inputs")
    with record(as_device="cpu") as trace:
        model = build().train(is_training)
        made = model(**inputs)
        if is_training:
            found = [v for v in made.values() if getattr(v, "requires_grad", False)]
            found[0].sum().backward()
    start = time.process_time()
    notes = find_wrong(trace, is_everything_own=True)
    spent = time.process_time() - start
    rows = [(n.kind, n.line, n.lines, n.text) for n in notes]
    return Noted(name, rows, None, (trace.seconds, spent), trace.program.n_calls)


def run_models(names: list[str], n_wanted: int) -> Iterator[Noted]:
    """Yield what is noted of architectures, in evaluation and in training.

    Those without known inputs are left out; it ends when as many as wanted have run.
    """
    n_ran = 0
    for name in names:
        for is_training in (False, True):
            try:
                found = run_apart(lambda: run_model(name, is_training=is_training))  # noqa: B023
            except Crashed as error:
                found = Noted(name, [], str(error))
            if found.error == "no inputs":
                break
            yield found
            n_ran += is_training and not found.error
        if n_ran == n_wanted:
            return


def print_right(title: str, found: list[Noted]) -> None:
    """Print how many right programs are noted, and each note."""
    ran = [one for one in found if not one.error]
    noted = [one for one in found if one.notes]
    shares = sorted(one.seconds[1] / one.seconds[0] for one in ran if one.seconds[0])
    median = f"{shares[len(shares) // 2]:.1%}" if shares else "-"
    slow = max((one.seconds[1], one.n_calls) for one in ran) if ran else (0.0, 0)
    print(
        f"| {title} | {len(found)} | {len(ran)} | {len(noted)} | {median} | "
        f"{slow[0]:.2f} s ({slow[1]:,} calls) |",
        flush=True,
    )
    for one in found:
        if one.error:
            print(f"    {one.name} did not run: {one.error[-200:]}", flush=True)
    for one in noted:
        for kind, line, _, text in one.notes:
            print(f"    {one.name}: {kind}, line {line}: {text}", flush=True)


def print_wrong(title: str, found: list[tuple[Noted, set[int]]]) -> None:
    """Print how many wrong programs are noted, at the line and beside it."""
    noted = [pair for pair in found if pair[0].notes]
    at = [one for one, lines in noted if lines & {line for _, line, _, _ in one.notes}]
    named = [one for one, lines in noted if lines & {*list_lines(one)}]
    print(f"| {title} | {len(found)} | {len(noted)} | {len(at)} | {len(named)} |")
    for one, lines in found:
        if not lines & {*list_lines(one)}:
            print(f"    {one.name}: {one.notes or one.error or 'no note'}", flush=True)


def list_lines(one: Noted) -> Iterator[int | None]:
    """Yield all lines that the notes of a program name."""
    for _, line, others, _ in one.notes:
        yield from (line, *others)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--mended", type=int, default=1, help="every Nth mended one")
    options: Any = parser.parse_args()
    paths = sorted(options.folder.glob("*.py")) if options.folder else ()
    texts = {path.stem: path.read_text("utf-8") for path in paths}
    broken = {name: text for name, text in texts.items() if KIND.search(text)}
    wrong = [
        (note(name, text), {*map(int, CULPRITS.findall(text)[0].split(","))})
        for name, text in broken.items()
    ]
    print("| wrong programs | all | noted | at the line | or named |", flush=True)
    print_wrong("the folder", wrong)
    own = read_cases("wrong")
    marked = {
        name: {n for n, line in enumerate(text.split("\n"), 1) if "# wrong" in line}
        for name, text in own.items()
    }
    print_wrong("written here", [(note(n, text), marked[n]) for n, text in own.items()])
    print("| right programs | all | ran | noted | rules / recording | longest |")
    odd = read_cases("odd")
    print_right("that look odd", [note(name, text) for name, text in odd.items()])
    scripts = sorted((HERE / "scripts").glob("*.py"))
    print_right("scripts", [note(p.stem, p.read_text("utf-8")) for p in scripts])
    mended = [*texts.items()][:: options.mended]
    print_right("mended", [note(name, mend(text)) for name, text in mended])
    if options.models:
        from tests.conformance.architectures import ARCHITECTURES

        step = max(1, len(ARCHITECTURES) // options.models)
        names = [one for first in range(step) for one in ARCHITECTURES[first::step]]
        print_right("architectures", [*run_models(names, options.models)])


if __name__ == "__main__":
    main()
