"""Verdicts as SARIF, from which GitHub annotates the lines of a pull request.

Source:
    Static Analysis Results Interchange Format 2.1.0, OASIS Standard.
"""

import json
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from meta_magic.check.verdicts import Finding, Part, Verdict

__all__ = ["render_sarif"]

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

HELP: Final = {
    "error": "The program fails on tensors that have no data, as it would with data.",
    "unchecked": "The program cannot be checked to its end.",
    "budget": "A recording takes more than its budget.",
    "changed": "A recording is otherwise than the baseline has it.",
}
NOTE: Final = "What is legal and rarely meant."


def render_sarif(verdicts: Iterable[Verdict], folder: Path) -> str:
    """Return a log of SARIF 2.1.0.

    Args:
        verdicts: What was found.
        folder: Files in it are named from there, as in a checkout.
    """
    found = [
        (finding, part, verdict)
        for verdict in verdicts
        for part in verdict.parts
        for finding in part.findings
    ]
    rules = dict.fromkeys(finding.rule for finding, _, _ in found)
    driver = {
        "name": "meta-magic",
        "version": find_version(),
        "rules": [describe_rule(name) for name in rules],
    }
    results = [
        describe_result(finding, list(rules).index(finding.rule), part, verdict, folder)
        for finding, part, verdict in found
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


def describe_rule(name: str) -> dict[str, Any]:
    """Return a rule: of an error, or of a kind of notes."""
    return {"id": name, "shortDescription": {"text": HELP.get(name, NOTE)}}


def describe_result(
    finding: Finding, rule: int, part: Part, verdict: Verdict, folder: Path
) -> dict[str, Any]:
    """Return one finding, at its line."""
    text = finding.text
    if finding.rule == "error" and part.explanation:
        text = f"{text}\n{part.explanation}"
    whole = " ".join(filter(None, (verdict.name, part.name)))
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.level,
        "message": {"text": f"{text}\n({whole})"},
        "locations": [*describe_places(finding, folder)],
    }


def describe_places(finding: Finding, folder: Path) -> Iterable[dict[str, Any]]:
    """Yield where a finding is, if that is known; without a line, at the first."""
    if finding.file is None:
        return
    path = Path(finding.file)
    is_inside = path.is_relative_to(folder)
    uri = path.relative_to(folder).as_posix() if is_inside else path.as_posix()
    place = {
        "artifactLocation": {"uri": quote(uri) if is_inside else path.as_uri()},
        "region": {"startLine": finding.line or 1},
    }
    yield {"physicalLocation": place}
