"""Tensors that wrap others, as a DTensor wraps a shard."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from meta_magic import MaterializeError, materialize, record


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def build_sharded():
    model = build()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


@pytest.fixture
def group():
    """Be in a process group of one."""
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_sharded_model_is_trained_on():
    with record():
        made = build_sharded()
    weight = made[0].weight
    report = materialize(made)
    assert isinstance(weight, DTensor)
    assert made[0].weight is weight
    assert report.tensors[0].name == "0.weight"
    assert torch.equal(weight.full_tensor(), build()[0].weight)
    x = torch.ones(5, 3)
    made(x).sum().backward()
    real = build()
    real(x).sum().backward()
    assert torch.equal(weight.grad.full_tensor(), real[0].weight.grad)


def sharded_outside():
    with record():
        made = build()
    fully_shard(made)
    return made


def written_outside():
    with record():
        made = build_sharded()
    with torch.no_grad():
        made[0].weight.mul_(2)
    return made


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sharded_outside, "'0.weight': no recording that has ended made this DTensor"),
        (written_outside, "'0.weight': it was changed in place outside of any"),
    ],
)
def test_what_was_done_to_a_dtensor_unseen_is_an_error_that_names_it(make, message):
    made = make()
    with pytest.raises(MaterializeError, match=message):
        materialize(made)
    assert made[0].weight.is_meta


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("kind", ["mapping", "folder", "folder of a program"])
def test_a_shard_is_read_from_a_checkpoint(kind, tmp_path):
    torch.manual_seed(3)
    saved = {name: torch.rand(t.shape) for name, t in build().state_dict().items()}
    source = saved if kind == "mapping" else tmp_path
    if kind != "mapping":
        others = {"model": saved, "optimizer": {"step": torch.ones(2)}, "epoch": 3}
        state = saved if kind == "folder" else others
        checkpoint.save(dict(state), checkpoint_id=tmp_path, no_dist=True)
    with record():
        made = build_sharded()
    report = materialize(made, init=source)
    assert {t.filled_by for t in report.tensors if t.kind == "parameter"} == {
        "checkpoint"
    }
    for name, tensor in made.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(whole, saved[name])


@pytest.mark.usefixtures("group")
def test_reset_and_empty_fill_shards():
    with record():
        made, other = build_sharded(), build_sharded()
    assert {t.filled_by for t in materialize(made, init="reset").tensors[:4]} == {
        "reset"
    }
    materialize(other, init="empty")
    assert not other[1].bias.is_meta
