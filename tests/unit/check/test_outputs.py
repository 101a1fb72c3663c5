"""What is written of verdicts: JUnit's XML, SARIF, JSON, and text."""

import json
from xml.etree import ElementTree as ET

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema

from meta_magic.check.outputs import (
    format_verdict,
    render_json,
    render_junit,
    render_sarif,
)
from meta_magic.check.records import BlockResult, Diagnostic, Verdict, pick_exit_code

SCHEMA = StaticAnalysisResultsFormatSarifVersion210JsonSchema
"""Made of the standard's own JSON schema, and refuses what that does not know."""


@pytest.fixture
def verdicts(tmp_path):
    right = BlockResult(outcome="right", summary="1 operator", file=f"{tmp_path}/a.py")
    error = Diagnostic(
        rule="error",
        level="error",
        text="RuntimeError: \x1b no <match>",
        file=f"{tmp_path}/my models/b.ipynb",
        line=12,
    )
    note = Diagnostic(rule="broadcast", level="note", text="sizes", file="/else/c.py")
    failed = BlockResult(
        name="cell 3",
        outcome="error",
        diagnostics=(error, note),
        traceback='  File "cell 3", line 1\nRuntimeError: no',
        explanation="4 must equal 3",
    )
    reason = Diagnostic(rule="unchecked", level="warning", text="it asks for input")
    unchecked = BlockResult(outcome="unchecked", diagnostics=(reason,))
    return [
        Verdict(name="a.py", parts=(right,), seconds=1.0),
        Verdict(name="b.ipynb", parts=(right, failed), seconds=2.0),
        Verdict(name="c.py", parts=(unchecked,), output="how many?\n", seconds=0.5),
    ]


def test_sarif_is_as_its_schema_has_it(verdicts, tmp_path):
    SCHEMA.model_validate_json(render_sarif(verdicts, tmp_path))
    SCHEMA.model_validate_json(render_sarif([], tmp_path))


def test_sarif_names_files_from_the_folder_on_and_their_lines(verdicts, tmp_path):
    (run,) = json.loads(render_sarif(verdicts, tmp_path))["runs"]
    places = [
        [
            (place["artifactLocation"]["uri"], place["region"]["startLine"])
            for place in (one["physicalLocation"] for one in result["locations"])
        ]
        for result in run["results"]
    ]
    assert places == [[("my%20models/b.ipynb", 12)], [("file:///else/c.py", 1)], []]


def test_each_result_of_sarif_has_its_rule(verdicts, tmp_path):
    (run,) = json.loads(render_sarif(verdicts, tmp_path))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["error", "broadcast", "unchecked"]
    assert [rules[r["ruleIndex"]] for r in run["results"]] == [
        r["ruleId"] for r in run["results"]
    ]


def test_junit_counts_failures_and_what_cannot_be_checked(verdicts):
    suite = ET.fromstring(render_junit(verdicts)).find("testsuite")
    counts = [suite.get(name) for name in ("tests", "failures", "errors")]
    assert counts == ["4", "1", "1"]


def test_junit_has_a_test_for_each_recording(verdicts):
    cases = ET.fromstring(render_junit(verdicts)).findall(".//testcase")
    assert [(case.get("classname"), case.get("name")) for case in cases] == [
        ("a.py", "a.py"),
        ("b.ipynb", "b.ipynb"),
        ("b.ipynb", "cell 3"),
        ("c.py", "c.py"),
    ]
    failure = cases[2].find("failure")
    assert failure.get("message") == "RuntimeError:  no <match>"  # no control codes
    assert failure.text.endswith("4 must equal 3")
    assert cases[3].find("error").get("message") == "it asks for input"
    assert cases[0].find("system-out").text == "1 operator"


def test_json_has_the_exit_code_and_the_diagnostics(verdicts):
    content = json.loads(render_json(verdicts))
    assert content["exit_code"] == 1
    assert [one["outcome"] for one in content["checked"]] == [
        *("right", "error", "unchecked")
    ]
    found = content["checked"][1]["recordings"][1]["findings"][0]
    assert (found["rule"], found["line"]) == ("error", 12)


def test_an_error_decides_the_exit_code_before_what_cannot_be_checked(verdicts):
    assert pick_exit_code(verdicts) == 1
    assert pick_exit_code([verdicts[0], verdicts[2]]) == 2
    assert pick_exit_code(verdicts[:1]) == 0


def test_the_text_of_a_failure_names_the_cell_and_says_why(verdicts):
    lines = format_verdict(verdicts[1]).splitlines()
    assert lines[0] == "b.ipynb: error (2.0 s)"
    assert lines[-4:] == [
        "  cell 3: error",
        '    File "cell 3", line 1',
        "  RuntimeError: no",
        "  4 must equal 3",
    ]


def test_what_cannot_be_checked_says_why_and_what_it_printed_last(verdicts):
    assert format_verdict(verdicts[2]).splitlines() == [
        "c.py: cannot be checked (0.5 s)",
        "  why: it asks for input",
        "  it printed last:",
        "    how many?",
    ]
