"""What is recorded of modules: trees, roots, ties."""

import inspect
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.modules import Tied


def test_tied_parameters_count_once_and_are_marked():
    with record() as trace:
        Tied_model = Tied()  # noqa: F841
    (root,) = trace.modules
    assert root.n_parameters == 10 * 4
    (head,) = (node for node in root.walk() if node.fqn == "head")
    assert head.tensors[0].tied_to == "embed.weight"


def test_buffers_say_whether_they_are_persistent():
    with record() as trace:
        model = Tied()
    buffers = {t.name: t for t in trace.modules[0].tensors if t.kind == "buffer"}
    assert {n: b.is_persistent for n, b in buffers.items()} == {
        "steps": True,
        "angles": False,
    }
    assert trace.modules[0].buffer_nbytes == sum(b.nbytes for b in model.buffers())


def test_fqns_are_the_keys_of_the_state_dict():
    with record() as trace:
        model = Tied()
    found = {
        f"{node.fqn}.{tensor.name}".lstrip(".")
        for node in trace.modules[0].walk()
        for tensor in node.tensors
        if tensor.is_persistent
    }
    assert found == set(model.state_dict())


def test_a_lazy_parameter_is_marked():
    with record() as trace:
        model = nn.LazyLinear(3)
    assert [t.is_lazy for t in trace.modules[0].tensors] == [True, True]
    assert model.has_uninitialized_params()


def test_a_lazy_module_that_ran_is_described_as_it_became():
    with record() as trace:
        model = nn.LazyLinear(3)
        model(torch.ones(2, 5))
    weight = trace.modules[0].tensors[0]
    assert (weight.is_lazy, weight.shape) == (False, (3, 5))


def test_a_module_made_outside_is_a_root_with_its_full_tree():
    with torch.device("meta"):
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    with record() as trace:
        model(torch.ones(1, 2))
    (root,) = trace.modules
    assert (root.name, [c.class_name for c in root.children]) == (
        "model",
        ["Sequential", "ReLU"],
    )
    assert trace.ops[-1].module == "1"


def test_a_temporary_module_is_described_although_it_is_gone():
    with record() as trace:
        nn.Linear(3, 4)(torch.ones(2, 3))
    (root,) = trace.modules
    assert (root.class_name, root.n_parameters, root.n_calls) == ("Linear", 16, 1)
    assert trace.ops[-1].module == ""


def test_a_part_of_a_temporary_module_that_is_also_called_alone_is_counted_once():
    with record() as trace:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        model[2](model(model[0](torch.ones(2, 3))))
        del model
    (root,) = trace.modules
    assert (root.class_name, root.n_parameters) == ("Sequential", 24)
    assert [child.n_calls for child in root.children] == [2, 1, 2]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 2), nn.Linear(2, 6)
        self.width = self.encoder(torch.ones(1, 6)).shape[-1]
        self.scale = nn.Parameter(torch.ones(()))


def test_a_temporary_model_whose_parts_are_called_is_described_whole():
    with record() as trace:
        model = Autoencoder()
        model.decoder(model.encoder(torch.ones(3, 6)))
        del model
    (root,) = trace.modules
    assert (root.class_name, root.n_parameters) == ("Autoencoder", 14 + 18 + 1)
    assert [(c.name, c.n_calls) for c in root.children] == [
        ("encoder", 2),
        ("decoder", 1),
    ]
    assert trace.ops[-1].module == "decoder"


def test_what_stands_there_again_holds_its_tensors_but_once():
    with record() as trace:
        layer = nn.Linear(3, 4)
        model = nn.Sequential(layer, nn.ReLU(), layer)
    assert model[0] is model[2]
    first, _, again = trace.modules[0].children
    assert [len(first.tensors), len(again.tensors)] == [2, 0]
    assert again.shared_with == "0"


DEPTH = 500


def nest():
    module = nn.Linear(2, 2)
    for _ in range(DEPTH):
        module = nn.Sequential(module)
    return module


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        module = nest()
    assert module is not None
    return trace


def test_a_tree_of_any_depth_is_described(trace):
    (root,) = trace.modules
    *_, last = root.walk()
    assert last.fqn == ".".join("0" * DEPTH)
    assert [tensor.shape for tensor in last.tensors] == [(2, 2), (2,)]


def test_a_deep_module_is_made_real():
    real, made, _, _ = build_twice(nest)
    materialize(made)
    assert_bit_equal(made, real)


# What is recorded of the calls of modules


def test_a_module_called_twice_has_two_calls():
    with record() as trace:
        layer = nn.Linear(3, 3)
        layer(layer(torch.ones(1, 3)))
    assert len(trace.module_calls) == 2
    assert (trace.modules[0].n_calls, trace.modules[0].first_call) == (2, 0)
    calls = [c.module_call for c in trace.ops if c.op == "aten.addmm.default"]
    assert calls == [0, 1]


def test_keyword_arguments_and_nested_outputs_are_recorded():
    with record() as trace:
        model = Tied()
        model(torch.zeros(2, 5, dtype=torch.long), scale=torch.ones(1))
    call = trace.module_calls[0]
    assert [(path, t.shape) for path, t in call.inputs] == [
        ("0", (2, 5)),
        ("scale", (1,)),
    ]
    assert [(path, t.shape) for path, t in call.outputs] == [
        ("logits", (2, 5, 10)),
        ("extra.0", (1,)),
    ]


class Keyed(nn.Module):
    def forward(self, given):
        return {("b",): ("tag", given[0, 1]), "names": ("x", "y"), 7: [given[0, 1]]}


def test_tensors_in_a_dict_have_paths_whatever_its_keys_are():
    with record() as trace:
        Keyed()({(0, 1): torch.ones(2), "n": ("p", "q")})
    (call,) = trace.module_calls
    assert [path for path, _ in call.inputs] == ["0.(0, 1)"]
    assert [path for path, _ in call.outputs] == ["('b',).1", "7.0"]


def test_a_call_that_raises_has_an_end_and_no_outputs():
    with pytest.raises(RuntimeError), record() as trace:
        nn.Linear(3, 4)(torch.ones(2, 5))
    (call,) = trace.module_calls
    assert call.outputs == ()
    assert call.end_op >= call.first_op


# What a module says of its settings, whatever its own code does


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


# What optimizers, modules and autograd say of storages, however odd they are


def test_states_in_lists_and_states_that_are_no_dictionaries_are_states():
    class Odd(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state["all"] = torch.ones(2)
                    self.state[p] = {"past": [torch.ones(3)], "n": 1, "name": "odd"}

    with record() as trace:
        layer = nn.Linear(2, 2, bias=False)
        optimizer = Odd(layer.parameters(), {})
        optimizer.step()
    assert trace.memory.at(-1).by_category["optimizer_state"] == 8 + 12


def test_a_lazy_buffer_is_registered_as_ever():
    with record() as trace:
        layer = nn.LazyBatchNorm1d(affine=False)
        layer(torch.ones(4, 3))
    assert trace.memory.at(-1).by_category["buffer"] == 12 + 12 + 8


def test_a_gradient_is_noted_with_the_tensor_that_it_is_of():
    with record() as trace:
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
    ((call, storage),) = trace.program.facts.accumulated
    assert trace.ops[call].op == "aten.detach.default"
    assert storage == trace.ops[0].outputs[0].storage_id
