"""Random numbers in a replay: those of the recording, drawn or skipped."""

import random

import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.nn import functional

from meta_magic import record
from meta_magic.replaying import streams
from meta_magic.replaying.execution import find_copies, find_parts
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import StepKind
from meta_magic.replaying.streams import count_words, split_draw
from meta_magic.torch_private import generator_state
from tests.unit.eager import assert_same_tensor, build_twice
from tests.unit.replaying.replays import CPU, both, ops, plan, replay


def test_earlier_draws_are_made_again_into_scratch_memory():
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


def gradient_of(distribution, *others):
    """Return the gradient of a sample."""
    a = torch.tensor([0.5, 0.7, 2.0], requires_grad=True)
    distribution(a, *others).rsample().square().sum().backward()
    return a.grad


GENERATED = {
    "exponential": lambda g: torch.empty(5).exponential_(2.0, generator=g),
    "cauchy": lambda g: torch.empty(5).cauchy_(generator=g),
    "log normal": lambda g: torch.empty(5).log_normal_(generator=g),
    "geometric": lambda g: torch.empty(5).geometric_(0.4, generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (5,), generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((5,), 0.5), generator=g),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_draw_from_a_generator_of_the_user_is_bit_equal_to_eager(name):
    def build():
        generator = torch.Generator().manual_seed(3)
        first = GENERATED[name](generator)
        return torch.cat([first, torch.rand(2, generator=generator), torch.rand(2)])

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
    "orthogonal, by numpy": lambda: nn.init.orthogonal_(torch.empty(4, 3), np.sqrt(2)),
    "sparse": lambda: nn.init.sparse_(torch.empty(9, 4), 0.3),
    "kaiming": lambda: nn.init.kaiming_normal_(torch.empty(4, 3)),
    "xavier": lambda: nn.init.xavier_uniform_(torch.empty(4, 3)),
    "gamma": lambda: torch._standard_gamma(torch.ones(5)),
    "gamma's gradient": lambda: gradient_of(distributions.Gamma, 1.0),
    "dirichlet": lambda: distributions.Dirichlet(torch.ones(2, 3)).sample((4,)),
    "dirichlet's gradient": lambda: gradient_of(distributions.Dirichlet),
    "beta": lambda: distributions.Beta(torch.full((5,), 0.5), 2.0).rsample(),
    "binomial": lambda: distributions.Binomial(9, torch.full((5,), 0.4)).sample(),
    "cholesky": lambda: distributions.LKJCholesky(3, 0.5).sample(),
    "von Mises": lambda: distributions.VonMises(torch.zeros(2), 4.0).sample((3,)),
    "normal of numbers": lambda: torch.normal(0.0, 1.0, (5,)),
    "stacked": lambda: torch.stack([torch.rand(2) for _ in range(3)]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_bit_equal_to_eager_and_so_is_the_one_after_it(name):
    def build():
        first = DRAWS[name]()
        return torch.cat([first.reshape(-1).cfloat(), torch.rand(3).cfloat()])

    real, made = both(build)
    assert_same_tensor(made, real)


SPLIT = {
    "uniform_": lambda t, g: t.uniform_(-1, 1, generator=g),
    "normal_": lambda t, g: t.normal_(1, 2, generator=g),
}


MADE = {
    "rand": lambda t, g: torch.rand(t.shape, dtype=t.dtype, generator=g),
    "randn": lambda t, g: torch.randn(t.shape, dtype=t.dtype, generator=g),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*SPLIT, *MADE])
def test_unneeded_numbers_are_drawn_piece_by_piece(name, dtype, monkeypatch):
    monkeypatch.setattr("meta_magic.replaying.streams.MAX_DRAWN", 64)

    def build(numel):
        generator = torch.Generator().manual_seed(1)
        (SPLIT | MADE)[name](torch.empty(numel, dtype=dtype), generator)
        return torch.empty(9).uniform_(generator=generator)

    for numel in (63, 64, 65, 79, 80, 128, 129, 1000):
        with record() as trace:
            made = build(numel)
        assert torch.equal(replay(trace, made)[0], build(numel))
        step = next(s for s in plan(trace, made).steps if s.kind == StepKind.DRAW)
        assert sum(split_draw(step.call)) == numel
        assert max(split_draw(step.call)) < 80


def test_a_generator_of_a_planned_device_draws_from_its_seed():
    with record(as_device="cuda") as trace:
        own = torch.Generator(device="cuda").manual_seed(3)
        first = torch.randn(3, generator=own, device="cuda")
        second = torch.randn(2, generator=own, device="cuda")
        made, after = first.tolist(), second.tolist()
    assert any("random numbers of cuda:0" in note.text for note in trace.notes)
    assert len(trace.program.randomness.generators) > 1
    like = torch.Generator().manual_seed(3)
    assert made == torch.randn(3, generator=like).tolist()
    assert after == torch.randn(2, generator=like).tolist()


FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.bool)

SIZES = (16, 17, 31, 33, 100, 624, 625, 4099, 70_001)

COUNTED = {
    "normal": (lambda t: t.normal_(), FLOATS + COMPLEX),
    "normal of another deviation": (lambda t: t.normal_(0.5, 0.02), FLOATS),
    "uniform": (lambda t: t.uniform_(), FLOATS),
    "uniform within bounds": (lambda t: t.uniform_(-3, 0.1), FLOATS),
    "exponential": (lambda t: t.exponential_(2.0), FLOATS),
    "cauchy": (lambda t: t.cauchy_(), FLOATS),
    "geometric": (lambda t: t.geometric_(0.3), FLOATS),
    "bernoulli": (lambda t: t.bernoulli_(0.1), FLOATS + INTEGERS),
    "random": (lambda t: t.random_(), FLOATS + INTEGERS),
    "random to": (lambda t: t.random_(2), FLOATS + INTEGERS),
    "random to many": (lambda t: t.random_(2**40), (torch.int64,)),
    "random from to": (lambda t: t.random_(-1, 100), (torch.int64, torch.float32)),
    "rand": (lambda t: torch.rand(t.shape, dtype=t.dtype), FLOATS),
    "randn": (lambda t: torch.randn(t.shape, dtype=t.dtype), FLOATS + COMPLEX),
    "truncated": (lambda t: nn.init.trunc_normal_(t, std=0.02), FLOATS),
}
KINDS = [(name, dtype) for name, (_, dtypes) in COUNTED.items() for dtype in dtypes][
    ::2
]


@pytest.fixture
def anew():
    """Measure all anew, before the test and after it."""
    known = dict(streams.counts)
    streams.counts.clear()
    streams.can_advance.cache_clear()
    yield
    streams.can_advance.cache_clear()
    streams.counts.clear()
    streams.counts.update(known)


def call_of(draw, *arguments):
    """Return the last call that draws, of a function that is recorded."""
    with record() as trace:
        draw(*arguments)
    recorded = ProgramCalls(trace.program)
    return recorded.call(recorded.draws[-1].call)


def draw_into(draw, numel=80, dtype=torch.float32):
    """Draw into a new tensor."""
    draw(torch.empty(numel, dtype=dtype))


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(("name", "dtype"), KINDS, ids=str)
def test_a_draw_takes_as_many_words_as_are_counted(name, dtype):
    draw, _ = COUNTED[name]
    for numel in SIZES:
        n_words = count_words(call_of(draw_into, draw, numel, dtype), CPU)
        assert n_words is not None
        torch.manual_seed(numel)
        before = torch.get_rng_state()
        draw_into(draw, numel, dtype)
        after = torch.get_rng_state()
        generator = torch.Generator()
        generator.set_state(before)
        generator_state.advance(generator, n_words)
        assert torch.equal(generator.get_state(), after), numel


UNCOUNTED = {
    "normal of a few": lambda: torch.empty(15).normal_(),
    "normal that is transposed": lambda: torch.empty(9, 8).t().normal_(),
    "normal of each second": lambda: torch.empty(80)[::2].normal_(0.0),
    "log normal": lambda: torch.empty(80).log_normal_(),
    "multinomial": lambda: torch.multinomial(torch.ones(80), 3),
    "permutation": lambda: torch.randperm(80),
    "poisson": lambda: torch.poisson(torch.ones(80)),
    "dropout of probabilities": lambda: torch.bernoulli(torch.ones(80)),
    "truncated near": lambda: nn.init.trunc_normal_(torch.empty(80), std=1.0),
    "truncated nearly": lambda: nn.init.trunc_normal_(torch.empty(80), std=0.21),
    "truncated far off": lambda: nn.init.trunc_normal_(
        torch.empty(80), mean=1e6, std=1.0, a=0.0, b=2e6
    ),
    "gamma": lambda: torch._standard_gamma(torch.ones(80)),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_draws_of_uncertain_length_are_not_counted(name):
    assert count_words(call_of(UNCOUNTED[name]), CPU) is None


@pytest.mark.usefixtures("anew")
def test_nothing_is_counted_if_generator_states_have_another_layout(monkeypatch):
    monkeypatch.setattr("meta_magic.torch_private.generator_state.NBYTES", 5048)
    call = call_of(draw_into, torch.Tensor.normal_)
    assert count_words(call, CPU) is None


@pytest.mark.usefixtures("anew")
def test_a_kernel_that_draws_by_no_known_rule_is_not_counted(monkeypatch):
    call = call_of(draw_into, torch.Tensor.normal_)

    def draw_more_at_once(arguments, tensors, device, generator):
        tensor = tensors[0]
        tensor.normal_(generator=generator)
        if len(tensor) > 5000:
            tensor[:16].normal_(generator=generator)

    monkeypatch.setattr(call.operator, "call", draw_more_at_once)
    assert count_words(call, CPU) is None


SORTS = (
    lambda k: torch.empty(k).normal_(),
    lambda k: torch.empty(k, dtype=torch.float64).normal_(),
    lambda k: torch.empty(k, dtype=torch.bfloat16).normal_(),
    lambda k: torch.empty(k, dtype=torch.float16).uniform_(),
    lambda k: torch.empty(k, dtype=torch.float64).uniform_(),
    lambda k: torch.empty(k).exponential_(),
    lambda k: torch.empty(k).bernoulli_(0.3),
    lambda k: nn.init.trunc_normal_(torch.empty(k), std=0.02),
    lambda k: nn.init.trunc_normal_(torch.empty(k), std=2.0),
    lambda k: nn.init.kaiming_uniform_(torch.empty(k, 3)),
    lambda k: functional.dropout(torch.ones(k)),
    torch.randperm,
    lambda k: torch.randint(5, (k,)),
    lambda k: torch.multinomial(torch.ones(k), 2),
    lambda _: torch.empty(3).normal_(),
    torch.randn,
)


def draw_much(n, seed):
    """Draw by all sorts of kernels; return what is drawn last."""
    order = random.Random(seed)
    for _ in range(n):
        order.choice(SORTS)(order.randint(2, 300))
    return torch.cat([torch.empty(k).normal_() for k in (1, 33, 7, 100)])


@pytest.mark.parametrize("min_jump", [1, 2**23])
@pytest.mark.parametrize("seed", range(8))
def test_draws_after_skipped_ones_are_bit_equal(seed, min_jump, monkeypatch):
    monkeypatch.setattr(generator_state, "MIN_JUMP", min_jump)
    torch.manual_seed(seed)
    real = draw_much(40, seed)
    torch.manual_seed(seed)
    with record() as trace:
        made = draw_much(40, seed)
    assert torch.equal(replay(trace, made)[0], real)


ROWS = [slice(100, 200), slice(0, 1), slice(-1, None), slice(250, 257)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", SPLIT)
def test_of_a_large_draw_the_rows_that_are_read_are_drawn(name, rows, dtype):
    def build():
        whole = (torch.empty(257, 301, dtype=dtype) for _ in "ab")
        return [*(SPLIT[name](t, None)[rows].clone() for t in whole), torch.rand(3)]

    with record() as trace:
        made = build()
    parts = find_parts(plan(trace, *made), CPU)
    start, stop, _ = rows.indices(257)
    for part in parts.values():
        assert part.start <= start * 301
        assert stop * 301 <= part.stop <= min(257 * 301, stop * 301 + 15)
        assert len(part) <= (stop - start) * 301 + 30
    assert len(parts) == 2
    expected, made, trace, _ = build_twice(build)
    for real, wanted in zip(replay(trace, *made), expected, strict=True):
        assert_same_tensor(real, wanted)


@pytest.mark.parametrize("use", [torch.sum, lambda x: x.mul_(2)[:9]])
def test_a_large_draw_that_is_read_as_a_whole_is_made_as_a_whole(use):
    with record() as trace:
        made = use(torch.empty(1024, 128).uniform_()).clone()
    assert find_parts(plan(trace, made), CPU) == {}


def shard(w, rows):
    return torch.empty_like(w[rows]).copy_(w[rows])


def shard_twice(w, rows):
    return torch.cat([shard(w, rows), shard(w, rows)])


def shard_columns(w, rows):
    return torch.empty(1024, 64).copy_(w[:, rows])


def shard_into_half(w, rows):
    made = torch.zeros(128, 1024)
    made[:64].copy_(w[rows])
    return made


COPIES = {
    "a copy": (shard, 1),
    "a clone": (lambda w, rows: w[rows].clone(), 1),
    "two copies": (shard_twice, 0),
    "columns": (shard_columns, 0),
    "another dtype": (lambda w, rows: w[rows].double(), 0),
    "transposed": (lambda w, rows: torch.empty(1024, 64).t().copy_(w[rows]), 0),
    "a part of its target": (shard_into_half, 0),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_part_that_is_only_copied_is_drawn_where_it_is_copied_to(name):
    use, n_copies = COPIES[name]

    def build():
        return use(torch.empty(1024, 1024).uniform_(), slice(64, 128)), torch.rand(3)

    expected, made, trace, _ = build_twice(build)
    planned = plan(trace, *made)
    assert len(find_copies(planned, find_parts(planned, CPU))) == n_copies
    for real, wanted in zip(replay(trace, *made), expected, strict=True):
        assert_same_tensor(real, wanted)


def test_a_target_that_is_read_between_draw_and_copy_is_not_drawn_into():
    def build():
        whole, target = torch.empty(1024, 1024), torch.ones(64, 1024)
        whole.uniform_()
        before = target * 2
        return target.copy_(whole[:64]), before

    expected, made, trace, _ = build_twice(build)
    for real, wanted in zip(replay(trace, *made), expected, strict=True):
        assert_same_tensor(real, wanted)
