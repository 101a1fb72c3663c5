"""Sparse tensors, of which meta knows little, beside the CPU's."""

import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, materialize, record, replay
from meta_magic.torch_private.tensor_internals import parts_of
from tests.conformance.sparse_calls import CALLS, DENSE, TRAINING, edges, rows
from tests.unit.eager import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def describe(tensor):
    """Return all of a sparse tensor that code can see."""
    parts = [(part.stride(), part.tolist()) for part in parts_of(tensor)]
    is_coalesced = tensor.layout is torch.sparse_coo and tensor.is_coalesced()
    return tensor.shape, tensor.dtype, tensor.layout, is_coalesced, parts


def on_the_cpu(call):
    """Return the result of a call for real; the next draws are the same again."""
    torch.manual_seed(0)
    result = call()
    torch.manual_seed(0)
    return result


@pytest.mark.parametrize("name", CALLS)
def test_a_sparse_tensor_has_the_elements_of_the_cpu(name):
    wanted = describe(on_the_cpu(CALLS[name]))
    with record():
        made = CALLS[name]()
        assert made.is_meta
        *positions, values = parts_of(made)
        met = (made._nnz(), values.shape, [part.shape for part in positions])
        dense = made.to_dense().tolist()
        text = str(made)
    torch.manual_seed(0)
    real = CALLS[name]()
    *positions, values = parts_of(real)
    assert met == (real._nnz(), values.shape, [part.shape for part in positions])
    assert dense == real.to_dense().tolist()
    assert text.replace(", device='meta'", "") == str(real)
    assert describe(real) == wanted


@pytest.mark.parametrize("name", CALLS)
def test_a_replay_makes_the_sparse_tensor_of_the_cpu(name):
    wanted = describe(on_the_cpu(CALLS[name]))
    with record() as trace:
        CALLS[name]()
    (made,) = replay(trace, trace.ops[-1].outputs)
    assert describe(made) == wanted


@pytest.mark.parametrize("name", DENSE)
def test_what_is_made_of_sparse_tensors_is_as_on_the_cpu(name):
    real = on_the_cpu(DENSE[name])
    with record():
        made = DENSE[name]()
        assert (made.shape, made.stride()) == (real.shape, real.stride())
        assert made.tolist() == real.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16])
def test_elements_of_other_dtypes_are_those_of_the_cpu(dtype):
    wanted = on_the_cpu(lambda: edges(dtype=dtype).coalesce())
    with record():
        made = edges(dtype=dtype).coalesce()
        assert made.values().tolist() == wanted.values().tolist()


@pytest.mark.parametrize("name", TRAINING)
def test_training_with_sparse_tensors_is_that_of_the_cpu(name):
    numbers, weights, states = on_the_cpu(TRAINING[name])
    with record():
        met, planned, planned_states = TRAINING[name]()
        assert met == numbers
        for real, made in zip(
            [*weights, *states], [*planned, *planned_states], strict=True
        ):
            assert torch.equal(made.detach(), real.detach())


def test_a_trained_sparse_embedding_is_materialized_to_the_bit():
    def train():
        model = nn.Embedding(30, 5, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randint(0, 30, (6, 3))).pow(2).sum().backward()
            optimizer.step()
        return model

    wanted = on_the_cpu(train)
    with record():
        made = train()
    notes = [note for note in materialize(made).notes if "sparse" in note]
    assert all(note.startswith("weight.grad: ") for note in notes)
    assert torch.equal(made.weight, wanted.weight)


def test_a_sparse_gradient_is_stepped_in_a_later_cell():
    def begin():
        model = nn.Embedding(9, 3, sparse=True)
        model(torch.randint(0, 9, (5,))).sum().backward()
        return model, torch.optim.SparseAdam(model.parameters())

    torch.manual_seed(0)
    wanted, optimizer = begin()
    optimizer.step()
    torch.manual_seed(0)
    with record():
        made, optimizer = begin()
    with record():
        optimizer.step()
        assert torch.equal(made.weight.detach(), wanted.weight.detach())


def test_positions_that_nobody_knows_are_refused_when_they_are_needed():
    with torch.device("meta"):
        unknown = torch.empty(2, 3, dtype=torch.long)
    with record():
        made = torch.sparse_coo_tensor(unknown, torch.ones(3), (4, 4))
        assert made._nnz() == 3
        assert (made @ torch.ones(4, 2)).shape == (4, 2)
        with pytest.raises(MissingValueError, match="how many elements a sparse"):
            made.coalesce()


def test_the_norm_of_sparse_gradients_is_that_of_the_cpu_or_refused_as_there():
    def clip():
        model = nn.Embedding(9, 3, sparse=True)
        model(torch.tensor([1, 2])).sum().backward()
        try:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        except NotImplementedError as error:  # before torch 2.14
            return str(error).splitlines()[0]
        return norm, model.weight.grad.to_dense().tolist()

    assert_same(clip)


@pytest.mark.parametrize("make", [edges, rows])
def test_a_later_cell_goes_on_with_a_sparse_tensor(make):
    wanted = on_the_cpu(make)
    with record():
        made = make()
    with record():
        assert made.to_dense().tolist() == wanted.to_dense().tolist()
        product = made @ torch.ones(5, 2)
        assert product.tolist() == (wanted @ torch.ones(5, 2)).tolist()
        made.mul_(2)
    with record():
        assert made._nnz() == wanted._nnz()
        assert made.to_dense().tolist() == wanted.mul_(2).to_dense().tolist()
