"""What may be found when a program runs both for real and recorded."""

from dataclasses import dataclass

KINDS = ("silent", "crashed", "refused", "noted", "accepted", "unstable")
"""What may be found, the worst first: other than on the CPU without a word; an error
where the CPU has none; one of ours, with its reason; other than on the CPU, and a note
says so; no error, or another one, where the CPU has one; a program that is not the same
in two real runs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference.

    Attributes:
        kind: One of ``KINDS``.
        check: What was compared.
        text: What differs.
        about: What it is about, without the names of variables, to tell causes apart.
    """

    kind: str
    check: str
    text: str
    about: str = ""


def worst(findings: list[Finding]) -> Finding | None:
    """Return the finding that counts for a program, None if there is none."""
    return min(findings, key=lambda f: KINDS.index(f.kind), default=None)
