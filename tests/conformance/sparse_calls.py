"""Calls that make sparse tensors, or take them."""

import torch


def sparse(values, *, is_coalesced=None):
    """Return a sparse matrix of three elements."""
    at = torch.tensor([[2, 0, 1], [0, 1, 1]])
    options = {"is_coalesced": is_coalesced, "check_invariants": False}
    return torch.sparse_coo_tensor(at, values, (3, 4), **options)


SPARSE = {
    "coordinates": lambda: torch.randn(3, 4).to_sparse(),
    "rows by coordinates": lambda: torch.randn(3, 4).to_sparse(1),
    "coordinates of rows": lambda: torch.randn(3, 4).to_sparse(dense_dim=1),
    "to strides": lambda: torch.zeros(3, 4, layout=torch.sparse_coo).to_dense(),
    "at positions": lambda: torch.randn(3, 4).sparse_mask(sparse(torch.ones(3))),
    "at coalesced positions": lambda: torch.randn(3, 4).sparse_mask(
        sparse(torch.ones(3), is_coalesced=True)
    ),
}
