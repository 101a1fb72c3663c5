"""Why the sizes of a finished recording are what they are: asked from a report."""

import time
from collections.abc import Mapping
from typing import Any, Final

from meta_magic.errors import MetaMagicError
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.trace import Trace
from meta_magic.view.answers import Answers
from meta_magic.view.explanation_payload import lineage_payload
from meta_magic.view.held import hold
from meta_magic.view.values_of_tensors import values_of

__all__ = ["answers_of"]

PAUSE: Final = 0.05
"""Seconds between two looks at whether another recording has ended."""


def answers_of(trace: Trace) -> tuple[Answers[Any], ...]:
    """Return what answers questions about a recording: for values, and for why.

    The latter are of the ``dim`` of the tensor at ``slot`` of ``op``.
    """
    whys = Answers("why", hold(trace.program, trace), answer_why)
    return values_of(trace.program), whys


def answer_why(trace: Trace, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a size comes from; or ``error``, in words.

    The block may be recorded again, in a child: not while another is recorded, as the
    child would have its torch.
    """
    while RARE_COLLECTION.n_entered:
        time.sleep(PAUSE)
    call = trace.ops[asked["op"]]
    tensor = (*call.inputs, *call.outputs)[asked["slot"]]
    try:
        return lineage_payload(trace.why(tensor, asked["dim"]))
    except MetaMagicError as error:
        return {"error": str(error)}
