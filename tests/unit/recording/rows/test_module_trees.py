"""What is recorded of modules: trees, roots, ties."""

import torch
from torch import nn

from meta_magic import record
from tests.unit.modules import Tied


def test_a_tree_is_found_without_being_named():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    (root,) = trace.modules
    assert (root.name, root.class_name) == ("model", "Sequential")
    assert [child.fqn for child in root.children] == ["0", "1"]
    assert model is not None


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


def test_operators_of_a_constructor_belong_to_the_module_that_holds_the_result():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 2))  # noqa: F841
    assert {call.module for call in trace.ops} == {"0"}


def test_a_module_without_parameters_is_a_root_though_it_never_ran():
    with record() as trace:
        activation = nn.ReLU()
    assert [(r.name, r.class_name) for r in trace.modules] == [("activation", "ReLU")]
    assert activation is not None


def test_a_module_that_was_there_before_and_is_not_called_is_no_root():
    before = nn.Linear(2, 2)
    with record() as trace:
        torch.ones(2)
    assert trace.modules == ()
    assert before is not None
