"""Torch's generator after a replay stands where real construction leaves it."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import meta_magic as mm
from meta_magic import materialize, record
from meta_magic.torch_private import generator_state
from tests.unit.eager import assert_bit_equal, assert_same_tensor, build_twice
from tests.unit.materializing.modules import register


def draws_on_like(state):
    """Return whether torch's generator has the state that a real run gives it."""
    return torch.equal(torch.get_rng_state(), state)


def test_the_generator_is_left_alone_if_it_was_used_since():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    torch.rand(1)
    before = torch.get_rng_state()
    report = materialize(made)
    assert torch.equal(torch.get_rng_state(), before)
    assert "stays as it is: what is drawn next" in report.notes[0]


def test_a_draw_of_no_use_that_depends_on_values_is_named_where_it_is_left_out():
    def build():
        made = nn.Linear(2, 2)
        torch.poisson(torch.ones(3))
        return made

    _, made, _, _ = build_twice(build)
    (note,) = materialize(made).notes
    assert "stays before aten.poisson.default in line" in note


def change(made):
    """Write, and draw nothing."""
    with torch.no_grad():
        made.weight.mul_(2)
        made.bias.add_(1)


def build_and_change(build):
    """Return what is built for real, in one cell and changed in another; the state."""
    torch.manual_seed(0)
    real = build()
    state = torch.get_rng_state()
    change(real)
    torch.manual_seed(0)
    with record():
        made = build()
    with record():
        change(made)
    return real, made, state


@pytest.mark.parametrize("n_more", [0, 1, 3])
def test_the_generator_goes_on_after_what_a_later_cell_changed(n_more):
    def build():
        made = nn.Linear(2, 3)
        for _ in range(n_more):
            torch.rand(2)
        return made

    real, made, state = build_and_change(build)
    assert materialize(made).notes == ()
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_the_generator_is_left_alone_if_the_cell_drew_for_another_module():
    with record():
        other, made = nn.Linear(3, 3), nn.BatchNorm1d(3)
    before = torch.get_rng_state()
    materialize(made)
    assert torch.equal(torch.get_rng_state(), before)
    assert other.weight.is_meta


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_generator_goes_on_after_submodules_one_by_one(order):
    _, made, _, state = build_twice(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    )
    for index in order:
        materialize(made[index])
    assert draws_on_like(state)


def thrown_away_last():
    made = nn.Linear(4, 4)
    nn.Linear(3, 3)
    return made


def run_once():
    made = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    made(torch.randn(2, 4))
    torch.bernoulli(torch.full((5,), 0.5))
    torch.multinomial(torch.arange(1.0, 6), 3)
    return made


def drop_alone():
    made = nn.BatchNorm1d(4)
    functional.dropout(torch.ones(9))
    return made


@pytest.mark.parametrize("build", [thrown_away_last, run_once, drop_alone])
def test_what_the_cell_draws_after_the_module_and_for_no_other_counts(build):
    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def checkpointed():
    x = torch.randn(4, requires_grad=True)
    y = checkpoint(lambda a: functional.dropout(a, 0.3), x, use_reentrant=False)
    nn.Linear(2, 2)
    y.sum().backward()
    return nn.Linear(2, 2)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_activations_that_are_computed_again_draw_what_they_drew(device):
    torch.manual_seed(0)
    real = checkpointed()
    torch.manual_seed(0)
    with record(as_device=device):
        made = checkpointed()
    materialize(made)
    assert_bit_equal(made, real)


def copied_state():
    nn.Linear(2, 2)
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return register(torch.empty(3).normal_(generator=generator))


def cloned_state():
    generator = torch.Generator().manual_seed(3)
    torch.empty(3).normal_(generator=generator)
    other = generator.clone_state()
    return register(torch.empty(3).normal_(generator=other))


def seed_of_the_default():
    nn.Linear(2, 2)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return register(torch.empty(3).normal_(generator=generator))


def state_back_to_the_default():
    generator = torch.Generator().manual_seed(3)
    torch.empty(3).normal_(generator=generator)
    torch.set_rng_state(generator.get_state())
    return register(torch.empty(3).normal_())


@pytest.mark.parametrize(
    "build",
    [copied_state, cloned_state, seed_of_the_default, state_back_to_the_default],
)
def test_a_state_carried_to_another_generator_counts(build):
    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("draws", [True, False])
def test_the_generator_goes_on_after_what_a_later_cell_drew(draws):
    drawn = []
    for recording in (nullcontext, record):
        torch.manual_seed(0)
        with recording():
            made = nn.Linear(2, 2)
            list(torch.utils.data.RandomSampler(range(3)))  # drawn for real
        with recording():
            later = torch.rand(2) if draws else torch.ones(2)
        if recording is record:
            assert materialize(made).notes == ()
        drawn.append(torch.rand(3))
    assert later.shape == (2,)
    assert torch.equal(*drawn)


# Generators that a cell used from which nothing is made.


def draw_for_nothing(generator, recording):
    """Draw in a cell what is gone, then make zeros in another; return these."""
    with recording():
        torch.randint(0, 4, (3,), generator=generator)
    with recording():
        return register(torch.zeros(2))


@pytest.mark.parametrize("is_own", [True, False])
def test_a_generator_goes_on_after_a_cell_of_which_nothing_is_made(is_own):
    drawn = []
    for recording in (nullcontext, record):
        torch.manual_seed(0)
        generator = torch.Generator() if is_own else None
        made = draw_for_nothing(generator, recording)
        if recording is record:
            assert materialize(made).notes == ()
        drawn.append(torch.rand(3, generator=generator))
    assert torch.equal(*drawn)


def test_that_a_generator_stays_is_said_where_values_decide_the_draws():
    generator = torch.Generator()
    with record():
        torch.poisson(torch.ones(3), generator=generator)
    with record():
        made = register(torch.zeros(2))
    (note,) = materialize(made).notes
    assert note.startswith("a generator of your code stays as it is")


def draw_after(n_cells, recording):
    """Draw from a generator, and again after cells that draw from torch's."""
    generator = torch.Generator().manual_seed(1)
    with recording():
        torch.rand(3, generator=generator)
    for _ in range(n_cells):
        with recording():
            torch.rand(2)
    with recording():
        return torch.rand(3, generator=generator).tolist()


def test_a_generator_goes_on_after_any_number_of_cells():
    assert draw_after(12, record) == draw_after(12, nullcontext)


def test_a_state_of_long_ago_gives_no_value():
    with record():
        torch.rand(3)
    state = torch.get_rng_state()
    for _ in range(12):
        with record():
            torch.manual_seed(0)
            torch.rand(2)
    torch.set_rng_state(state)
    with record(), pytest.raises(mm.MissingValueError, match="whose state came from"):
        torch.rand(3).tolist()


# Torch's generator after a replay of what was drawn in a fork.


def draw_in_a_fork():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(2, 3)


def fork_between():
    first = nn.Linear(2, 3)
    with torch.random.fork_rng(devices=[]):
        second = nn.Linear(3, 4)
        third = nn.Linear(3, 4)
    return nn.Sequential(first, second, third, nn.Linear(4, 5))


def draw_before_that_nothing_needs():
    torch.rand(3)
    torch.rand(3)
    return draw_in_a_fork()


def draw_between_that_depends_on_values():
    made = draw_in_a_fork()
    made.register_buffer("drawn", torch.poisson(torch.ones(3)))
    return nn.Sequential(made, draw_in_a_fork())


FORKS = {
    "within the cell": fork_between,
    "with a seed of its own": lambda: nn.Sequential(draw_in_a_fork(), nn.Linear(4, 5)),
    "before it what nothing needs": draw_before_that_nothing_needs,
    "before it what depends on values": draw_between_that_depends_on_values,
}


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_counts(name):
    real, made, _, state = build_twice(FORKS[name])
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


# Layers whose numbers come after many that nothing needs: these are skipped.


LLAMA = {
    "hidden_size": 72,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def build_llama():
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).model.layers


class Mixed(nn.Module):
    """A layer whose tensors are drawn in many ways; some draws nothing needs."""

    def __init__(self, width, dtype):
        super().__init__()
        self.linear = nn.Linear(width, width + 3, dtype=dtype)
        self.few = nn.Parameter(torch.empty(7, dtype=dtype).normal_())
        self.truncated = nn.Parameter(torch.empty(width, 5, dtype=dtype))
        nn.init.trunc_normal_(self.truncated, std=0.02)
        nn.init.kaiming_normal_(self.linear.weight)
        self.norm = nn.BatchNorm1d(width, dtype=dtype)
        self.register_buffer("order", torch.randperm(width))
        self.register_buffer("chosen", torch.randint(9, (width,)))
        self.register_buffer("waits", torch.empty(width, dtype=dtype).exponential_())
        self.register_buffer("drops", torch.empty(width, dtype=dtype).bernoulli_(0.4))
        self.register_buffer("drawn", torch.multinomial(torch.ones(width), 3))
        self.register_buffer("noise", functional.dropout(torch.ones(width, 2)))
        torch.empty(width).uniform_()


def build_mixed(dtype=torch.float32):
    return nn.ModuleList(Mixed(width, dtype) for width in (19, 64, 33, 50))


LAYERS = {
    "llama": build_llama,
    "float32": build_mixed,
    "float64": lambda: build_mixed(torch.float64),
    "bfloat16": lambda: build_mixed(torch.bfloat16),
    "float16": lambda: build_mixed(torch.float16),
}


@pytest.mark.parametrize("min_jump", [1, 2**23])
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
@pytest.mark.parametrize("name", LAYERS)
def test_the_last_layer_alone_is_as_in_the_whole(name, seed, min_jump, monkeypatch):
    monkeypatch.setattr(generator_state, "MIN_JUMP", min_jump)
    torch.manual_seed(seed)
    real = LAYERS[name]()
    torch.manual_seed(seed)
    with mm.record():
        layers = LAYERS[name]()
    for index in (-1, 1):  # the second by what the first left
        mm.materialize(layers[index])
        wanted = real[index].state_dict()
        for key, tensor in layers[index].state_dict().items():
            assert_same_tensor(tensor, wanted[key])
