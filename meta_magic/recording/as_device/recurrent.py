"""Run recurrent layers as the CPU does: one product for all inputs, or oneDNN.

Without this ``nn.LSTM`` would be recorded as meta runs it: one product for each step,
and never by oneDNN. ``RECURRENT`` and ``PACKED_RECURRENT`` are the tables of operators.

Source: ``RNN.cpp`` and ``mkldnn/RNN.cpp`` in ``aten/src/ATen/native`` of torch 2.13.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import runs_lstm_by_onednn

LSTM_MODE: Final = 2

aten = torch.ops.aten

Weights: TypeAlias = Sequence[Tensor | None]
"""Weights of inputs and of hidden states, both biases, weights of the projection."""

Hidden: TypeAlias = tuple[Tensor, ...]
"""The hidden state; for an LSTM also the state of its cells."""

Cell: TypeAlias = Callable[[Tensor, Hidden, Weights], Hidden]
"""Takes inputs times weights, the hidden state, weights; returns the next state."""


Layer: TypeAlias = Callable[[Tensor, Any, Weights, int], tuple[Tensor, Hidden]]
"""Takes inputs, the first hidden state or its index, weights, and 1 to run backwards;
returns outputs and the last hidden state."""


def run_simple(
    activate: Callable[[Tensor], Tensor], a: Tensor, hidden: Hidden, weights: Weights
) -> Hidden:
    """Run one step of a simple layer."""
    _, weight, _, bias, _ = weights
    return (activate(aten.linear(hidden[0], weight, bias).add_(a)),)


def run_gru(a: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    """Run one step of a GRU."""
    _, weight, _, bias, _ = weights
    inputs = aten.unsafe_chunk(a, 3, 1)
    gates = aten.unsafe_chunk(aten.linear(hidden[0], weight, bias), 3, 1)
    reset = gates[0].add_(inputs[0]).sigmoid_()
    update = gates[1].add_(inputs[1]).sigmoid_()
    new = inputs[2].add(gates[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


def run_lstm(a: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    """Run one step of an LSTM."""
    _, weight, _, bias, projection = weights
    gates = aten.linear(hidden[0], weight, bias).add_(a)
    enter, keep, new, leave = aten.unsafe_chunk(gates, 4, 1)
    enter, keep = enter.sigmoid_(), keep.sigmoid_()
    new, leave = new.tanh_(), leave.sigmoid_()
    memory = (keep * hidden[1]).add_(enter * new)
    output = leave * memory.tanh()
    if projection is not None:
        output = aten.matmul(output, projection.t())
    return output, memory


def run_layers(
    run: Layer,
    a: Tensor,
    hidden: Sequence[Any],
    weights: Sequence[Weights],
    dropout: float,
    n_layers: int,
    *,
    is_training: bool,
) -> tuple[Tensor, list[Hidden]]:
    """Run layer after layer, in one direction or in both."""
    last: list[Hidden] = []
    n_directions = len(weights) // n_layers
    for layer in range(n_layers):
        outputs: list[Tensor] = []
        for direction in range(n_directions):
            index = layer * n_directions + direction
            output, state = run(a, hidden[index], weights[index], direction)
            outputs.append(output)
            last.append(state)
        a = outputs[0] if n_directions == 1 else aten.cat(outputs, a.ndim - 1)
        if dropout and is_training and layer < n_layers - 1:
            a = aten.dropout(a, dropout, True)  # noqa: FBT003  torch's has no name
    return a, last


def run_steps(
    cell: Cell, a: Tensor, hidden: Hidden, weights: Weights, direction: int
) -> tuple[Tensor, Hidden]:
    """Run a layer over all steps, backwards if ``direction`` is 1."""
    steps = aten.unbind.int(aten.linear(a, weights[0], weights[2]))
    order = -1 if direction else 1
    outputs: list[Tensor] = []
    for step in steps[::order]:
        hidden = cell(step, hidden, weights)
        outputs.append(hidden[0])
    return aten.stack(outputs[::order]), hidden


def gather(
    params: Sequence[Tensor], *, has_biases: bool, is_projected: bool = False
) -> list[Weights]:
    """Return the weights of each layer and direction."""
    width = (4 if has_biases else 2) + is_projected
    gathered: list[Weights] = []
    for start in range(0, len(params), width):
        own = list(params[start : start + width])
        projection = own.pop() if is_projected else None
        gathered.append((*own, *[None] * (4 - len(own)), projection))
    return gathered


def run_recurrent(  # noqa: PLR0913, PLR0917  the operators' own
    cell: Cell,
    _: object,
    a: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001
    num_layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
    batch_first: bool,  # noqa: FBT001
) -> Any:
    """Run ``lstm``, ``gru`` or a simple layer: step by step, or an LSTM by oneDNN."""
    is_lstm = not isinstance(hx, Tensor)
    if is_lstm and len(hx) != 2:  # noqa: PLR2004  torch refuses this
        return NotImplemented
    states = hx if is_lstm else (hx,)
    is_projected = is_lstm and hx[0].shape[2] != hx[1].shape[2]
    weights = gather(params, has_biases=has_biases, is_projected=is_projected)
    if batch_first:
        a = aten.transpose.int(a, 0, 1)
    if is_lstm and not is_projected and is_by_onednn(a):
        settings = (has_biases, bidirectional, batch_first, train)
        made = run_onednn(a.contiguous(), hx, weights, num_layers, dropout, settings)
        order = 1
    else:
        hidden = list(zip(*map(aten.unbind.int, states), strict=True))
        layer = partial(run_steps, cell)
        run = partial(run_layers, layer, a, hidden, weights, dropout, num_layers)
        made = run(is_training=train)
        order = -1
    output, last = made
    stacked = stack_states(last, order)
    if batch_first:
        swap = aten.transpose.int if is_lstm else aten.transpose_.default
        output = swap(output, 0, 1)
    return output, *stacked


def stack_states(last: Sequence[Hidden], order: int = -1) -> list[Tensor]:
    """Return the states of all layers by kind; by -1 the last kind is stacked first.

    torch's code stacks them as arguments of a call, which GCC evaluates from the right.
    """
    kinds = [*zip(*last, strict=True)][::order]
    return [aten.stack(states) for states in kinds][::order]


def is_by_onednn(a: Tensor) -> bool:
    """Whether the CPU runs an LSTM by oneDNN."""
    is_asked = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if not is_asked or not a.numel():
        return False
    is_single, has_gradients = a.dtype is torch.float32, torch.is_grad_enabled()
    return is_single or runs_lstm_by_onednn(a.dtype, has_gradients=has_gradients)


def run_onednn(
    a: Tensor,
    hx: Sequence[Tensor],
    weights: Sequence[Weights],
    n_layers: int,
    dropout: float,
    settings: tuple[bool, bool, bool, bool],
) -> tuple[Tensor, list[Hidden]]:
    """Run each layer and direction by one kernel of oneDNN."""
    states = [h.contiguous() for h in hx]
    width = states[0].shape[2]

    def run(
        a: Tensor, index: int, weights: Weights, direction: int
    ) -> tuple[Tensor, Hidden]:
        h, c = (aten.select.int(state, 0, index) for state in states)
        given = (*fill_biases(weights), h, c, bool(direction), [], LSTM_MODE)
        output, h, c, _ = aten.mkldnn_rnn_layer(a, *given, width, n_layers, *settings)
        return output, (h, c)

    given = a, range(len(weights)), weights, dropout, n_layers
    return run_layers(run, *given, is_training=settings[-1])


def fill_biases(weights: Weights) -> Iterator[Tensor]:
    """Return the weights and biases; zeros where there are no biases."""
    of_input, of_hidden, *biases, _ = weights
    pairs = zip(biases[::-1], (of_hidden, of_input), strict=True)
    made = [
        aten.zeros(w.shape, dtype=w.dtype, device=w.device) if bias is None else bias
        for bias, w in pairs
        if w is not None
    ]
    return iter([of_input, of_hidden, *made[::-1]])  # type: ignore[list-item]  # neither is None


RECURRENT: Final[Mapping[str, Callable[..., Any]]] = {
    "gru.input": partial(run_recurrent, run_gru),
    "rnn_tanh.input": partial(run_recurrent, partial(run_simple, torch.tanh)),
    "rnn_relu.input": partial(run_recurrent, partial(run_simple, torch.relu)),
    "lstm.input": partial(run_recurrent, run_lstm),
}
"""By the operator's name."""


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
    """Run ``lstm``, ``gru`` or a simple layer on packed sequences.

    The rows of one step are together, the longest sequence first: after each step some
    sequences end; backwards, some begin. If all end together, oneDNN runs an LSTM as on
    sequences that are not packed.

    Source: ``PackedLayer`` and ``ReversedPackedLayer`` in ``RNN.cpp`` of torch 2.13.
    """
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
        output, *states = run_recurrent(cell, _, steps, hx, params, *settings)
        return aten.view(output, (data.shape[0], output.shape[2])), *states
    hidden = list(zip(*map(aten.unbind.int, states), strict=True))
    weights = gather(params, has_biases=has_biases, is_projected=is_projected)

    def layer(
        a: Tensor, hidden: Hidden, weights: Weights, direction: int
    ) -> tuple[Tensor, Hidden]:
        weighed = aten.linear(a, weights[0], weights[2])
        run = run_backwards if direction else run_forwards
        return run(cell, sizes, weighed, hidden, weights)

    run = partial(run_layers, layer, data, hidden, weights, dropout, num_layers)
    output, last = run(is_training=train)
    return output, *stack_states(last)


def run_forwards(
    cell: Cell, sizes: Sequence[int], a: Tensor, hidden: Hidden, weights: Weights
) -> tuple[Tensor, Hidden]:
    """Run all steps; keep the last states of sequences that end."""
    outputs: list[Tensor] = []
    ended: list[Hidden] = []
    start, last = 0, sizes[0]
    for size in sizes:
        given = aten.narrow(a, 0, start, size)
        if size < last:
            ended.append(cut(hidden, size, last))
            hidden = cut(hidden, 0, size)
        hidden = cell(given, hidden, weights)
        outputs.append(hidden[0])
        start, last = start + size, size
    return aten.cat(outputs), join([hidden, *ended[::-1]])


def run_backwards(
    cell: Cell, sizes: Sequence[int], a: Tensor, first: Hidden, weights: Weights
) -> tuple[Tensor, Hidden]:
    """Run all steps backwards; some sequences may begin with each."""
    outputs: list[Tensor] = []
    end, last = a.shape[0], sizes[-1]
    hidden = cut(first, 0, last)
    for size in sizes[::-1]:
        if size > last:
            hidden = join([hidden, cut(first, last, size)])
        hidden = cell(aten.narrow(a, 0, end - size, size), hidden, weights)
        outputs.append(hidden[0])
        end, last = end - size, size
    return aten.cat(outputs[::-1]), hidden


def cut(hidden: Hidden, start: int, end: int) -> Hidden:
    """Return the states of some sequences; the last kind is cut first, as by GCC."""
    kinds = [aten.narrow(state, 0, start, end - start) for state in hidden[::-1]]
    return tuple(kinds[::-1])


def join(parts: Sequence[Hidden]) -> Hidden:
    """Return the states of all sequences; the last kind is joined first."""
    kinds = [aten.cat(states) for states in [*zip(*parts, strict=True)][::-1]]
    return tuple(kinds[::-1])


PACKED_RECURRENT: Final[Mapping[str, Callable[..., Any]]] = {
    "lstm.data": partial(run_packed, run_lstm),
    "gru.data": partial(run_packed, run_gru),
    "rnn_tanh.data": partial(run_packed, partial(run_simple, torch.tanh)),
    "rnn_relu.data": partial(run_packed, partial(run_simple, torch.relu)),
}
"""By the operator's name."""
