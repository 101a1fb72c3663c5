"""The text of an explanation is no longer than a screen."""

from dataclasses import replace

from tests.conformance.explanations import record_cell

LONG = "\n".join(
    [
        "import torch",
        *(f"def f{n}(*x):\n    return f{n - 1}(*x)" for n in range(9, 0, -1)),
        "def f0(*x):\n    return torch.cat(x)",
        "f9(*[torch.ones(2, n) for n in range(3, 15)])",
    ]
)


def test_it_has_at_most_25_lines_and_says_what_is_left_out():
    found = record_cell(LONG, "<long>").explanation
    assert len(found.callers) == 10
    assert len(found.given) == 12
    assert len(found.text.splitlines()) <= 25
    assert "    and 4 more" in found.text.splitlines()


def test_rules_and_repairs_stand_longest():
    found = record_cell(LONG, "<long>").explanation
    short = record_cell(
        "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)", "<short>"
    ).explanation
    full = replace(
        found,
        rules=tuple(f"rule {n}" for n in range(4)),
        lineages=short.lineages,
        repairs=short.repairs * 3,
    )
    lines = full.text.splitlines()
    assert len(lines) <= 25
    assert "  rule 0" in lines
    assert "repairs that ran" in lines
    assert "    ..." in lines
