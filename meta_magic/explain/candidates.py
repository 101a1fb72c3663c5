"""Edits of a program that may mend a failed call, of all families, the likeliest first.

Numbers (``number_edits``) and operands (``operand_edits``) by what the call accepts;
what calls are told (``argument_edits``) and what was meant (``intent_edits``) by what
people forget and mistake. Which of them help is left to a trial.
"""

from collections.abc import Iterable
from typing import Final

from meta_magic.explain.argument_edits import edit_arguments
from meta_magic.explain.edits import Edit
from meta_magic.explain.intent_edits import edit_intents
from meta_magic.explain.number_edits import edit_numbers
from meta_magic.explain.operand_edits import edit_operands
from meta_magic.explain.situations import Situation

__all__ = ["list_edits", "sort_edits"]

MAX_EDITS: Final = 80

FAMILIES: Final = (edit_operands, edit_numbers, edit_arguments, edit_intents)


def list_edits(situation: Situation) -> list[Edit]:
    """Return edits that may mend a failed call, the likeliest first."""
    return sort_edits(edit for family in FAMILIES for edit in family(situation))


def sort_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Return edits, the likeliest first, none twice."""
    best: dict[object, Edit] = {}
    for edit in edits:
        known = best.get(frozenset(edit.stretches))
        if edit.stretches and (known is None or edit.cost < known.cost):
            best[frozenset(edit.stretches)] = edit
    return sorted(best.values(), key=lambda edit: edit.cost)[:MAX_EDITS]
