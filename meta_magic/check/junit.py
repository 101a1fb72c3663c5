"""Verdicts as JUnit's XML, which CI servers show: each recording is a test."""

import re
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from meta_magic.check.verdicts import Part, Verdict

__all__ = ["render_junit"]

NO_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(verdicts: Sequence[Verdict]) -> str:
    """Return a file of JUnit's.

    Source:
        The elements and attributes that pytest's ``--junit-xml`` writes.
    """
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


def describe_case(verdict: Verdict, part: Part) -> ET.Element:
    """Return one recording as a test."""
    case = ET.Element(
        "testcase",
        classname=verdict.name,
        name=part.name or verdict.name,
        time=f"{part.seconds:.3f}",
    )
    kind = {"error": "failure", "unchecked": "error"}.get(part.outcome)
    if kind is not None:
        found = [finding.text for finding in part.findings if finding.level != "note"]
        ET.SubElement(case, kind, message=strip("; ".join(found))).text = strip(
            "\n".join(walk_texts(part))
        )
    if part.summary:
        ET.SubElement(case, "system-out").text = strip(part.summary)
    return case


def walk_texts(part: Part) -> Iterator[str]:
    """Yield what is said of a failure."""
    yield from filter(None, (part.traceback, part.explanation))


def strip(text: str) -> str:
    """Return a text without the characters that XML cannot have."""
    return NO_XML.sub("", text)
