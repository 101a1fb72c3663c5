"""Tensors from factories without a device, and from torch's old constructors."""

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.eager import assert_refused_alike, assert_same
from tests.unit.recording.intercept.data_of_cells import notes_of


def test_a_legacy_constructor_is_on_meta():
    with record() as trace:
        made = nn.Parameter(torch.Tensor(2, 3)), torch.FloatTensor(4)
        with torch.device("cpu"):
            real = torch.Tensor(2)
    assert [t.is_meta for t in (*made, real)] == [True, True, False]
    assert [t.shape for t in made] == [(2, 3), (4,)]
    assert trace.nbytes_real == 2 * 4


@pytest.mark.parametrize("layer", [nn.Linear, nn.Embedding, nn.LSTM])
def test_a_layer_that_is_told_the_cpu_by_name_stays_on_meta(layer):
    with record() as trace:
        made = layer(2, 3, device="cpu")
    assert all(p.is_meta for p in made.parameters())
    assert trace.nbytes_real == 0


# Constructors of torch's first years, and tensors within lists of values


STORAGE = torch.FloatStorage([1.0, 2.0])


def ones(*shape, dtype=None):
    return torch.ones(*shape, dtype=dtype)


CONSTRUCTORS = {
    "FloatTensor of a list": lambda: torch.FloatTensor([1, 2]),
    "LongTensor of an array": lambda: torch.LongTensor(np.arange(3)),
    "BoolTensor of a list": lambda: torch.BoolTensor([True, False]),
    "FloatTensor of sizes": lambda: torch.FloatTensor(2, 3).fill_(3),
    "FloatTensor of a storage": lambda: torch.FloatTensor(STORAGE),
    "FloatTensor of arrays": lambda: torch.FloatTensor([[np.float32(1)] * 2] * 2),
    "FloatTensor of nothing": torch.FloatTensor,
    "Tensor of a list": lambda: torch.Tensor([0.5]),
    "Tensor of numpy's numbers": lambda: torch.Tensor([np.float32(1)]),
    "Tensor of sizes": lambda: torch.Tensor(2, 3).zero_(),
    "new of a list": lambda: ones(2).new([1.0, 3.0]),
    "new of an array": lambda: ones(2).new(np.ones(2)),
    "new of sizes": lambda: ones(2).new(2, 3).zero_(),
    "new_tensor of a list": lambda: ones(2).new_tensor([1, 2]),
}
WITH_TENSORS = {
    "tensor": lambda: torch.tensor([ones(()), ones(()) * 2]),
    "tensor with numbers": lambda: torch.tensor([ones(()), 2]),
    "tensor of bool": lambda: torch.tensor([torch.tensor(True), torch.tensor(False)]),
    "tensor that wants a gradient": lambda: torch.tensor(
        [ones(()), 2.0], requires_grad=True
    ),
    "tensor of one element": lambda: torch.tensor([ones(1)]),
    "asarray": lambda: torch.asarray([ones(()), 2.0]),
    "new_tensor": lambda: ones(2).new_tensor([ones(()) * 3]),
    "FloatTensor": lambda: torch.FloatTensor([ones(()), ones(()) * 2]),
    "Tensor": lambda: torch.Tensor([ones(1) * 2]),
}
REFUSED = {
    "FloatTensor": lambda: torch.FloatTensor([ones(2)]),
    "tensor": lambda: torch.tensor([ones(2)]),
    "LongTensor of float": lambda: torch.LongTensor([ones(())]),
}


def describe(tensor):
    return tensor.dtype, tensor.shape, tensor.requires_grad, tensor.tolist()


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_legacy_constructor_makes_a_meta_tensor_with_its_values(name):
    wanted = CONSTRUCTORS[name]()
    with record() as trace:
        made = CONSTRUCTORS[name]()
        assert made.is_meta
        assert describe(made) == describe(wanted)
    assert not notes_of(trace).keys() & {"factory", "state"}


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_tensors_in_a_list_of_values_are_values(name):
    wanted = WITH_TENSORS[name]()
    with record():
        made = WITH_TENSORS[name]()
        assert made.is_meta
        assert describe(made) == describe(wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_in_its_words(name):
    assert_refused_alike(REFUSED[name])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_tensor_is_of_the_type_that_it_has_on_the_cpu(device):
    def tell():
        data = torch.from_numpy(np.arange(3, dtype=np.uint8))
        made = torch.FloatTensor([1.0, 2.0]), torch.ones(2), data, data.long()
        kinds = (
            torch.FloatTensor,
            torch.ByteTensor,
            torch.LongTensor,
            torch.cuda.ByteTensor,
        )
        return [[isinstance(tensor, kind) for kind in kinds] for tensor in made]

    assert_same(tell, as_device=device)
