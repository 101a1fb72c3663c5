"""A program that fails, made as short as it can be while it still fails alike."""

import re
from collections.abc import Callable

from tests.conformance.fuzz.checking import check
from tests.conformance.fuzz.findings import Finding
from tests.conformance.fuzz.programs import Program, Statement

OPENING = "with mm.record() as trace_{n}:"


def reduce(program: Program, finding: Finding) -> tuple[Program, Finding]:
    """Return the shortest program found that has the same finding, and that finding.

    Statements are left out, more at a time first; then cells are joined.
    """

    def find(statements: tuple[Statement, ...]) -> Finding | None:
        found = check(program.with_statements(statements))
        same = (f for f in found if is_alike(f, finding))
        return next(same, None)

    statements = drop_statements(program.statements, find)
    joined = tuple(
        Statement(s.text, 0, s.template) for s in statements if s.is_recorded
    )
    if joined != statements and find(joined):
        statements = drop_statements(joined, find)
    return program.with_statements(statements), find(statements) or finding


def is_alike(a: Finding, b: Finding) -> bool:
    """Whether two findings are of the same cause, as far as can be told."""
    return (a.kind, a.check, a.about) == (b.kind, b.check, b.about)


def drop_statements(
    statements: tuple[Statement, ...],
    find: Callable[[tuple[Statement, ...]], Finding | None],
) -> tuple[Statement, ...]:
    """Return statements without those that are not needed to find it."""
    n = max(len(statements) // 2, 1)
    while n:
        start = len(statements) - n
        while start > -n:
            fewer = statements[: max(start, 0)] + statements[start + n :]
            if fewer and find(fewer):
                statements = fewer
            start -= n
        n //= 2
    return statements


def render(program: Program, finding: Finding) -> str:
    """Return a program as Python, with what differs above it."""
    source = program.source(OPENING).split("\n", 1)
    seeded = [source[0], f"torch.manual_seed({program.seed})", source[1]]
    text = re.sub(r"\s+", " ", finding.text)[:400]
    title = f"# {finding.kind}, {finding.check}: {text}"
    return "\n".join([title, *seeded])
