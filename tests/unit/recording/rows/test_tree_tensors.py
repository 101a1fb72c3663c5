"""What the modules of a tree hold, read all at once."""

import torch
from torch import nn

from meta_magic import record
from meta_magic.recording.rows.tree_tensors import HeldTensors
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.session.program_builder import make_written


def make_registry():
    return make_written(SignatureCache(uses_fast_paths=False), "", None).registry


def hold(tensor):
    module = nn.Module()
    module.held = tensor
    return module


def test_a_parameter_is_described_as_the_cell_left_it():
    layer = nn.Linear(3, 4, device="meta")
    with record() as trace:
        layer(torch.ones(2, 3))
        layer.weight.data = layer.weight.data.t()
        layer.bias.requires_grad_(requires_grad=False)
    weight, bias = trace.modules[0].tensors
    assert weight.shape == (3, 4)
    assert not bias.requires_grad


def test_a_tree_made_in_inference_mode_is_described():
    with torch.inference_mode(), record() as trace:
        layer = nn.Linear(3, 4)
    assert layer.weight.is_inference()
    assert [tensor.name for tensor in trace.modules[0].tensors] == ["weight", "bias"]


def test_what_stands_there_again_holds_its_tensors_but_once():
    with record() as trace:
        layer = nn.Linear(3, 4)
        model = nn.Sequential(layer, nn.ReLU(), layer)
    assert model[0] is model[2]
    first, _, again = trace.modules[0].children
    assert [len(first.tensors), len(again.tensors)] == [2, 0]
    assert again.shared_with == "0"


def test_a_tensor_without_storage_where_another_was_seen_is_another():
    registry, dense = make_registry(), torch.ones(3)
    sparse = torch.ones(3).to_sparse()
    registry.seen_by_id[id(sparse)] = registry.read(dense)
    HeldTensors(registry, [*enumerate(map(hold, (dense, sparse)))])
    assert registry.seen_by_id[id(sparse)][0] != registry.seen_by_id[id(dense)][0]


def test_a_lazy_tensor_has_no_storage():
    registry, lazy = make_registry(), nn.LazyLinear(3, bias=False)
    held = HeldTensors(registry, [(0, lazy)])
    ((tensor,), storages) = held.describe([""])[0]
    assert tensor.is_lazy
    assert storages == (-1,)
    assert held.read_versions() == {}
