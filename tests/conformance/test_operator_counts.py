"""``record()`` records as many operators as a plain counting mode sees."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic.session.record import record


class Counting:
    """What the counting mode does; a mixin, so that torch does not import dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class CountingMode(Counting, TorchDispatchMode):
    """Names every operator that reaches it."""


def run_gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
    model = GPT2LMHeadModel(config)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()


def run_cnn() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(), nn.Linear(8 * 15 * 15, 10),
    )  # fmt: skip
    model(torch.randn(4, 3, 32, 32))


def run_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    layer(torch.randn(2, 10, 32)).sum().backward()
    with torch.no_grad():  # torch takes its fused path
        layer.eval()(torch.randn(2, 10, 32))


def run_training_step() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = nn.functional.cross_entropy(
            model(torch.randn(5, 8)), torch.zeros(5, dtype=torch.long)
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def run_lstm() -> None:
    model = nn.LSTM(8, 16, num_layers=2, bidirectional=True, dropout=0.1)
    output, (hidden, _) = model(torch.randn(7, 3, 8))
    (output.sum() + hidden.sum()).backward()


PROGRAMS = (run_gpt2, run_cnn, run_transformer_layer, run_training_step, run_lstm)
each_program = pytest.mark.parametrize("program", PROGRAMS)


def count_on_plain_meta(program: Callable[[], None]) -> list[str]:
    """Return the names of a program's operators on plain meta.

    There transformers initializes nothing; in a recording it does, as on the CPU. It
    asks torch for the default device first, who makes a tensor to find out.
    """
    from transformers import modeling_utils

    program_count = CountingMode()
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"), program_count:
        name = "get_torch_context_manager_or_global_device"
        patch.setattr(modeling_utils, name, lambda: torch.get_default_device() and None)
        program()
    return program_count.names


@each_program
def test_the_operators_recorded_are_those_that_a_counting_mode_sees(program):
    expected = count_on_plain_meta(program)
    with record(as_device="meta") as trace:
        program()
    assert [call.op for call in trace.ops] == expected


@each_program
def test_they_are_the_same_when_all_signatures_were_seen_before(program):
    expected = count_on_plain_meta(program)
    with record(as_device="meta"):
        program()
    with record(as_device="meta") as trace:
        program()
    assert [call.op for call in trace.ops] == expected


@each_program
def test_a_counting_mode_outside_of_the_recording_sees_all_of_it(program):
    expected = count_on_plain_meta(program)
    with record(as_device="meta"):
        program()
    outside = CountingMode()
    with outside, record(as_device="meta") as trace:
        program()
    assert outside.names == expected
    assert [call.op for call in trace.ops] == expected


@each_program
def test_a_counting_mode_inside_of_the_recording_takes_nothing_from_it(program):
    expected = count_on_plain_meta(program)
    inside = CountingMode()
    with record(as_device="meta") as trace, inside:
        program()
    assert inside.names == expected
    assert [call.op for call in trace.ops] == expected


@each_program
def test_a_second_recording_equals_the_first(program):
    with record() as first:
        program()
    with record() as second:
        program()
    assert [call.op for call in second.ops] == [call.op for call in first.ops]
    assert [call.inputs for call in second.ops] == [call.inputs for call in first.ops]
    assert [call.outputs for call in second.ops] == [call.outputs for call in first.ops]
    assert [call.forward for call in second.ops] == [call.forward for call in first.ops]


@each_program
def test_running_every_kernel_records_the_same(program):
    traces = []
    for cache in (True, True, False):
        with record(cache=cache) as trace:
            program()
        traces.append(list(trace.ops))
    assert traces[1] == traces[2]
