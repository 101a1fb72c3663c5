"""Recurrent layers over packed sequences, as the CPU runs them: inputs at once.

The rows of a step lie together, those of the longest sequence first: with each step
some sequences end, or, from the last step on, some more begin. Where none ends before
another, oneDNN runs an LSTM as one over sequences that are not packed.

Source: ``PackedLayer`` and ``ReversedPackedLayer`` in ``RNN.cpp`` of torch 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.as_device.recurrent import (
    Cell,
    Hidden,
    Weights,
    gather,
    is_by_onednn,
    run_gru,
    run_layers,
    run_lstm,
    run_lstms,
    run_simple,
    stack_states,
)

__all__ = ["PACKED_RECURRENT"]

aten = torch.ops.aten

Step: TypeAlias = Callable[[Tensor, Hidden], Hidden]
"""Takes weighed inputs and the hidden state; returns the next one."""


def run_packed(  # noqa: PLR0913, PLR0917  the operators' own
    cell: Cell,
    _: object,
    data: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001
    num_layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
) -> Any:
    """Run ``lstm``, ``gru`` or a simple layer on packed sequences."""
    is_lstm = not isinstance(hx, Tensor)
    if batch_sizes.is_meta or (is_lstm and len(hx) != 2):  # noqa: PLR2004  torch refuses
        return NotImplemented
    states = hx if is_lstm else (hx,)
    is_projected = is_lstm and hx[0].shape[2] != hx[1].shape[2]
    sizes = batch_sizes.tolist()
    is_even = is_lstm and not is_projected and sizes[0] == sizes[-1]
    if is_even and is_by_onednn(data):
        steps = aten.view(data, (len(sizes), sizes[0], data.shape[1]))
        settings = has_biases, num_layers, dropout, train, bidirectional, False
        output, *states = run_lstms(_, steps, hx, params, *settings)
        return aten.view(output, (data.shape[0], output.shape[2])), *states
    hidden = list(zip(*map(aten.unbind.int, states), strict=True))
    weights = gather(params, has_biases=has_biases, is_projected=is_projected)
    layer = partial(run_packed_layer, cell, sizes)
    run = partial(run_layers, layer, data, hidden, weights, dropout, num_layers)
    output, last = run(is_training=train)
    return output, *stack_states(last)


def run_packed_layer(
    cell: Cell,
    sizes: Sequence[int],
    a: Tensor,
    hidden: Hidden,
    weights: Weights,
    direction: int,
) -> tuple[Tensor, Hidden]:
    """Run a layer over all steps, from the last one on if ``direction`` is 1."""

    def step(given: Tensor, hidden: Hidden) -> Hidden:
        return cell(given, hidden, weights)

    weighed = aten.linear(a, weights[0], weights[2])
    run = run_back if direction else run_on
    return run(step, sizes, weighed, hidden)


def run_on(
    step: Step, sizes: Sequence[int], a: Tensor, hidden: Hidden
) -> tuple[Tensor, Hidden]:
    """Run all steps; the states of sequences that end are kept until then."""
    outputs: list[Tensor] = []
    ended: list[Hidden] = []
    start, last = 0, sizes[0]
    for size in sizes:
        given = aten.narrow(a, 0, start, size)
        if size < last:
            ended.append(cut(hidden, size, last))
            hidden = cut(hidden, 0, size)
        hidden = step(given, hidden)
        outputs.append(hidden[0])
        start, last = start + size, size
    return aten.cat(outputs), join([hidden, *ended[::-1]])


def run_back(
    step: Step, sizes: Sequence[int], a: Tensor, first: Hidden
) -> tuple[Tensor, Hidden]:
    """Run all steps from the last one on; with each some sequences may begin."""
    outputs: list[Tensor] = []
    end, last = a.shape[0], sizes[-1]
    hidden = cut(first, 0, last)
    for size in sizes[::-1]:
        if size > last:
            hidden = join([hidden, cut(first, last, size)])
        hidden = step(aten.narrow(a, 0, end - size, size), hidden)
        outputs.append(hidden[0])
        end, last = end - size, size
    return aten.cat(outputs[::-1]), hidden


def cut(hidden: Hidden, start: int, end: int) -> Hidden:
    """Return the states of some sequences, the last kind first, as GCC evaluates."""
    kinds = [aten.narrow(state, 0, start, end - start) for state in hidden[::-1]]
    return tuple(kinds[::-1])


def join(parts: Sequence[Hidden]) -> Hidden:
    """Return the states of all sequences; in the same order."""
    kinds = [aten.cat(states) for states in [*zip(*parts, strict=True)][::-1]]
    return tuple(kinds[::-1])


PACKED_RECURRENT: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "lstm.data": partial(run_packed, run_lstm),
        "gru.data": partial(run_packed, run_gru),
        "rnn_tanh.data": partial(run_packed, partial(run_simple, torch.tanh)),
        "rnn_relu.data": partial(run_packed, partial(run_simple, torch.relu)),
    }
)
"""By the operator's name, as ``composites`` has them."""
