"""Checkpoints as the source of materialize(), and the tensors that they lack."""

from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.checkpoints import SAVERS, Model, pair, save_torch
from tests.unit.materializing.modules import Tied


@pytest.mark.parametrize("kind", SAVERS)
def test_a_checkpoint_fills_its_tensors_and_a_replay_the_others(kind, tmp_path):
    real, made = pair()
    report = materialize(made, init=SAVERS[kind](real.state_dict(), tmp_path))
    assert_bit_equal(made, real)
    assert report.names("checkpoint") == tuple(real.state_dict())
    assert report.names("replay") == ("angles", "scale")
    torch.manual_seed(1)
    assert torch.equal(made.scale, Model().scale)
    assert torch.equal(made.angles, torch.arange(4.0) / 3)


def test_tensors_of_a_mapping_are_assigned_without_a_copy():
    real, made = pair()
    state = real.state_dict()
    materialize(made, init=state)
    addresses = {name: tensor.data_ptr() for name, tensor in made.state_dict().items()}
    assert addresses == {name: tensor.data_ptr() for name, tensor in state.items()}


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_mapping_costs_no_memory(device):
    with record():
        made = nn.Linear(3, 4)
    state = nn.Linear(3, 4).state_dict()
    report = materialize(made, device, init=state)
    assert made.weight.data_ptr() == state["weight"].data_ptr()
    assert report.peak_nbytes == 0


def test_a_torch_file_is_mapped_and_not_read(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    materialize(made, init=path)
    assert str(path) in Path("/proc/self/maps").read_text()


def test_a_dtype_is_cast_to():
    real, made = pair()
    materialize(made, init=real.state_dict(), dtype=torch.bfloat16)
    assert_bit_equal(made, real.bfloat16())


def test_a_checkpoint_of_another_dtype_takes_that_of_the_module():
    real, made = pair()
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in real.state_dict().items()
    }
    materialize(made, init=state)
    assert made.first.weight.dtype == torch.float32
    assert torch.equal(made.first.weight, real.first.weight.half().float())


def test_strides_are_those_of_the_module():
    def build():
        return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    _, made, _, _ = build_twice(build)
    real = nn.Conv2d(3, 4, 3)
    materialize(made, init=real.state_dict())
    assert made.weight.stride() == (27, 1, 9, 3)
    assert torch.equal(made.weight, real.weight)


def test_an_expanded_tensor_is_copied():
    with record():
        made = nn.Linear(3, 2, bias=False)
    materialize(made, init={"weight": torch.arange(3.0).expand(2, 3)})
    with torch.no_grad():
        made.weight[0] = 9
    assert made.weight.tolist() == [[9, 9, 9], [0, 1, 2]]


def test_a_parametrized_module_is_filled():
    def build():
        return nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))

    _, made, _, _ = build_twice(build, seed=1)
    torch.manual_seed(2)
    real = build()
    materialize(made, init=real.state_dict())
    assert_bit_equal(made, real)


def test_an_unrecorded_module_can_be_filled_if_nothing_is_missing():
    made, real = nn.Linear(3, 4, device="meta"), nn.Linear(3, 4)
    materialize(made, init=real.state_dict())
    assert_bit_equal(made, real)


def test_what_a_checkpoint_lacks_for_an_unrecorded_module_is_an_error_that_says_so():
    made, real = nn.Linear(3, 4, device="meta"), nn.Linear(3, 4)
    with pytest.raises(MaterializeError, match=r"checkpoint.*lacks|lacks.*checkpoint"):
        materialize(made, init={"weight": real.weight})


def test_a_real_tensor_is_kept_although_the_checkpoint_has_it():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    weight = made.weight.detach().clone()
    report = materialize(made, init=nn.Linear(3, 4).state_dict())
    assert torch.equal(made.weight, weight)
    assert report.names("kept") == ("weight",)
    assert report.names("checkpoint") == ("bias",)


def test_a_checkpoint_can_be_loaded_within_a_recording(tmp_path):
    real, made = pair()
    path = save_torch(real.state_dict(), tmp_path)
    with record():
        materialize(made, init=path)
    assert_bit_equal(made, real)


# Ties, shared submodules and views that a checkpoint fills.


@pytest.mark.parametrize(
    "names", [["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]]
)
def test_a_tie_is_kept_whichever_of_its_names_the_checkpoint_has(names):
    _, made, _, _ = build_twice(Tied)
    value = torch.rand(10, 4)
    report = materialize(made, init=dict.fromkeys(names, value))
    assert made.head.weight is made.embed.weight
    assert torch.equal(made.head.weight, value)
    assert report.names("checkpoint") == ("embed.weight", "head.weight")


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        flat = torch.full((6,), 7.0)
        self.low = nn.Parameter(flat[:3])
        self.high = nn.Parameter(flat[3:])


def test_views_of_one_storage_are_filled_each_from_its_name():
    with record():
        made = Halves()
    state = {"low": torch.arange(3.0), "high": torch.arange(3.0, 6.0)}
    materialize(made, init=state)
    assert (made.low.tolist(), made.high.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert made.low.untyped_storage().data_ptr() == (
        made.high.untyped_storage().data_ptr()
    )
