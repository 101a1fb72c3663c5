"""What a replay runs again, what it leaves out, and what it holds at once."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import conv2d

from meta_magic import record
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request, StepKind
from meta_magic.torch_private.snapshot import flushes_denormals
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import CPU, both, ops, plan, replay, storages_of


def test_unneeded_calls_are_not_run():
    with record() as trace:
        wanted = torch.ones(2) * 3
        other = torch.zeros(5).exp()
    assert ops(plan(trace, wanted)) == ["ones", "mul"]
    assert other.is_meta


def test_writes_before_a_fill_are_not_run():
    with record() as trace:
        wanted = torch.ones(2)
        wanted.mul_(3).exp_()
        wanted.zero_()
        wanted.add_(1)
    assert ops(plan(trace, wanted)) == ["ones!", "zero_", "add_"]
    assert plan(trace, wanted).steps[0].kind == StepKind.ALLOCATE


def test_writes_before_a_fill_of_a_part_are_run():
    with record() as trace:
        wanted = torch.ones(2)
        wanted.mul_(3)
        wanted[:1].zero_()
    assert ops(plan(trace, wanted)) == ["ones", "mul_", "zero_"]
    assert replay(trace, wanted)[0].tolist() == [0, 3]


def test_a_copy_of_itself_is_not_a_fill():
    def build():
        x = torch.arange(4.0)
        x.add_(1)
        x.copy_(x.flip(0))
        x.copy_(x)
        return x

    real, made = both(build)
    assert_same_tensor(made, real)


def test_a_fill_of_overlapping_elements_does_not_fill_the_storage():
    def build():
        x = torch.arange(8.0)
        # 2 * 2 * 2 entries from 0 to 7, which leave out 2 and 5.
        x.as_strided((2, 2, 2), (3, 3, 1)).zero_()
        return x

    real, made = both(build)
    assert_same_tensor(made, real)


def test_a_fill_with_the_value_of_a_tensor_reads_that_tensor():
    def build():
        x, y = torch.ones(3), torch.tensor(2.0)
        y.add_(1)
        x.fill_(y)
        return x

    real, made = both(build)
    assert_same_tensor(made, real)


def test_until_returns_the_content_before_a_call():
    with record() as trace:
        wanted = torch.ones(2)
        wanted.mul_(3)
        wanted.mul_(5)
    contents = {}
    (number,) = storages_of(trace, wanted)
    request = Request(storages=frozenset([number]), until=2)
    for _ in Execution(trace.program, request, CPU).run(contents.__setitem__):
        pass
    assert torch.empty(0).set_(contents[number]).tolist() == [3, 3]


def test_the_peak_counts_live_storages():
    with record() as trace:
        x = torch.ones(100)
        for _ in range(5):
            x = x * 2
    # The old and the new tensor of 400 bytes, never three.
    assert plan(trace, x).peak_nbytes({}, can_split=True) == 800


def test_calls_run_early_where_less_is_held_then():
    def build():
        torch.manual_seed(0)
        drawn = [torch.empty(100).uniform_() for _ in range(5)]
        drawn[3].mul_(2)
        return [x.half() for x in drawn]

    with record() as trace:
        wanted = build()
    request = Request(storages=frozenset(storages_of(trace, *wanted)))
    early = Execution(trace.program, replace(request, may_reorder=True), CPU)
    # In order: five tensors of 400 bytes, and one of 200. Else one, and five of 200.
    assert Execution(trace.program, request, CPU).peak_nbytes({}) == 2200
    assert early.peak_nbytes({}) == 1400
    contents = {}
    for _ in early.run(contents.__setitem__):
        pass
    for number, real in zip(storages_of(trace, *wanted), build(), strict=True):
        made = torch.empty(0, dtype=torch.half).set_(contents[number])
        assert_same_tensor(made, real)


def test_a_write_stays_behind_what_reads_before_it():
    def build():
        torch.manual_seed(0)
        drawn = [torch.empty(100).uniform_() for _ in range(5)]
        sums = [(drawn[0] + x).half() for x in drawn[1:]]
        drawn[0].mul_(3)
        return [*sums, drawn[0]]

    with record() as trace:
        wanted = build()
    numbers = storages_of(trace, *wanted)
    request = Request(storages=frozenset(numbers))
    early = Execution(trace.program, replace(request, may_reorder=True), CPU)
    late = Execution(trace.program, request, CPU)
    assert early.peak_nbytes({}) < late.peak_nbytes({})
    contents = {}
    for _ in early.run(contents.__setitem__):
        pass
    for number, real in zip(numbers, build(), strict=True):
        made = torch.empty(0, dtype=real.dtype).set_(contents[number])
        assert_same_tensor(made, real)


def test_the_peak_counts_one_piece_of_a_split_draw(monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.streams.MAX_DRAWN", 64)
    with record() as trace:
        torch.empty(1000).uniform_()
        x = torch.empty(10).normal_()
    made = plan(trace, x)
    assert made.peak_nbytes({}, can_split=True) == 256
    assert made.peak_nbytes({}, can_split=False) == 4000


def test_a_finished_storage_is_returned_before_the_end():
    with record() as trace:
        first = torch.ones(2) * 2
        second = torch.ones(3) * 3
    numbers = storages_of(trace, first, second)
    done = []
    steps = Execution(trace.program, Request(storages=frozenset(numbers)), CPU).run(
        lambda number, _: done.append(number)
    )
    seen = [list(done) for _ in steps]
    assert seen[-1] == numbers
    assert numbers[:1] in seen


def _count_reads(monkeypatch, n_values):
    """Return how often the calls of a program were looked at for some values."""
    n_reads = 0
    tensors = ProgramCalls.tensors

    def count(self, index):
        nonlocal n_reads
        n_reads += 1
        return tensors(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(ProgramCalls, "tensors", count)
        with record():
            labels = torch.tensor([7, 5, 3, 1])
            for n in range(n_values):
                assert int(labels[n % 4]) == (7, 5, 3, 1)[n % 4]
                scale = torch.as_tensor([2.0])
                assert not (scale == 0).any()
    return n_reads


def test_the_cost_of_a_value_does_not_grow_with_earlier_values(monkeypatch):
    few, many = (_count_reads(monkeypatch, n_values) for n_values in (20, 80))
    assert many / 80 < 1.2 * few / 20


# A replay runs each call under the backend flags that the cell had


HIGHEST = torch.get_float32_matmul_precision()


def convolve():
    return conv2d(torch.randn(2, 8, 17, 17), torch.randn(16, 8, 3, 3))


def convolve_without_mkldnn():
    with torch.backends.mkldnn.flags(enabled=False):
        return convolve()


def convolve_after_it_was_switched_off():
    torch.backends.mkldnn.enabled = False
    try:
        return convolve()
    finally:
        torch.backends.mkldnn.enabled = True


def convolve_with_it_again():
    convolve_without_mkldnn()
    return convolve()


def flush():
    torch.set_flush_denormal(True)
    try:
        return torch.full((3,), 1e-39) * 0.5
    finally:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def flags_can_be_set():
    """Torch's own tests, of which others import some, forbid it for the process."""
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield


PROGRAMS = {
    "mkldnn off": convolve_without_mkldnn,
    "mkldnn set off": convolve_after_it_was_switched_off,
    "mkldnn on again": convolve_with_it_again,
    "denormals flushed": flush,
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_has_the_flags_of_the_cell(name, seed):
    real, made = both(PROGRAMS[name], seed=seed)
    assert_same_tensor(made, real)


def halve():
    return torch.full((3,), 1e-39) * 0.5


@pytest.mark.parametrize("is_in_cell", [True, False])
def test_a_flag_that_is_set_after_a_call_does_not_hold_in_its_replay(is_in_cell):
    try:
        with record() as trace:
            made = halve()
            torch.set_flush_denormal(is_in_cell)
        torch.set_flush_denormal(True)
        values = replay(trace, made)[0]
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)
    assert_same_tensor(values, halve())


def test_a_replay_flushes_denormals_like_the_cell():
    torch.set_flush_denormal(True)
    try:
        with record() as trace:
            made = halve()
    finally:
        torch.set_flush_denormal(False)
    assert replay(trace, made)[0].tolist() == [0, 0, 0]


def test_a_changed_flag_is_recorded_with_its_first_call():
    with record() as trace:
        torch.ones(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("high")
        torch.ones(2)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(HIGHEST)
    assert [(call, value) for call, _, value in trace.program.flags] == [
        *((1, 1), (1, "high")),
        *((2, 0), (2, HIGHEST)),
    ]
