"""Compare what two runs of a cell printed, but for what may differ.

That is what a meta tensor shows after its values, where it is, addresses, and how long
something took.
"""

import re

SAME, WITHOUT_VALUES, UNSTABLE, OTHER = "same", "without values", "unstable", "other"

NUMBER = r"\d[\d.,]*(?:e[-+]?\d+)?"
UNIT = r"(?:[mnuµ]?s|secs?|seconds?|mins?|minutes?|h|hours?|it/s|s/it)"
TOOK = r"(?:time|took|elapsed|ms/\w+|/sec)"
DEVICE = r"device=\\?'[\w:]+\\?'"
FACT = rf"(?:{DEVICE}|size=\([\d, ]*\)|dtype=[\w.]+|grad_fn=<\w+>|requires_grad=\w+)"
RULES = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"/tmp/tmp\w+/copy"), "."),
    (re.compile(r"\s+"), " "),
    (re.compile(rf"(?:, {FACT})+"), ""),
    (re.compile(r"\bOut\[\d+\]:\s*"), ""),
    (re.compile(r"\btorch\.meta\.(?=\w+Tensor\b)"), "torch."),
    (re.compile(r"\bmeta\b"), "cpu"),
    (re.compile(rf"{NUMBER}\s?{UNIT}\b"), "TIME"),
    (re.compile(rf"{NUMBER} loops? each"), "TIME"),
    (re.compile(r'"'), "'"),  # Python chooses them by what stands between
    (re.compile(rf"(?i)({TOOK}[a-z ]*(?:\([^)]*\))?[\s:=|]*){NUMBER}"), r"\1TIME"),
    (re.compile(r"\d+:\d\d(?::\d\d)?(?:\.\d+)?"), "TIME"),
)
UNKNOWN = "tensor(...)"
"""A tensor that does not show its values."""


def normalize(text: str) -> str:
    """Return a text without what may differ between two runs that print the same."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text.strip()


def compare_texts(real: str, recorded: str, again: str | None = None) -> str:
    """Return how what was printed under ``%%meta`` differs from what should be.

    Args:
        real: What the cell prints for real.
        recorded: What it printed under ``%%meta``.
        again: What it prints in another real run, if there was one.

    Returns:
        ``same``, ``without values`` if nothing differs but that values are not shown,
        ``unstable`` if two real runs differ in other words than they can be compared
        without, or ``other``.
    """
    wanted, met = normalize(real), normalize(recorded)
    if wanted == met:
        return SAME
    if UNKNOWN in met:
        parts = (re.escape(part) for part in met.split(UNKNOWN))
        if re.fullmatch(r"\w+\(.*?\)".join(parts), wanted):
            return WITHOUT_VALUES
    return OTHER if again is None else compare_stable(wanted, met, normalize(again))


def compare_stable(wanted: str, met: str, again: str) -> str:
    """Compare the words that are alike in two real runs."""
    words = [text.split() for text in (wanted, met, again)]
    if len(words[0]) != len(words[2]):
        return UNSTABLE
    if len(words[0]) != len(words[1]):
        return OTHER
    differ = [a != b for a, b, c in zip(*words, strict=True) if a == c]
    if any(differ):
        return OTHER
    return UNSTABLE
