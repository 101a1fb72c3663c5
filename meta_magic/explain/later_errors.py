"""Errors that come after the first one: what fails once its first edit is made.

``meta-magic check train.py`` names all errors of a run, not one after each other: where
an edit passes the failed line and a later line fails, the edited text is recorded and
explained as well. Read :func:`explain_later`.
"""

import linecache
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Final

from meta_magic.explain.explanations import Explanation, explain_alone
from meta_magic.recording.as_device.oracle.child import NO_ANSWER, ask_child, can_fork
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.notes import CellSource
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

MAX_LATER: Final = 4

SECONDS: Final = 8.0
"""Processor time of a child that records the edited text and explains it."""

PATIENCE: Final = 12.0
"""How many seconds to wait for that child on a busy machine."""


def explain_later(trace: Trace, first: Explanation) -> Iterator[Explanation]:
    """Yield why later lines of a block fail, each with the first edits of all before.

    Args:
        trace: The recording that failed.
        first: Why it failed.
    """
    rerun, found = trace.rerun, first
    if rerun is None or rerun.text is None or not can_fork():
        return
    for _ in range(MAX_LATER):
        repair = found.repairs[0] if found.repairs else None
        if repair is None or not repair.then or repair.cell:
            return
        lines = str(rerun.text).split("\n")
        for line, _before, after in repair.changes:
            lines[line - 1] = after
        rerun = replace(rerun, text="\n".join(lines))
        answered = ask_child(partial(_explain, rerun), SECONDS, PATIENCE)
        if answered is NO_ANSWER or answered is None:
            return
        found = answered
        yield found


def _explain(rerun: Rerun) -> Explanation | None:
    """Record a text, and return why it fails; runs in a child."""
    leave_dynamo_out()
    refused, text = enter_sandbox(), str(rerun.text)
    lines = text.splitlines(keepends=True)
    linecache.cache[rerun.file] = len(text), None, lines, rerun.file
    block = parse_block(rerun)
    again = record_block(rerun, block, restore_variables(rerun, block, {}), nullcontext)
    if refused or again.failed is None:
        return None
    source = CellSource(text=text, file=rerun.file)
    return explain_alone(replace(again, rerun=rerun, cell=source), again.failed)
