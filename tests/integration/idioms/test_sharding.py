"""A tensor sharded over eight devices in one process, recorded with its collectives.

docs.pytorch.org/docs/stable/distributed.tensor.html; the process group is torch's fake
one, which sends nothing.
"""

import pytest
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic import record

tensors = pytest.importorskip("torch.distributed.tensor")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N_RANKS = 8
WAIT = "_c10d_functional.wait_tensor.default"


class Collectives(TorchDispatchMode):
    """Torch's own view of what is sent."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, tensors.DTensor) for kind in types):
            return NotImplemented
        if "c10d" in str(func) and str(func) != WAIT:  # on meta nobody waits
            self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _eight_ranks():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore()
    distributed.init_process_group("fake", rank=0, world_size=N_RANKS, store=store)
    yield
    distributed.destroy_process_group()


def make_mesh(device="cpu"):
    return tensors.DeviceMesh(device, list(range(N_RANKS)))


def multiply():
    """Multiply matrices that are sharded where the product sums."""
    mesh = make_mesh()
    x = tensors.distribute_tensor(torch.ones(2, 16), mesh, [tensors.Shard(1)])
    w = tensors.distribute_tensor(torch.ones(16, 4), mesh, [tensors.Shard(0)])
    b = tensors.distribute_tensor(torch.ones(4), mesh, [tensors.Replicate()])
    y = (x @ w).redistribute(mesh, [tensors.Replicate()]) + b
    return x, w, y.full_tensor(), w.full_tensor()


def run_column_and_row():
    """Run a step of two layers, the first sharded by columns, the second by rows."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    styles = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(model, make_mesh(), styles)
    y = model(torch.ones(3, 16))
    y.sum().backward()
    return y, model[0].weight.grad, model[2].weight.to_local()


@pytest.mark.parametrize("program", [multiply, run_column_and_row])
def test_the_collectives_recorded_are_those_of_the_cpu(program):
    with Collectives() as real:
        wanted = program()
    with record() as trace:
        made = program()
    recorded = [call.op for call in trace.ops if "c10d" in call.op]
    assert recorded == real.calls != []
    assert [t.shape for t in made] == [t.shape for t in wanted]


def test_what_one_rank_holds_is_an_eighth():
    with record() as trace:
        x, w, *_ = multiply()
        assert (x.to_local().shape, w.to_local().shape) == ((2, 2), (2, 4))
    (product,) = (call for call in trace.ops if call.op == "aten.mm.default")
    assert [t.shape for t in product.inputs] == [(2, 2), (2, 4)]


def test_a_mesh_of_gpus_needs_none():
    with record() as trace:
        whole = torch.randn(16, 4, device="cuda")
        shard = tensors.distribute_tensor(whole, make_mesh("cuda"), [tensors.Shard(0)])
        assert shard.to_local().shape == (2, 4)
    assert "c10d.scatter_.default" in [call.op for call in trace.ops]


def test_a_tensor_on_meta_is_sharded_as_plain_torch_does_it():
    def program():
        whole = torch.randn(16, 4, device="meta")
        shard = tensors.distribute_tensor(whole, make_mesh("meta"), [tensors.Shard(0)])
        return shard.shape, shard.to_local().shape, shard.to_local().is_meta

    with record():
        recorded = program()
    assert recorded == program() == ((16, 4), (2, 4), True)
