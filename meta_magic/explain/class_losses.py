"""Losses of classes: their scores have the classes in dimension 1, not in the last one.

``F.cross_entropy(logits, targets)`` with (batch, time, classes) and (batch, time) is
the commonest failed call. Trying numbers misleads: with other sizes any layout is
accepted. So the layouts that people mean are tried here, before any number.
"""

from collections.abc import Iterator, Mapping
from math import prod
from operator import methodcaller
from typing import Final

from torch import nn
from torch.nn import functional

from meta_magic.explain.probing import Change, Probe
from meta_magic.session.raised_calls import call_module
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.units import format_shape

LOSSES: Final = frozenset(
    (functional.cross_entropy, functional.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
)

SEQUENCE: Final = 3
"""Dimensions of the scores of sequences."""


def list_layouts(probe: Probe) -> list[Mapping[int, Change]]:
    """Return the layouts of scores and targets that a loss of classes accepts."""
    layouts = _propose_layouts(probe.call) if is_class_loss(probe.call) else ()
    return [changes for changes in layouts if probe.run(changes=changes) is not None]


def find_layout_rules(probe: Probe) -> Iterator[str]:
    """Yield in which dimension a loss wants the classes, if that is what it refuses."""
    layouts = list_layouts(probe)
    if layouts:
        scores, targets = (operand for operand in probe.call.operands[:2])
        *others, n_classes = scores.geometry.shape
        asked = f"({prod(others)}, {n_classes}) with ({prod(others)},)"
        if len(targets.geometry.shape) == len(others):
            turned = format_shape((others[0], n_classes, *others[1:]))
            asked = f"{turned} with {format_shape(tuple(others))}, or {asked}"
        yield f"the classes must be dimension 1 of {scores.name}: {asked}, is accepted"


def is_class_loss(call: FailedCall) -> bool:
    """Whether a call computes a loss of classes from scores and targets."""
    called = call.args[0] if call.function is call_module else call.function
    return len(call.operands) > 1 and called in LOSSES


def _propose_layouts(call: FailedCall) -> Iterator[Mapping[int, Change]]:
    scores, targets = (operand.geometry.shape for operand in call.operands[:2])
    rank = len(scores)
    merged = Change(
        f"{{}}.flatten(0, {rank - 2})", methodcaller("flatten", 0, rank - 2)
    )
    if rank < SEQUENCE:
        return
    if targets == scores[:-1]:
        text = "transpose(1, 2)" if rank == SEQUENCE else "movedim(-1, 1)"
        yield {0: Change(f"{{}}.{text}", methodcaller("movedim", -1, 1))}
        yield {0: merged, 1: Change("{}.flatten()", methodcaller("flatten"))}
    elif targets == (prod(scores[:-1]),):
        yield {0: merged}
