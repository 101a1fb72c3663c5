"""What a module says of its settings, whatever its own code does."""

import inspect
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic import record


class Odd(nn.Module):
    says: object = ""

    def forward(self, x):
        return x

    def extra_repr(self):
        if isinstance(self.says, Exception):
            raise self.says
        if callable(self.says):
            return self.says()
        return self.says


def describe(make):
    with record() as trace:
        module = make()
    assert module is not None
    return trace.modules[0]


def make_odd(says):
    module = Odd()
    object.__setattr__(module, "says", says)
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(3, 64, 7, stride=2, bias=False),
        lambda: nn.LayerNorm(8, eps=1e-6),
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
        lambda: nn.Embedding(5, 4, padding_idx=0),
    ],
)
def test_settings_are_what_the_module_says_of_itself(make):
    assert describe(make).settings == make().extra_repr()


def test_a_module_that_says_nothing_has_its_plain_attributes():
    settings = describe(lambda: nn.MultiheadAttention(8, 2)).settings
    expected = nn.MultiheadAttention(8, 2)
    assert f"num_heads={expected.num_heads}" in settings
    assert f"dropout={expected.dropout}" in settings
    assert "training" not in settings


def test_what_raises_is_named():
    assert describe(lambda: make_odd(ValueError("no"))).settings == (
        "extra_repr raised ValueError"
    )


def test_a_novel_is_cut():
    assert describe(lambda: make_odd("x" * 10**6)).settings == "x" * 300 + "…"


def test_what_a_busy_machine_delays_is_asked():
    delayed = make_odd(lambda: time.sleep(0.1) or "delayed")
    assert describe(lambda: delayed).settings == "delayed"


def test_a_class_of_torch_has_its_page():
    found = describe(lambda: nn.Linear(2, 2)).definition
    assert (found.path, found.docs) == (
        "torch.nn.modules.linear.Linear",
        "torch.nn.Linear",
    )


@pytest.mark.parametrize("make", [Odd, nn.Container, nn.NLLLoss2d])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_other_classes_have_none(make):
    assert describe(make).definition.docs is None


def test_a_class_is_where_its_forward_is():
    found = describe(Odd).definition
    lines, first = inspect.getsourcelines(Odd.forward)
    assert lines
    assert (found.file, found.line) == (__file__, first)


def test_the_storages_are_those_that_operators_read():
    with record() as trace:
        model = nn.Linear(3, 2)
        model(torch.zeros(1, 3))
    call = next(call for call in trace.ops if call.op == "aten.addmm.default")
    weight, bias = trace.modules[0].storages
    assert bias == call.inputs[0].storage_id
    assert weight == call.inputs[2].storage_id


@dataclass
class Config:
    n_heads: int = 32
    n_kv_heads: int = 8
    act: str = "silu"
    dropout: float = 0.0
    _path: str = "here"


@dataclass(slots=True)
class SlottedConfig:
    n_heads: int = 32


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.n_out = config, 7
        self.inner = nn.Identity()
        self.inner.config = config


@pytest.mark.parametrize("make", [Config, lambda: SimpleNamespace(**asdict(Config()))])
def test_a_configuration_is_told_by_the_first_that_holds_it(make):
    model = describe(lambda: Model(make()))
    assert model.settings == (
        "n_out=7, n_kv_heads=8, n_heads=32, act='silu', dropout=0.0"
    )
    assert model.children[0].settings == ""


def test_a_configuration_with_slots_is_told():
    assert describe(lambda: Model(SlottedConfig())).settings == "n_out=7, n_heads=32"


def test_a_configuration_runs_no_code_of_its_own():
    @dataclass
    class Odd:
        n_heads: int = 2

        def __getattribute__(self, name):
            assert name in ("__class__", "__dict__")  # which a module asks for
            return super().__getattribute__(name)

    assert describe(lambda: Model(Odd())).settings == "n_heads=2, n_out=7"


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: torch.manual_seed(3)])
def test_asking_moves_no_generator(draw):
    def says():
        draw()
        return "drawn"

    torch.manual_seed(0)
    before = torch.get_rng_state()
    described = describe(lambda: nn.Sequential(make_odd(says), make_odd(says)))
    assert [child.settings for child in described.children] == ["", ""]
    assert torch.equal(torch.get_rng_state(), before)


def test_attributes_that_cannot_be_told_are_named():
    def make():
        module = make_odd("")
        module.__class__ = Plain
        vars(module)[5] = 7
        return module

    assert describe(make).settings == "an attribute raised TypeError"


class Plain(nn.Module):
    def forward(self, x):
        return x
