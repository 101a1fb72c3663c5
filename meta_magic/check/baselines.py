"""Baselines: quantities and modules of earlier recordings, and what changed since.

``--baseline FILE`` reports "params: 40 -> 144 (+260.0%)". Read :func:`compare` first.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from meta_magic.check.records import Diagnostic, Part, Verdict
from meta_magic.errors import CheckError
from meta_magic.trace.expectations import QUANTITIES

Baseline: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By the name of a recording: ``measured`` and ``modules``, as of :class:`Part`."""

VERSION: Final = 1
MAX_LINES: Final = 20
NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


def read_baseline(path: Path) -> Baseline:
    """Return the recordings that a file keeps."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        recordings: Baseline = kept["recordings"]
        is_known = kept["version"] == VERSION and all(
            {*own["measured"]} <= {*QUANTITIES}
            and all(isinstance(n, int) for n in own["measured"].values())
            and all(isinstance(one, dict) for one in own["modules"].values())
            for own in recordings.values()
        )
    except OSError as error:
        text = f"the baseline cannot be read ({error}); --update makes it"
        raise CheckError(text) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"{path} is no baseline: {type(error).__name__}: {error}"
        raise CheckError(text) from None
    if not is_known:
        raise CheckError(f"{path} is no baseline of version {VERSION}")
    return recordings


def write_baseline(path: Path, verdicts: Iterable[Verdict], before: Baseline) -> None:
    """Write all recordings; one that failed keeps its earlier entry."""
    kept = dict(before)
    for name, part in list_recordings(verdicts):
        if part.measured and not has_failed(part):
            kept[name] = {"measured": part.measured, "modules": part.modules}
    content = {"version": VERSION, "recordings": kept}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def has_failed(part: Part) -> bool:
    """Whether a recording did not run to its end."""
    return any(found.rule in {"error", "unchecked"} for found in part.diagnostics)


def list_recordings(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, Part]]:
    """Yield recordings with their names in a baseline."""
    for verdict in verdicts:
        for part in verdict.parts:
            yield f"{verdict.name} {part.name}".strip(), part


def add_changes(verdict: Verdict, before: Baseline) -> Verdict:
    """Return a verdict with a note for each change since a baseline."""
    parts = []
    for name, part in list_recordings([verdict]):
        known = before.get(name)
        texts = compare(known, part) if known and not has_failed(part) else []
        found = [
            Diagnostic(rule="changed", level="note", text=text, file=part.file)
            for text in texts
        ]
        parts.append(replace(part, diagnostics=(*part.diagnostics, *found)))
    return replace(verdict, parts=(*parts,))


def compare(before: Mapping[str, Any], now: Part) -> list[str]:
    """Return the changes of a recording, one a line."""
    changes = [
        describe_change(name, was, now.measured[name])
        for name, was in before["measured"].items()
        if now.measured[name] != was
    ]
    lines = [*fold(find_module_changes(before["modules"], now.modules))]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… {len(lines) - MAX_LINES:,} more modules"]
    return [*changes, *lines]


def describe_change(name: str, was: int, now: int) -> str:
    """Return the change of a quantity, also in percent."""
    write = QUANTITIES[name].format
    part = f" ({now / was - 1:+.1%})" if was else ""
    return f"{name}: {write(was)} -> {write(now)}{part}"


def find_module_changes(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield names of modules, each with a change."""
    for name in dict.fromkeys([*before, *now]):
        parent = name.rpartition(".")[0]
        if name in before and name in now:
            yield from ((name, text) for text in find_facts(before[name], now[name]))
        elif name in before and (parent in now or parent not in before):
            yield name, "is gone"
        elif name in now and (parent in before or parent not in now):
            yield name, f"is new: {now[name].get('class')}"


def find_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes of a module that both recordings have."""
    for fact in ("class", "parameters", "inputs", "outputs"):
        was, is_now = write_fact(before.get(fact)), write_fact(now.get(fact))
        if was != is_now:
            yield f"{fact} {was} -> {is_now}"


def write_fact(fact: object) -> str:
    """Return a fact about a module as text."""
    if isinstance(fact, dict):
        return ", ".join(f"{name} {shape}" for name, shape in fact.items())
    if isinstance(fact, list):
        return ", ".join(map(str, fact))
    return "none" if fact is None else str(fact)


def fold(changes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield changes as lines; equal changes of numbered siblings are one line."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, text in changes:
        names.setdefault((NUMBER.sub("*", name), text), []).append(name)
    for (pattern, text), own in names.items():
        yield (
            f"{own[0]}: {text}"
            if len(own) == 1
            else (f"{pattern} ({len(own)} modules): {text}")
        )
