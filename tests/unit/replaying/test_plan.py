"""What a replay runs again, and what it leaves out."""

import torch

from meta_magic import record
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.steps import Request, StepKind
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import CPU, both, ops, plan, replay, storages_of


def test_what_nobody_wants_is_not_run():
    with record() as trace:
        wanted = torch.ones(2) * 3
        other = torch.zeros(5).exp()
    assert ops(plan(trace, wanted)) == ["ones", "mul"]
    assert other.is_meta


def test_what_is_written_before_a_fill_is_not_run():
    with record() as trace:
        wanted = torch.ones(2)
        wanted.mul_(3).exp_()
        wanted.zero_()
        wanted.add_(1)
    assert ops(plan(trace, wanted)) == ["ones!", "zero_", "add_"]
    assert plan(trace, wanted).steps[0].kind == StepKind.ALLOCATE


def test_what_is_written_before_a_fill_of_a_part_is_run():
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


def test_a_fill_of_what_overlaps_itself_is_not_one_of_the_whole():
    def build():
        x = torch.arange(8.0)
        # 2 * 2 * 2 entries from 0 to 7, which leave out 2 and 5.
        x.as_strided((2, 2, 2), (3, 3, 1)).zero_()
        return x

    real, made = both(build)
    assert_same_tensor(made, real)


def test_a_fill_with_the_entry_of_another_tensor_reads_that():
    def build():
        x, y = torch.ones(3), torch.tensor(2.0)
        y.add_(1)
        x.fill_(y)
        return x

    real, made = both(build)
    assert_same_tensor(made, real)


def test_until_gives_the_content_at_an_earlier_time():
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
