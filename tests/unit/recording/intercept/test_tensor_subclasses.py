"""Subclasses of tensors: recorded as what they run, or counted."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic import record

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of", "ignore:Sparse invariant checks", "ignore::UserWarning"
)


class Quantized(torch.Tensor):
    """A weight in eight bits, with a scale for each row; as torchao builds them."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale):
        self.values_, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].values_, args[0].scale)
        real = [a.values_ * a.scale if isinstance(a, cls) else a for a in args]
        return func(*real, **(kwargs or {}))


class Names(TorchDispatchMode):
    """Torch's own view of the operators that a program runs for real."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if Quantized in types:
            return NotImplemented
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor):
            self.calls.append((str(func), tuple(returned.shape), returned.dtype))
        return returned


def calls_of(trace):
    return [
        (call.op, call.outputs[0].shape, call.outputs[0].dtype)
        for call in trace.ops
        if len(call.outputs) == 1
    ]


def infer():
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(Quantized.of(model.weight.detach()), False)
    return model(torch.ones(2, 4))


def train():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = nn.Parameter(Quantized.of(model[1].weight.detach()), False)
    model(torch.ones(2, 4)).sum().backward()
    return model[0].weight.grad


@pytest.mark.parametrize("program", [infer, train])
def test_a_wrapper_subclass_is_recorded_as_what_it_runs(program):
    with Names() as names:
        real = program()
    for _ in range(2):
        with record() as trace:
            made = program()
        assert calls_of(trace) == names.calls
        assert (made.shape, made.dtype) == (real.shape, real.dtype)
        assert trace.notes == ()


@pytest.fixture
def _four_ranks():
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_four_ranks")
def test_a_distributed_tensor_is_recorded_as_what_one_rank_computes():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    with record() as trace:
        weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        x = distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])
        y = x @ weight.t()
        whole = y.full_tensor()
    (product,) = (call for call in trace.ops if call.op == "aten.mm.default")
    # A quarter of the eight rows of the weight.
    assert [t.shape for t in product.inputs] == [(2, 4), (4, 2)]
    assert (y.shape, whole.shape) == ((2, 8), (2, 8))
    assert any("all_gather_into_tensor" in call.op for call in trace.ops)


class Named(torch.Tensor):
    """A class of a user's own."""


def test_a_tensor_of_a_subclass_is_not_taken_for_a_dead_one_at_its_address():
    with record() as trace:
        base, address, alias = torch.ones(3), 0, None
        for _ in range(100):
            view = base.view(3)
            address = id(view)
            del view
            alias = base.as_subclass(Named)
            if id(alias) == address:
                break
        torch.ones(3).add_(alias)
    assert id(alias) == address, "no address was used again: the test shows nothing"
    numbers = {op.outputs[0].tensor_id for op in trace.ops}
    assert trace.ops[-1].inputs[1].tensor_id not in numbers
