"""The engine of replays: what it runs again, and in which order it lets go of it."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import ReplayError, record
from meta_magic.recording.ledger import find_origin
from meta_magic.replaying.columns import Columns, split_draw
from meta_magic.replaying.engine import Replay
from meta_magic.replaying.operators import find_operator
from meta_magic.replaying.plan import plan_replay
from meta_magic.replaying.steps import Request, StepKind
from tests.unit.eager import assert_same_tensor

CPU = torch.device("cpu")


def storages_of(trace, *tensors):
    """Return the numbers of the storages of meta tensors, while these live."""
    numbers = []
    for tensor in tensors:
        origin, number = find_origin(tensor.untyped_storage())
        assert origin.program is trace.program
        numbers.append(number)
    return numbers


def plan(trace, *tensors, **options):
    wanted = frozenset(storages_of(trace, *tensors))
    return plan_replay(Columns(trace.program), Request(storages=wanted, **options))


def ops(made):
    """Return the short names of the operators that a plan runs, with their kinds."""
    return [
        f"{step.call.operator.name.split('.')[1]}{'' if not step.kind else '!'}"
        for step in made.steps
    ]


def replay(trace, *tensors):
    """Return the real tensors for some of a recording's."""
    numbers = storages_of(trace, *tensors)
    contents = {}
    for _ in Replay(trace.program, Request(storages=frozenset(numbers)), CPU).run(
        contents.__setitem__
    ):
        pass
    return [
        torch.empty(0, dtype=t.dtype).set_(
            contents[n], t.storage_offset(), t.shape, t.stride()
        )
        for t, n in zip(tensors, numbers, strict=True)
    ]


def both(build, *, seed=0):
    """Return what ``build`` returns for real, and its replay."""
    torch.manual_seed(seed)
    real = build()
    torch.manual_seed(seed)
    with record() as trace:
        made = build()
    return real, replay(trace, made)[0]


# Slices


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
    for _ in Replay(trace.program, request, CPU).run(contents.__setitem__):
        pass
    assert torch.empty(0).set_(contents[number]).tolist() == [3, 3]


# Random numbers


def test_earlier_draws_are_made_again_into_memory_of_no_use():
    with record() as trace:
        other = torch.empty(3).normal_()
        wanted = torch.empty(2).uniform_()
    assert ops(plan(trace, wanted)) == ["normal_!", "empty!", "uniform_"]
    assert plan(trace, wanted).steps[0].kind == StepKind.DRAW
    assert other.is_meta


def test_later_draws_are_not_made():
    with record() as trace:
        wanted = torch.rand(2)
        other = torch.rand(3)
    assert ops(plan(trace, wanted)) == ["rand"]
    assert other.is_meta


def test_draws_before_a_seed_are_not_made():
    with record() as trace:
        torch.rand(5)
        torch.manual_seed(3)
        wanted = torch.rand(2)
    assert ops(plan(trace, wanted)) == ["rand"]


def test_draws_from_another_generator_are_not_made():
    with record() as trace:
        generator = torch.Generator().manual_seed(3)
        torch.rand(5)
        wanted = torch.empty(2).normal_(generator=generator)
    assert ops(plan(trace, wanted)) == ["empty!", "normal_"]


def test_a_draw_that_depends_on_values_has_what_it_reads():
    def build():
        weights = torch.rand(5)
        torch.multinomial(weights, 3)
        torch.bernoulli(weights)
        torch.poisson(weights * 4)
        return torch.rand(3)

    real, made = both(build)
    assert_same_tensor(made, real)


DRAWS = {
    "rand": lambda: torch.rand(5),
    "randn": lambda: torch.randn(5),
    "randn of 20": lambda: torch.randn(20),
    "randint": lambda: torch.randint(3, 9, (5,)),
    "randperm": lambda: torch.randperm(9),
    "rand_like": lambda: torch.rand_like(torch.ones(5)),
    "randn_like": lambda: torch.randn_like(torch.ones(5, dtype=torch.float64)),
    "randint_like": lambda: torch.randint_like(torch.ones(5), 4),
    "normal of tensors": lambda: torch.normal(torch.zeros(5), torch.ones(5)),
    "normal of a tensor": lambda: torch.normal(torch.zeros(5), 2.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "bernoulli_": lambda: torch.empty(9).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda: torch.empty(9).bernoulli_(torch.rand(9)),
    "multinomial": lambda: torch.multinomial(torch.arange(1.0, 6), 3),
    "poisson": lambda: torch.poisson(torch.arange(5.0)),
    "exponential": lambda: torch.empty(5).exponential_(2),
    "cauchy": lambda: torch.empty(5).cauchy_(),
    "log normal": lambda: torch.empty(5).log_normal_(),
    "geometric": lambda: torch.empty(5).geometric_(0.4),
    "random": lambda: torch.empty(5, dtype=torch.int64).random_(),
    "random to": lambda: torch.empty(5, dtype=torch.int64).random_(10),
    "random from to": lambda: torch.empty(5).random_(2, 10),
    "dropout": lambda: functional.dropout(torch.ones(20), 0.5),
    "alpha dropout": lambda: functional.alpha_dropout(torch.ones(20), training=True),
    "feature dropout": lambda: functional.dropout2d(torch.ones(2, 5, 2, 2)),
    "rrelu": lambda: functional.rrelu(-torch.ones(9), training=True),
    "gumbel": lambda: functional.gumbel_softmax(torch.zeros(5)),
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "half": lambda: torch.rand(9, dtype=torch.float16),
    "bfloat16": lambda: torch.empty(20, dtype=torch.bfloat16).normal_(),
    "strided": lambda: torch.zeros(4, 6)[:, ::2].normal_()._base,
    "transposed": lambda: torch.empty(4, 6).t().uniform_().t(),
    "fractional pooling": lambda: functional.fractional_max_pool2d(
        torch.arange(64.0).view(1, 1, 8, 8), 2, output_size=3
    ),
    "trunc normal": lambda: nn.init.trunc_normal_(torch.empty(40), std=2.0),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 3)),
    "sparse": lambda: nn.init.sparse_(torch.empty(9, 4), 0.3),
    "kaiming": lambda: nn.init.kaiming_normal_(torch.empty(4, 3)),
    "xavier": lambda: nn.init.xavier_uniform_(torch.empty(4, 3)),
    "gamma": lambda: torch._standard_gamma(torch.ones(5)),
    "stacked": lambda: torch.stack([torch.rand(2) for _ in range(3)]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_bit_equal_to_eager_and_so_is_the_one_after_it(name):
    def build():
        first = DRAWS[name]()
        return torch.cat([first.reshape(-1).cfloat(), torch.rand(3).cfloat()])

    real, made = both(build)
    assert_same_tensor(made, real)


# Layout


def foreach_in_place():
    tensors = [torch.ones(2), torch.ones(2)]
    torch._foreach_mul_(tensors, [3.0, 4.0])
    return tensors[1]


def gradient():
    x = torch.arange(3.0, requires_grad=True)
    (x.exp() * 2).sum().backward()
    return x.grad


def statistics():
    mean = torch.zeros(2)
    functional.batch_norm(
        torch.arange(6.0).view(3, 2), mean, torch.ones(2), training=True
    )
    return mean


LAYOUTS = {
    "transposed": lambda: torch.arange(6.0).view(2, 3).t().contiguous().t() * 2,
    "channels last": lambda: (
        torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last) * torch.arange(3.0)
    ),
    "conjugated": lambda: torch.tensor([1 + 2j]).conj() * 1,
    "complex as real": lambda: torch.view_as_real(torch.tensor([1 + 2j, 3])).clone(),
    "other dtype": lambda: torch.arange(4.0).view(torch.int32).clone(),
    "unfolded": lambda: torch.arange(6.0).unfold(0, 3, 1).clone(),
    "diagonal": lambda: torch.eye(3).diagonal().add_(1),
    "matrix product": lambda: torch.arange(6.0).view(2, 3) @ torch.ones(3, 4),
    "solve": lambda: torch.linalg.solve(torch.eye(3) * 2, torch.arange(3.0)),
    "sort": lambda: torch.tensor([3.0, 1, 2]).sort().values,
    "topk": lambda: torch.tensor([3.0, 1, 2]).topk(2).indices,
    "cumulative sum": lambda: torch.arange(5).cumsum(0),
    "split": lambda: torch.arange(6.0).split(2)[1].mul(2),
    "index put": lambda: torch.zeros(3).index_put_(
        (torch.tensor([0, 2]),), torch.tensor([5.0, 6.0])
    ),
    "scatter": lambda: torch.zeros(3).scatter_(0, torch.tensor([1]), 4.0),
    "where": lambda: torch.where(torch.tensor([True, False]), 1.0, 2.0),
    "einsum": lambda: torch.einsum("ij,j->i", torch.ones(2, 3), torch.arange(3.0)),
    "nan and inf": lambda: torch.full((2,), math.inf) * torch.tensor([1.0, -1]),
    "full of nan": lambda: torch.full((3,), math.nan).nan_to_num(nan=2.5),
    "negative zero": lambda: 1 / torch.full((3,), -0.0),
    "out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(2)),
    "resized out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(0)),
    "resized": lambda: torch.ones(2).resize_(1),
    "set": lambda: torch.empty(0).set_(torch.arange(3.0)),
    "interpolated": lambda: functional.interpolate(
        torch.ones(1, 1, 2, 2), scale_factor=2
    ),
    "softmax": lambda: torch.arange(4.0).softmax(0),
    "attention": lambda: functional.scaled_dot_product_attention(
        *torch.arange(24.0).view(3, 1, 2, 4)
    ),
    "layer norm": lambda: functional.layer_norm(torch.arange(4.0), (4,)),
    "foreach": lambda: torch._foreach_add([torch.ones(2), torch.ones(2)], 2)[1],
    "foreach in place": foreach_in_place,
    "grad": gradient,
    "vmap": lambda: torch.vmap(torch.sin)(torch.arange(3.0)),
    "func.grad": lambda: torch.func.grad(lambda x: (x**2).sum())(torch.arange(3.0)),
    "batch norm": lambda: functional.batch_norm(
        torch.arange(6.0).view(3, 2), torch.zeros(2), torch.ones(2), training=True
    ),
    "statistics of a batch norm": statistics,
    "checkpointed": lambda: torch.utils.checkpoint.checkpoint(
        torch.exp, torch.arange(3.0), use_reentrant=False
    ),
    "one value of a range": lambda: torch.arange(0, 1, 0.1)[3:5] + 1,
    "float64 of linspace": lambda: torch.linspace(0, 1, 7, dtype=torch.float64),
    "tril": lambda: torch.ones(3, 3).tril_(-1),
    "masked": lambda: torch.zeros(3).masked_fill_(
        torch.tensor([True, False, True]), float("-inf")
    ),
    "to and back": lambda: torch.arange(3.0).half().float().bool().int(),
    "string index": lambda: torch.ones(3)[..., None, 1:].expand(2, 1, 2).clone(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_operator_replays_to_what_it_gives_for_real(name):
    real, made = both(LAYOUTS[name])
    assert_same_tensor(made, real.detach())


def test_an_out_argument_is_recorded_after_a_negative_tensor():
    # In a process of its own: the cache of signatures remembers such tensors.
    code = """
import torch
from meta_magic import record
with record():
    torch.tensor([1 + 2j]).conj().imag.clone()
with record() as trace:
    torch.add(torch.ones(2), 1, out=torch.empty(2))
print(len(trace.ops))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("3", "")


# Memory


def test_the_peak_counts_what_is_alive_at_once():
    with record() as trace:
        x = torch.ones(100)
        for _ in range(5):
            x = x * 2
    # The old and the new tensor of 400 bytes, never three.
    assert plan(trace, x).peak_nbytes({}, can_split=True) == 800


def test_the_peak_counts_memory_for_draws_of_no_use():
    with record() as trace:
        other = torch.empty(1000).normal_()
        x = torch.empty(10).normal_()
    assert plan(trace, x).peak_nbytes({}, can_split=True) == 4000
    assert other.is_meta


SPLIT = {
    "uniform_": lambda t, g: t.uniform_(-1, 1, generator=g),
    "normal_": lambda t, g: t.normal_(1, 2, generator=g),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numel", [63, 64, 65, 79, 80, 128, 129, 1000])
@pytest.mark.parametrize("name", SPLIT)
def test_numbers_of_no_use_are_used_up_part_by_part(name, numel, dtype, monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.columns.MAX_DRAWN", 64)

    def build(generator):
        SPLIT[name](torch.empty(numel, dtype=dtype), generator)
        return torch.empty(9).uniform_(generator=generator)

    real = build(torch.Generator().manual_seed(1))
    with record() as trace:
        made = build(torch.Generator().manual_seed(1))
    assert torch.equal(replay(trace, made)[0], real)
    step = next(s for s in plan(trace, made).steps if s.kind == StepKind.DRAW)
    assert sum(split_draw(step.call)) == numel
    assert max(split_draw(step.call)) < 80


def test_the_peak_counts_the_part_of_a_draw_that_is_there_at_once(monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.columns.MAX_DRAWN", 64)
    with record() as trace:
        torch.empty(1000).uniform_()
        x = torch.empty(10).normal_()
    made = plan(trace, x)
    assert made.peak_nbytes({}, can_split=True) == 256
    assert made.peak_nbytes({}, can_split=False) == 4000


def test_the_peak_counts_both_sides_of_a_cast():
    with record() as trace:
        x = torch.ones(100)
    (number,) = storages_of(trace, x)
    assert plan(trace, x).peak_nbytes({number: 200}, can_split=True) == 600


def test_what_is_finished_is_handed_over_before_the_end():
    with record() as trace:
        first = torch.ones(2) * 2
        second = torch.ones(3) * 3
    numbers = storages_of(trace, first, second)
    done = []
    steps = Replay(trace.program, Request(storages=frozenset(numbers)), CPU).run(
        lambda number, _: done.append(number)
    )
    seen = [list(done) for _ in steps]
    assert seen[-1] == numbers
    assert numbers[:1] in seen


def test_work_adds_up_to_what_was_announced():
    with record() as trace:
        x = torch.rand(100) * 2
        x.add_(1)
    request = Request(storages=frozenset(storages_of(trace, x)))
    run = Replay(trace.program, request, CPU)
    assert sum(run.run(lambda *_: None)) == run.n_work == 3 * 400


def test_a_storage_of_nothing_is_uninitialized():
    with record() as trace:
        x, y = torch.empty(3), torch.zeros(3)
    numbers = storages_of(trace, x, y)
    run = Replay(trace.program, Request(storages=frozenset(numbers)), CPU)
    assert run.uninitialized == {numbers[0]}


def test_what_was_computed_from_uninitialized_memory_is_uninitialized():
    with record() as trace:
        x = torch.empty(3) * 2
        y = x + 1
    (number,) = storages_of(trace, y)
    run = Replay(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == {number}


def test_memory_that_was_filled_in_part_is_uninitialized():
    with record() as trace:
        x = torch.empty(3)
        x[0] = 1
    (number,) = storages_of(trace, x)
    run = Replay(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == {number}


def test_memory_that_was_filled_part_by_part_is_not_uninitialized():
    with record() as trace:
        x = torch.empty(2, 3)
        x[0].zero_()
        x[1].zero_()
    (number,) = storages_of(trace, x)
    run = Replay(trace.program, Request(storages=frozenset([number])), CPU)
    assert run.uninitialized == set()


# What cannot be replayed


def test_meta_data_from_outside_is_an_error_that_names_line_and_operator():
    outside = torch.ones(3, device="meta")
    with record() as trace:
        wanted = outside * 2
    with pytest.raises(
        ReplayError, match=r"12 bytes, read by aten\.mul\.Tensor in line"
    ):
        plan(trace, wanted)


def test_an_operator_that_nobody_registered_is_an_error_that_names_it():
    with pytest.raises(
        ReplayError, match=r"nowhere\.nothing\.default is not registered"
    ):
        find_operator("nowhere.nothing.default")


def test_an_index_out_of_range_is_an_error_that_names_the_operator():
    with record() as trace:
        wanted = torch.arange(3.0)[torch.tensor([7])]
    with pytest.raises(ReplayError, match=r"aten\.index\.Tensor in line \d+ failed"):
        replay(trace, wanted)
