"""Verdicts as a terminal shows them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Final

from meta_magic.check.verdicts import UNRUN, Finding, Outcome, Part, Verdict
from meta_magic.trace.notes import FAILS

__all__ = ["format_total", "format_verdict"]

WORDS: Final[dict[Outcome, str]] = {
    "right": "right",
    "error": "error",
    "unchecked": "cannot be checked",
}


def format_verdict(verdict: Verdict) -> str:
    """Return what came of a subject, in lines."""
    head = f"{verdict.name}: {WORDS[verdict.outcome]} ({verdict.seconds:.1f} s)"
    body = "\n".join(line for part in verdict.parts for line in walk_part(part))
    lines = [head, indent(body, "  ")] if body else [head]
    is_silent = verdict.outcome == "right" or any(p.traceback for p in verdict.parts)
    if verdict.output and not is_silent:
        lines.append(f"  it printed last:\n{indent(verdict.output.rstrip(), '    ')}")
    return "\n".join(lines)


def walk_part(part: Part) -> Iterator[str]:
    """Yield the lines of one recording."""
    found = [*filter(None, (format_finding(found, part) for found in part.findings))]
    if part.name and (part.summary or found or part.outcome != "right"):
        yield (
            part.name
            if part.outcome == "right"
            else (f"{part.name}: {WORDS[part.outcome]}")
        )
    yield from filter(None, (part.summary,))
    yield from found
    if part.outcome != "right":
        yield from filter(None, (part.traceback.rstrip(), part.explanation))


def format_finding(found: Finding, part: Part) -> str:
    """Return a finding on one line; "" for what the rest of a recording's text says."""
    if found.rule == "unchecked":
        return f"why: {found.text}{describe_place(found, part)}"
    if found.rule == FAILS:
        return f"error: {found.text}{describe_place(found, part)}"
    is_told = found.rule == "error" and not part.traceback
    if is_told or found.rule in {"budget", "changed"}:
        return f"{found.rule}: {found.text}{describe_place(found, part)}"
    return f"note: {found.text}" if found.rule == UNRUN else ""


def describe_place(found: Finding, part: Part) -> str:
    """Return where a finding is, where no traceback says so."""
    return f" (line {found.line})" if found.line and not part.traceback else ""


def format_total(verdicts: Sequence[Verdict]) -> str:
    """Return how many came out how."""
    counted = Counter(verdict.outcome for verdict in verdicts)
    words = [f"{counted[name]} {WORDS[name]}" for name in WORDS if counted[name]]
    return f"{len(verdicts)} checked: {', '.join(words)}"
