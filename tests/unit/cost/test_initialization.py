"""Parameters and buffers that nothing wrote, after ``to_empty`` and the like.

Six programs have the mistakes of public bug reports, built small. Which tensors hold
garbage is known from torch: on the CPU the same code leaves what it did not write.
"""

import pytest
import torch
from torch import nn

from meta_magic import record


class Router(nn.Module):
    """The bias of experts is a buffer that ``init_weights`` forgets."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3, bias=False)
        self.register_buffer("expert_bias", torch.zeros(3))

    def init_weights(self):
        nn.init.trunc_normal_(self.gate.weight, std=0.02)

    def forward(self, x):
        return (self.gate(x) + self.expert_bias).topk(1).values


class Rotary(nn.Module):
    """The frequencies are computed in the constructor alone."""

    def __init__(self):
        super().__init__()
        steps = torch.arange(0, 8, 2) / 8
        self.register_buffer("inv_freq", 1 / 10000**steps, persistent=False)
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return self.proj(x * self.inv_freq)


class Token(nn.Module):
    """A parameter of its own, beside layers that initialize themselves."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x + self.token)


class Scaled(nn.Module):
    """A parameter that the constructor allocates and nothing fills."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bias = nn.Parameter(torch.empty(4))

    def forward(self, x):
        return x * self.weight + self.bias


def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


def after_to_empty(build, *inits):
    """Build on meta, allocate anew, and initialize."""
    with torch.device("meta"):
        model = build()
    model.to_empty(device="cpu")
    for init in inits:
        model.apply(init)
    return model


def skip_init():
    """``skip_init`` of a layer that is used as it is."""
    return nn.Sequential(nn.utils.skip_init(nn.Linear, 4, 4), nn.LayerNorm(4))


def normed():
    """Statistics of a batch norm, which an initializer of weights forgets."""
    norm = nn.BatchNorm1d(4)

    def init(module):
        if isinstance(module, nn.BatchNorm1d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    return after_to_empty(lambda: nn.Sequential(norm), init)


BUGS = {
    "bias of experts": (
        lambda: after_to_empty(
            Router,
            lambda m: (
                getattr(m, "init_weights", id)() if isinstance(m, Router) else None
            ),
        ),
        {"expert_bias"},
    ),
    "frequencies": (lambda: after_to_empty(Rotary, reset), {"inv_freq"}),
    "token": (lambda: after_to_empty(Token, reset), {"token"}),
    "allocated only": (Scaled, {"bias"}),
    "skip_init": (skip_init, {"0.weight", "0.bias"}),
    "statistics": (
        normed,
        {"0.running_mean", "0.running_var", "0.num_batches_tracked"},
    ),
}


def list_empty(trace):
    return {one.name.partition(".")[2] for one in trace.contents if one.is_empty}


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("is_called", [True, False])
def test_what_nothing_wrote_is_named(name, is_called):
    build, expected = BUGS[name]
    with record() as trace:
        model = build().eval()
        if is_called:
            model(torch.ones(2, 4))
    assert list_empty(trace) == expected
    if is_called:
        assert {one.is_certain for one in trace.contents if one.is_empty} == {True}
        first = next(one for one in trace.contents if one.is_empty)
        notes = [note for note in trace.notes if note.kind == "uninitialized"]
        assert notes[0].line == first.contents.line
        assert f"nothing initializes {first.name}" in notes[0].text


def load(model):
    model.load_state_dict(type(model)().state_dict())


@pytest.mark.parametrize("kind", [Token, Router])
def test_a_loaded_state_dict_counts_as_written(kind):
    with record() as trace:
        model = after_to_empty(kind)
        load(model)
    assert list_empty(trace) == set()


def test_an_assigned_state_dict_leaves_out_what_it_lacks():
    with record() as trace:
        with torch.device("meta"):
            model = Rotary()
        model.to_empty(device="cpu")
        model.load_state_dict(Rotary().state_dict(), assign=True)
    assert list_empty(trace) == {"inv_freq"}


def test_a_cache_that_its_constructor_leaves_empty_may_stay_so():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.empty(8, 4))
            self.proj = nn.Linear(4, 4)

        def forward(self, x):
            self.cache[: len(x)] = self.proj(x)
            return self.cache[: len(x)].sum()

    with record() as trace:
        model = after_to_empty(Cached, reset)
        unused = Cached()
        model(torch.ones(2, 4))
    assert [one for one in trace.contents if one.is_empty] == []
    del unused


def test_another_kind_of_values_than_the_constructors_is_told():
    def init(module):
        for p in module.parameters(recurse=False):
            nn.init.normal_(p)

    with record() as trace:
        model = after_to_empty(
            lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), init
        )
    others = [
        (one.name, one.contents.kind, one.constructed.kind)
        for one in trace.contents
        if one.is_other
    ]
    assert others == [
        ("model.1.weight", "random numbers", "1"),
        ("model.1.bias", "random numbers", "0"),
    ]
    first = next(one for one in trace.contents if one.is_other)
    assert str(first).startswith("model.1.weight holds random numbers (line ")
    assert list_empty(trace) == set()
    del model


MODULES = {
    "Linear": lambda: nn.Linear(4, 4),
    "Conv2d": lambda: nn.Conv2d(2, 4, 3),
    "Embedding": lambda: nn.Embedding(5, 4),
    "LSTM": lambda: nn.LSTM(4, 4, 2, bidirectional=True),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
}


@pytest.mark.parametrize("name", MODULES)
def test_reset_parameters_of_torchs_modules_give_what_their_constructors_give(name):
    with record() as trace:
        model = after_to_empty(MODULES[name], reset)
    assert trace.contents
    assert [str(one) for one in trace.contents if one.is_empty or one.is_other] == []
    del model


def test_real_models_are_left_out():
    model = nn.Linear(4, 4)
    with record() as trace:
        model(torch.ones(2, 4))
    assert trace.contents == ()
