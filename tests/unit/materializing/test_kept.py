"""What materialize() keeps of a module: objects, ties, strides, hooks, optimizers."""

import io
import pickle

import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrizations, parametrize, prune

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing import companions
from meta_magic.materializing import materialize as materializing
from meta_magic.materializing.fills.distributed_checkpoint import MetadataReader
from meta_magic.materializing.fills.inits import INITS
from meta_magic.recording.identities.origins import find_origin, ref_by_address
from tests.unit.eager import assert_bit_equal, build_twice, tensors_of
from tests.unit.materializing.modules import Masked, Shared, Tied


def test_tensors_stay_the_same_objects():
    _, made, _, _ = build_twice(Masked)
    before = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    materialize(made)
    after = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("init", INITS)
def test_a_tie_is_kept(init):
    _, made, _, _ = build_twice(Tied)
    report = materialize(made, init=init)
    assert made.head.weight is made.embed.weight
    assert report.ties == (("head.weight", "embed.weight"),)


@pytest.mark.parametrize("init", ["replay", "empty"])
def test_views_of_one_storage_stay_views_of_one_storage(init):
    _, made, _, _ = build_twice(Shared)
    materialize(made, init=init)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]
    assert made.matrix.stride() == (1, 3)


def test_a_shared_submodule_is_reported_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.ties == (("1.weight", "0.weight"), ("1.bias", "0.bias"))


@pytest.mark.parametrize("init", INITS)
def test_strides_are_kept(init):
    _, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made, init=init)
    assert made.weight.stride() == (27, 1, 9, 3)


def test_requires_grad_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.requires_grad_(False)
    materialize(made)
    assert (made.weight.requires_grad, made.bias.requires_grad) == (False, True)


def test_a_real_tensor_is_not_touched():
    with record():
        made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.arange(4.0))
    address, version = made.bias.data_ptr(), made.bias._version
    report = materialize(made)
    assert (made.bias.data_ptr(), made.bias._version) == (address, version)
    assert report.names("kept") == ("bias",)


def test_a_second_time_nothing_is_done():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    address = made.weight.data_ptr()
    report = materialize(made)
    assert made.weight.data_ptr() == address
    assert report.names("kept") == ("weight", "bias")


# Hooks, parametrizations, optimizers and graphs of a module that became real.


def test_a_tensor_hook_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [(4, 3)]


WRAPPED = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_parametrization_goes_on_working(name):
    real, made, _, _ = build_twice(WRAPPED[name])
    materialize(made)
    is_registered = name == "weight norm"
    assert parametrize.is_parametrized(made, "weight") == is_registered
    assert torch.equal(made(torch.ones(4)), real(torch.ones(4)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_made_before_steps_the_real_tensors(kind):
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    optimizer, wanted = kind(made.parameters(), lr=0.1), kind(real.parameters(), lr=0.1)
    materialize(made)
    for module, stepping in ((made, optimizer), (real, wanted)):
        module(torch.arange(6.0).view(2, 3)).pow(2).sum().backward()
        stepping.step()
    assert_bit_equal(made, real)


def test_backward_through_the_old_graph_puts_no_gradient_on_the_real_tensor():
    with record():
        made = nn.Linear(3, 4)
        loss = made(torch.ones(2, 3)).sum()
    materialize(made)
    with record():
        loss.backward()
    assert made.bias.grad is None or not made.bias.grad.is_meta


def backward(build=lambda: nn.Linear(3, 4)):
    """Return a layer with gradients."""
    made = build()
    made(torch.randn(2, 3)).sum().backward()
    return made


def test_gradients_are_made_real_with_what_they_are_of():
    real, made, _, _ = build_twice(backward)
    gradient = made.weight.grad
    report = materialize(made)
    assert made.weight.grad is gradient
    assert torch.equal(gradient, real.weight.grad)
    assert torch.equal(made.bias.grad, real.bias.grad)
    assert report.notes == ()
    assert "  replay, with it: 2 gradients" in str(report).splitlines()


def test_gradients_that_take_too_long_are_dropped_with_the_reason(monkeypatch):
    monkeypatch.setattr(materializing, "PATIENCE", -1.0)
    real, made, _, _ = build_twice(backward)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert made.weight.grad is None
    assert report.notes == (
        "gradients were left out: that takes less than a second more",
        "2 gradients were dropped",
    )


@pytest.mark.parametrize(
    "given", [{"init": "reset"}, {"init": "empty"}, {"state": "constructed"}]
)
def test_gradients_of_other_values_are_dropped_and_counted(given):
    _, made, _, _ = build_twice(backward)
    report = materialize(made, **given)
    assert made.weight.grad is None
    assert "2 gradients were dropped" in report.notes


# Tensors that wrap others, as a DTensor wraps a shard


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


@pytest.mark.usefixtures("group")
def test_no_object_is_searched_while_the_holders_of_all_tensors_are_known(monkeypatch):
    with record():
        made = build_sharded()
    origin, _ = find_origin(made[0].weight.to_local().untyped_storage())

    def list_own():
        return {at for at, ref in ref_by_address.items() if ref.origin is origin}

    monkeypatch.setattr(companions, "list_recorded", list_own)
    monkeypatch.setattr(companions, "find_live", None)
    materialize(made)
    assert torch.equal(made[1].weight.full_tensor(), build()[1].weight)


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


class Got:
    """Is pickled as an attribute of an object."""

    def __init__(self, held, name):
        self.at = held, name

    def __reduce__(self):
        return getattr, self.at


def test_metadata_of_a_checkpoint_may_ask_for_members_of_enumerations_alone():
    # Python before 3.11.4 pickles them so.
    def read(held, name):
        return MetadataReader(io.BytesIO(pickle.dumps(Got(held, name)))).load()

    kind = metadata._MEM_FORMAT_ENCODING
    assert read(kind, "TORCH_PRESERVE_FORMAT") is kind.TORCH_PRESERVE_FORMAT
    with pytest.raises(pickle.UnpicklingError, match="attribute __init__"):
        read(metadata.Metadata, "__init__")


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
