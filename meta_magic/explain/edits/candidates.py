"""Edits of a program that may mend a failed call, of all families, the likeliest first.

Numbers (``number_edits``, and ``root_edits`` for those far away) and operands
(``operand_edits``) by what the call accepts; what calls are told (``argument_edits``),
what was meant of tensors (``intent_edits``) and of modules (``module_edits``), and what
autograd refuses (``backward_edits``) by what people forget and mistake. Which of them
help is left to a trial.
"""

from typing import Final

from meta_magic.explain.edits.argument_edits import edit_arguments
from meta_magic.explain.edits.backward_edits import edit_refusals
from meta_magic.explain.edits.edit import Edit, sort_edits
from meta_magic.explain.edits.intent_edits import edit_intents
from meta_magic.explain.edits.module_edits import edit_modules
from meta_magic.explain.edits.number_edits import edit_numbers
from meta_magic.explain.edits.operand_edits import edit_operands
from meta_magic.explain.edits.root_edits import edit_roots
from meta_magic.explain.edits.situations import Situation

__all__ = ["list_edits"]

FAMILIES: Final = (
    edit_operands,
    edit_numbers,
    edit_roots,
    edit_arguments,
    edit_intents,
    edit_modules,
    edit_refusals,
)


def list_edits(situation: Situation) -> list[Edit]:
    """Return edits that may mend a failed call, the likeliest first."""
    return sort_edits(edit for family in FAMILIES for edit in family(situation))
