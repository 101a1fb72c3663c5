"""How many words a call draws, and that no more than these are skipped."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import record
from meta_magic.replaying import streams
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import StepKind
from meta_magic.replaying.streams import advance_generator, count_words
from tests.unit.replaying.replays import CPU, plan, replay

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.bool)

SIZES = (16, 17, 31, 32, 33, 63, 100, 623, 624, 625, 4099, 70_001, 2**17)

DRAWS = {
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
KINDS = [(name, dtype) for name, (_, dtypes) in DRAWS.items() for dtype in dtypes]


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
    draw, _ = DRAWS[name]
    for numel in SIZES:
        n_words = count_words(call_of(draw_into, draw, numel, dtype), CPU)
        assert n_words is not None
        torch.manual_seed(numel)
        before = torch.get_rng_state()
        draw_into(draw, numel, dtype)
        after = torch.get_rng_state()
        generator = torch.Generator()
        generator.set_state(before)
        advance_generator(generator, n_words)
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
def test_what_may_draw_otherwise_is_not_counted(name):
    assert count_words(call_of(UNCOUNTED[name]), CPU) is None


def test_what_another_device_draws_is_not_counted():
    call = call_of(draw_into, torch.Tensor.normal_)
    assert count_words(call, CPU) == 80
    assert count_words(call, torch.device("cuda", 0)) is None


@pytest.mark.usefixtures("anew")
def test_nothing_is_counted_where_states_are_laid_out_otherwise(monkeypatch):
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


@pytest.mark.usefixtures("anew")
def test_a_kernel_that_leaves_a_number_for_the_next_is_not_counted(monkeypatch):
    call = call_of(draw_into, torch.Tensor.normal_)

    def draw_one_by_one(arguments, tensors, device, generator):
        for number in tensors[0][:16]:
            number.normal_(generator=generator)

    monkeypatch.setattr(call.operator, "call", draw_one_by_one)
    assert count_words(call, CPU) is None


@pytest.mark.usefixtures("anew")
def test_of_small_draws_not_all_are_measured(monkeypatch):
    monkeypatch.setattr(streams, "MAX_COUNTS", 2)
    for std, numel, wanted in (
        (1.0, 80, 80),
        (2.0, 80, 80),
        (3.0, 80, None),
        (1.0, 80, 80),
        (4.0, 2**16, 2**16),
        (4.0, 80, 80),
    ):
        call = call_of(nn.init.normal_, torch.empty(numel, device="meta"), 0.0, std)
        assert count_words(call, CPU) == wanted
    assert len(streams.counts) == 2


def test_a_draw_of_numbers_that_are_overwritten_is_not_made_in_place():
    with record() as trace:
        wanted = torch.empty(80).uniform_()
        wanted.normal_()
    kinds = [step.kind for step in plan(trace, wanted).steps if step.draw is not None]
    assert kinds == [StepKind.DRAW, StepKind.RUN]


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
def test_what_comes_after_draws_of_all_sorts_is_bit_equal(seed, min_jump, monkeypatch):
    monkeypatch.setattr(streams, "MIN_JUMP", min_jump)
    torch.manual_seed(seed)
    real = draw_much(40, seed)
    torch.manual_seed(seed)
    with record() as trace:
        made = draw_much(40, seed)
    assert torch.equal(replay(trace, made)[0], real)
