"""Say what may differ between a replay and the cell itself, run on the device."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch

from meta_magic.materializing.targets import Target
from meta_magic.replaying.steps import Plan, StepKind

__all__ = ["find_doubts", "find_uncounted"]

UNCOUNTED: Final = (
    "{} was made in inference mode, where torch does not count writes: one outside of "
    "any recording since is not in it"
)

FUSED: Final = frozenset(
    {"torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"}
    | {"torch.nn.functional.scaled_dot_product_attention"}
    | {"torch.nn.functional.multi_head_attention_forward"}
)
"""Functions for which devices have a kernel that rounds in another order."""

RECURRENT: Final = frozenset(
    {"torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"}
)
"""Those that are recorded as the CPU runs them, or with a doubt."""


def find_doubts(plans: Sequence[Plan], device: torch.device) -> list[str]:
    """Return what the user should know of the values that a replay gives.

    Args:
        plans: What is replayed, of one recording each.
        device: Where.
    """
    doubts = dict.fromkeys(
        (text, line)
        for plan in plans
        for text, line in (*plan.recorded.program.doubts, *find_fused(plan))
    )
    return [
        f"{text if line is None else f'line {line}: {text}'}; on {device} the cell "
        "itself may give other values"
        for text, line in doubts
    ]


def find_uncounted(targets: Iterable[Target]) -> Iterator[str]:
    """Yield which targets might have been written since without a trace."""
    for target in targets:
        if any(tensor.is_inference() for tensor in target.tensors):
            yield UNCOUNTED.format(repr(target.name))


def find_fused(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Yield the calls, with their line, for which devices have one kernel."""
    recorded = plan.recorded
    for step in plan.steps:
        name = recorded.function(step.call.number) or ""
        is_told = recorded.program.as_device == "cpu" and name in RECURRENT
        if step.kind == StepKind.RUN and name in FUSED and not is_told:
            text = f"{name} is many operators on meta, and one kernel elsewhere"
            yield text, recorded.line(step.call.number)
