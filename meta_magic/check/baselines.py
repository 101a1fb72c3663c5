"""Baselines: quantities and modules of earlier recordings, and what changed since.

``--baseline FILE`` reports "params: 40 -> 144 (+260.0%)". Read :func:`compare` first.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.check.records import BlockResult, Diagnostic, Verdict
from meta_magic.errors import CheckError
from meta_magic.trace.expectations import QUANTITIES

if TYPE_CHECKING:
    from meta_magic.designs import design

Baseline: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By the name of a recording: ``measured`` and ``design`` of :class:`BlockResult`."""

VERSION: Final = 2
OTHER_VERSION: Final = (
    "{} is no baseline of this version of meta-magic; --update writes it anew"
)


def read_baseline(path: Path, *, is_rewritten: bool = False) -> Baseline:
    """Return the recordings that a file keeps.

    Args:
        is_rewritten: Whether a file of another version is read as an empty
            baseline, because it will be written anew.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["version"] != VERSION:
            if is_rewritten:
                return {}
            raise CheckError(OTHER_VERSION.format(path))
        return {name: read_recording(own) for name, own in kept["recordings"].items()}
    except OSError as error:
        text = f"the baseline cannot be read ({error}); --update makes it"
        raise CheckError(text) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"{path} is no baseline: {type(error).__name__}: {error}"
        raise CheckError(text) from None


def read_recording(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the quantities and the design of a recording from JSON."""
    from meta_magic.designs.design import Design  # noqa: PLC0415  needs torch

    measured = {name: int(kept["measured"][name]) for name in QUANTITIES}
    roots = tuple(map(read_module, kept["design"]["roots"]))
    return {
        "measured": measured,
        "design": Design(**{**kept["design"], "roots": roots}),
    }


def read_module(kept: Mapping[str, Any]) -> "design.Part":
    """Return a module of a design from JSON, whose lists become tuples."""
    from meta_magic.designs import design  # noqa: PLC0415  needs torch

    tensors = {
        name: (tuple(shape), dtype, is_tied)
        for name, (shape, dtype, is_tied) in kept["tensors"].items()
    }
    output = kept["output"] and tuple(kept["output"])
    children = tuple(map(read_module, kept["children"]))
    more = {"tensors": tensors, "output": output, "children": children}
    return design.Part(**{**kept, **more})


def write_baseline(path: Path, verdicts: Iterable[Verdict], before: Baseline) -> None:
    """Write all recordings; one that failed keeps its earlier entry."""
    kept = dict(before)
    for name, part in list_recordings(verdicts):
        if part.measured and not has_failed(part):
            kept[name] = {"measured": part.measured, "design": part.design}
    recordings = {
        name: {**own, "design": asdict(own["design"])} for name, own in kept.items()
    }
    content = {"version": VERSION, "recordings": recordings}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def has_failed(part: BlockResult) -> bool:
    """Whether a recording did not run to its end."""
    return any(found.rule in {"error", "unchecked"} for found in part.diagnostics)


def list_recordings(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, BlockResult]]:
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


def compare(before: Mapping[str, Any], now: BlockResult) -> list[str]:
    """Return the changes of a recording, one a line."""
    from meta_magic.designs import differences  # noqa: PLC0415  needs torch

    changes = [
        describe_change(name, was, now.measured[name])
        for name, was in before["measured"].items()
        if now.measured[name] != was
    ]
    if now.design is not None:
        found = differences.compare(before["design"], now.design)
        changes += found.describe()["changes"]
    return changes


def describe_change(name: str, was: int, now: int) -> str:
    """Return the change of a quantity, also in percent."""
    write = QUANTITIES[name].format
    part = f" ({now / was - 1:+.1%})" if was else ""
    return f"{name}: {write(was)} -> {write(now)}{part}"
