"""For which sizes a block runs, and why it fails at others: ``trace.check``.

``trials/conditions`` finds the condition; a last recording, at the smallest size that
fails, is explained as any block that fails. Read :func:`check_sizes` first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from meta_magic.errors import TrialError
from meta_magic.explain.across_cells import translate
from meta_magic.explain.explanations import Explanation, explain_alone
from meta_magic.trace.trace import Trace
from meta_magic.trials.conditions import Found, find_conditions
from meta_magic.trials.trial import ask_trials

SECONDS: Final = 4.0
"""Processor time of the child that explains why a size fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """For which sizes a block runs; ``print`` shows it.

    A size fails if the block raises, if a variable has another number of dimensions, or
    if a note on a broadcast appears.

    Attributes:
        text: A sentence for each name, with the smallest size that fails.
        condition: The condition as an expression of Python, such as ``side % 32 == 0``;
            ``True`` if no size failed.
        sizes: By name, whether each size that was recorded runs.
        line: The line that fails at the smallest size that fails; None if none fails,
            or if no line says it.
        why: Why the block fails there; None if it does not raise.
        caveat: What the condition rests on besides: variables that are not made again,
            sizes that could not be recorded.
    """

    text: str
    condition: str
    sizes: Mapping[str, Mapping[int, bool]]
    line: int | None = None
    why: Explanation | None = field(default=None, repr=False)
    caveat: str = ""

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.text, self.caveat)))


def check_sizes(trace: Trace, given: Mapping[str, Sequence[int] | None]) -> Condition:
    """Return for which sizes a block runs; see :meth:`Trace.check`."""
    found = find_conditions(trace, given)
    line, why = None, None
    failing = [(one, *one.failing) for one in found if one.failing is not None]
    for one, size, verdict in failing[:1]:
        line = verdict.line
        if one.joined is not None and line is not None:
            part, own = one.joined.find(line)
            line = None if part.name else own
        why = _explain_size(trace, one, size) if verdict.is_raised else None
    forms = [one.form.write(one.name) for one in found]
    parts = [form for form in forms if form != "True"]
    marked = [f"({part})" if " and " in part and parts[1:] else part for part in parts]
    return Condition(
        text="\n".join(one.describe() for one in found),
        condition=" and ".join(marked) or "True",
        sizes={one.name: one.list_sizes() for one in found},
        line=line,
        why=why,
        caveat=" ".join(filter(None, (one.describe_caveat() for one in found))),
    )


def _explain_size(trace: Trace, found: Found, size: int) -> Explanation | None:
    """Return why a block fails at a size of a name."""
    joined, runs = found.joined, trace
    if joined is not None:
        runs = replace(trace, rerun=joined.rerun)

    def ask(again: Trace, _: object) -> Explanation | None:
        return None if again.failed is None else explain_alone(again, again.failed)

    varied = [{found.spec: size}]
    (why,) = ask_trials(runs, ask, varied, seconds=SECONDS, asks_failed=True)
    if isinstance(why, TrialError) or why is None:
        return None
    if joined is None:
        return why
    line = None if why.line is None else joined.find(why.line)[1]
    return translate(why, joined, replace(trace, error=why.error, error_line=line))
