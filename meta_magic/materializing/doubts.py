"""Say what may differ between a replay and the cell itself, run on the device."""

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from meta_magic.replaying.steps import Plan, StepKind

__all__ = ["find_doubts"]

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
    told = [
        f"{text if line is None else f'line {line}: {text}'}; on {device} the cell "
        "itself may give other values"
        for text, line in doubts
    ]
    return [*told, *find_repetitions(plans)]


def find_fused(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Yield the calls, with their line, for which devices have one kernel."""
    recorded = plan.recorded
    for step in plan.steps:
        name = recorded.function(step.call.number) or ""
        is_told = recorded.program.as_device == "cpu" and name in RECURRENT
        if step.kind == StepKind.RUN and name in FUSED and not is_told:
            text = f"{name} is many operators on meta, and one kernel elsewhere"
            yield text, recorded.line(step.call.number)


def find_repetitions(plans: Sequence[Plan]) -> Iterator[str]:
    """Say if two recordings drew the same numbers: meta moves no generator."""
    starts: list[bytes] = []
    for plan in plans:
        states = plan.recorded.program.randomness.states
        draws = (step.draw for step in plan.steps)
        first = next((d for d in draws if d and d.generator == 0), None)
        if first is not None and first.source & 1:
            starts.append(states[first.source // 2])
    if len(set(starts)) < len(starts):
        yield (
            "two recordings began at the same state of torch's generator, which meta "
            "does not move, and so drew the same numbers: seed each"
        )
