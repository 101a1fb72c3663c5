"""Sparse tensors, of which meta knows little, beside the CPU's."""

import pytest
import torch

from meta_magic import record, replay
from tests.conformance.sparse_calls import sparse


def test_other_sparse_layouts_are_refused_as_torch_does():
    with record(), pytest.raises(NotImplementedError, match="aten::_to_sparse"):
        torch.eye(4).to_sparse(layout=torch.sparse_csr)


def test_a_replay_has_the_elements_that_a_sparse_tensor_on_meta_has_not():
    with record() as trace:
        torch.eye(3).to_sparse()
    (made,) = replay(trace, trace.ops[-1].outputs)
    assert made.to_dense().tolist() == torch.eye(3).tolist()


def test_the_values_of_a_sparse_matrix_are_trained_as_on_the_cpu():
    def train():
        values = torch.nn.Parameter(torch.ones(3))
        (torch.randn(3, 4) + sparse(2 * values)).pow(2).sum().backward()
        torch.optim.SGD([values], lr=0.1).step()
        return values.detach()

    torch.manual_seed(0)
    wanted = train()
    torch.manual_seed(0)
    with record():
        met = train()
        assert torch.equal(met, wanted)


def test_what_is_sparse_is_added_in_place():
    with record() as trace:
        torch.ones(3, 4).add_(sparse(torch.ones(3)))
    assert trace.ops[-1].op == "aten.add_.Tensor"
