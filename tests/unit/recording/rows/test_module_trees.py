"""What is recorded of modules: trees, calls, ties, notes."""

import pytest
import torch
from torch import nn

from meta_magic import record


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("angles", torch.zeros(2), persistent=False)

    def forward(self, tokens, *, scale=None):
        return {"logits": self.head(self.embed(tokens)), "extra": [scale]}


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


def test_a_call_inside_a_call_names_its_parent():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 2))
        model(torch.ones(1, 2))
    assert [call.parent for call in trace.module_calls] == [None, 0]


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


def test_a_call_that_raises_has_an_end_and_no_outputs():
    with pytest.raises(RuntimeError), record() as trace:
        nn.Linear(3, 4)(torch.ones(2, 5))
    (call,) = trace.module_calls
    assert call.outputs == ()
    assert call.end_op >= call.first_op


def notes_of(trace):
    return {note.kind: note for note in trace.notes}


def test_a_silent_broadcast_is_noted_with_its_line():
    with record() as trace:
        column, row = torch.ones(5, 1), torch.ones(5)
        column - row
    assert notes_of(trace)["broadcast"].line == trace.ops[-1].line


def test_a_broadcast_with_a_row_of_one_is_not_noted():
    with record() as trace:
        torch.ones(1, 1) - torch.ones(1)
        torch.ones(5, 1) - torch.ones(1, 5)
    assert trace.notes == ()


def test_a_factory_that_ignores_meta_is_noted():
    with record() as trace:
        torch.ops.aten.ones.default([2, 3])
    note = notes_of(trace)["factory"]
    assert note.line == trace.ops[-1].line
    assert "real tensor" in note.text


def test_a_legacy_constructor_is_on_meta():
    with record() as trace:
        made = nn.Parameter(torch.Tensor(2, 3)), torch.FloatTensor(4)
        with torch.device("cpu"):
            real = torch.Tensor(2)
    assert [t.is_meta for t in (*made, real)] == [True, True, False]
    assert [t.shape for t in made] == [(2, 3), (4,)]
    assert trace.nbytes_real == 2 * 4


def test_a_factory_that_was_told_its_device_is_not_noted():
    with record() as trace:
        torch.ones(2, device="cpu")
    assert trace.notes == ()


def test_float64_from_numpy_is_noted():
    import numpy as np

    with record() as trace:
        torch.as_tensor(np.ones(3))
        torch.as_tensor(np.ones(3), dtype=torch.float32)
        torch.tensor(np.ones(3, dtype=np.float32))
    (note,) = trace.notes
    assert (note.kind, note.line) == ("float64", trace.ops[0].line)


def test_a_tie_that_came_apart_is_noted():
    with record() as trace:
        model = Tied()
        model.to_empty(device="cpu")
    note = notes_of(trace)["untied"]
    assert "Embedding.weight and Linear.weight" in note.text
    assert note.line == trace.ops[-1].line


def test_a_tie_that_holds_is_not_noted():
    with record() as trace:
        model = Tied()  # noqa: F841
    assert "untied" not in notes_of(trace)


def test_a_tensor_that_will_not_move_with_its_module_is_noted():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(5)

    with record() as trace:
        holder = Holder()  # noqa: F841
    note = notes_of(trace)["attribute"]
    assert "Holder.table" in note.text
    assert note.line == trace.ops[0].line


def test_a_thread_is_named_as_not_recorded():
    import threading

    with record() as trace:
        thread = threading.Thread(target=torch.ones, args=(3,), name="loader")
        thread.start()
        thread.join()
    assert "'loader'" in notes_of(trace)["thread"].text
    assert len(trace) == 0


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
