"""What is recorded of modules: trees, roots, ties."""

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
