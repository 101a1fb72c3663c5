"""Write verdicts: text for terminals, JSON, JUnit XML for CI servers, and SARIF.

GitHub annotates the lines of a pull request from SARIF.

Source:
    Static Analysis Results Interchange Format 2.1.0, OASIS Standard. The elements
    and attributes of JUnit that pytest's ``--junit-xml`` writes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import indent
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from meta_magic.check.records import (
    EMPTY,
    OTHERWISE,
    UNRUN,
    BlockResult,
    Diagnostic,
    Outcome,
    Verdict,
    pick_exit_code,
)
from meta_magic.trace.notes import FAILS

OUTCOMES: Final[dict[Outcome, str]] = {
    "right": "right",
    "error": "error",
    "unchecked": "cannot be checked",
}


def format_verdict(verdict: Verdict) -> str:
    """Return a verdict as lines of text."""
    head = f"{verdict.name}: {OUTCOMES[verdict.outcome]} ({verdict.seconds:.1f} s)"
    body = "\n".join(line for part in verdict.parts for line in walk_part(part))
    lines = [head, indent(body, "  ")] if body else [head]
    is_silent = verdict.outcome == "right" or any(p.traceback for p in verdict.parts)
    if verdict.output and not is_silent:
        lines.append(f"  it printed last:\n{indent(verdict.output.rstrip(), '    ')}")
    return "\n".join(lines)


def walk_part(part: BlockResult) -> Iterator[str]:
    """Yield the lines of one recording."""
    found = [
        *filter(None, (format_diagnostic(found, part) for found in part.diagnostics))
    ]
    if part.name and (part.summary or found or part.outcome != "right"):
        is_right = part.outcome == "right"
        yield part.name if is_right else f"{part.name}: {OUTCOMES[part.outcome]}"
    if part.summary:
        yield part.summary
    yield from found
    if part.outcome != "right":
        yield from filter(None, (part.traceback.rstrip(), part.explanation))


def format_diagnostic(found: Diagnostic, part: BlockResult) -> str:
    """Return a diagnostic on one line; "" if summary or traceback have it already."""
    if found.rule == UNRUN:
        return f"note: {found.text}"
    heads = {
        "unchecked": "why",
        FAILS: "error",
        "budget": "budget",
        "changed": "changed",
        EMPTY: EMPTY,
        OTHERWISE: OTHERWISE,
        "hang": "hang",
    }
    if not part.traceback:
        heads["error"] = "error"
    if found.rule not in heads:
        return ""
    has_line = part.traceback or found.rule in (EMPTY, OTHERWISE)
    line = f" (line {found.line})" if found.line and not has_line else ""
    return f"{heads[found.rule]}: {found.text}{line}"


def format_total(verdicts: Sequence[Verdict]) -> str:
    """Return the number of subjects by outcome."""
    counted = Counter(verdict.outcome for verdict in verdicts)
    parts = [f"{counted[name]} {OUTCOMES[name]}" for name in OUTCOMES if counted[name]]
    return f"{len(verdicts)} checked: {', '.join(parts)}"


def render_json(verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as a JSON object with ``exit_code`` and ``checked``."""
    content = {
        "exit_code": pick_exit_code(verdicts),
        "checked": [
            {
                "name": verdict.name,
                "outcome": verdict.outcome,
                "seconds": round(verdict.seconds, 3),
                "recordings": [describe_part(part) for part in verdict.parts],
                "output": verdict.output,
            }
            for verdict in verdicts
        ],
    }
    return json.dumps(content, indent=1)


def describe_part(part: BlockResult) -> dict[str, Any]:
    """Return a recording as plain data, without its HTML report and its design."""
    names = {"diagnostics": "findings"}  # as readers of the JSON know them
    fields = {names.get(name, name): value for name, value in asdict(part).items()}
    del fields["page"], fields["design"]
    return fields


NO_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(verdicts: Sequence[Verdict]) -> str:
    """Return JUnit XML, in which each recording is a test."""
    parts = [part for verdict in verdicts for part in verdict.parts]
    counts = {
        "tests": len(parts),
        "failures": sum(part.outcome == "error" for part in parts),
        "errors": sum(part.outcome == "unchecked" for part in parts),
        "skipped": 0,
    }
    seconds = sum(verdict.seconds for verdict in verdicts)
    suites = ET.Element("testsuites", name="meta-magic check")
    numbers = {name: str(count) for name, count in counts.items()}
    numbers["time"] = f"{seconds:.3f}"
    suite = ET.SubElement(suites, "testsuite", {"name": "meta-magic", **numbers})
    for verdict in verdicts:
        for part in verdict.parts:
            suite.append(describe_case(verdict, part))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def describe_case(verdict: Verdict, part: BlockResult) -> ET.Element:
    """Return one recording as a test."""
    case = ET.Element(
        "testcase",
        classname=verdict.name,
        name=part.name or verdict.name,
        time=f"{part.seconds:.3f}",
    )
    kind = {"error": "failure", "unchecked": "error"}.get(part.outcome)
    if kind is not None:
        found = [
            diagnostic.text
            for diagnostic in part.diagnostics
            if diagnostic.level != "note"
        ]
        ET.SubElement(case, kind, message=strip("; ".join(found))).text = strip(
            "\n".join(filter(None, (part.traceback, part.explanation)))
        )
    if part.summary:
        ET.SubElement(case, "system-out").text = strip(part.summary)
    return case


def strip(text: str) -> str:
    """Return a text without characters that XML does not allow."""
    return NO_XML.sub("", text)


SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

HELP: Final = {
    "error": "The program fails on tensors without data, as it would with data.",
    "unchecked": "The program cannot be checked to its end.",
    "budget": "A recording takes more than its budget.",
    EMPTY: "Nothing initialized a parameter or buffer.",
    OTHERWISE: "A parameter or buffer holds other values than its constructor gave.",
    "changed": "A recording differs from the baseline.",
}
NOTE: Final = "The code is legal, and rarely what its author meant."


def render_sarif(verdicts: Iterable[Verdict], folder: Path) -> str:
    """Return a log of SARIF 2.1.0.

    Args:
        verdicts: The results.
        folder: The root of the checkout: files in it get relative names.
    """
    found = [
        (diagnostic, part, verdict)
        for verdict in verdicts
        for part in verdict.parts
        for diagnostic in part.diagnostics
    ]
    rules = dict.fromkeys(diagnostic.rule for diagnostic, _, _ in found)
    driver = {
        "name": "meta-magic",
        "version": find_version(),
        "rules": [
            {"id": name, "shortDescription": {"text": HELP.get(name, NOTE)}}
            for name in rules
        ],
    }
    results = [
        describe_result(
            diagnostic, list(rules).index(diagnostic.rule), part, verdict, folder
        )
        for diagnostic, part, verdict in found
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1) + "\n"


def find_version() -> str:
    """Return the version of this package; 0 where it is not installed."""
    try:
        return version("meta-magic")
    except PackageNotFoundError:
        return "0"


def describe_result(
    diagnostic: Diagnostic, rule: int, part: BlockResult, verdict: Verdict, folder: Path
) -> dict[str, Any]:
    """Return one diagnostic, at its line."""
    text = diagnostic.text
    if diagnostic.rule == "error" and part.explanation:
        text = f"{text}\n{part.explanation}"
    whole = " ".join(filter(None, (verdict.name, part.name)))
    return {
        "ruleId": diagnostic.rule,
        "ruleIndex": rule,
        "level": diagnostic.level,
        "message": {"text": f"{text}\n({whole})"},
        "locations": [*describe_locations(diagnostic, folder)],
    }


def describe_locations(
    diagnostic: Diagnostic, folder: Path
) -> Iterable[dict[str, Any]]:
    """Yield the location of a diagnostic, if its file is known."""
    if diagnostic.file is None:
        return
    path = Path(diagnostic.file)
    is_inside = path.is_relative_to(folder)
    uri = path.relative_to(folder).as_posix() if is_inside else path.as_posix()
    location = {
        "artifactLocation": {"uri": quote(uri) if is_inside else path.as_uri()},
        "region": {"startLine": diagnostic.line or 1},
    }
    yield {"physicalLocation": location}
