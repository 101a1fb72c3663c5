"""What a value takes does not grow with what was recorded before it."""

import torch

from meta_magic import record
from meta_magic.replaying.program_calls import ProgramCalls


def _count_reads(monkeypatch, n_values):
    """Return how often the calls of a program were looked at for some values."""
    n_reads = 0
    tensors = ProgramCalls.tensors

    def count(self, index):
        nonlocal n_reads
        n_reads += 1
        return tensors(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(ProgramCalls, "tensors", count)
        with record():
            labels = torch.tensor([7, 5, 3, 1])
            for n in range(n_values):
                assert int(labels[n % 4]) == (7, 5, 3, 1)[n % 4]
                scale = torch.as_tensor([2.0])
                assert not (scale == 0).any()
    return n_reads


def test_each_value_of_many_looks_at_as_many_calls(monkeypatch):
    few, many = (_count_reads(monkeypatch, n_values) for n_values in (20, 80))
    assert many / 80 < 1.2 * few / 20


def test_a_value_asks_for_the_size_of_no_other_that_is_kept(monkeypatch):
    n_asked = 0
    nbytes = torch.UntypedStorage.nbytes

    def count(self):
        nonlocal n_asked
        n_asked += 1
        return nbytes(self)

    counts = []
    with record():
        kept = [torch.full((2,), float(n)) for n in range(120)]
        for chunk in (kept[:20], kept[20:100], kept[100:]):
            before = n_asked
            with monkeypatch.context() as patch:
                patch.setattr(torch.UntypedStorage, "nbytes", count)
                for tensor in chunk:
                    tensor.tolist()
            counts.append((n_asked - before) / len(chunk))
    assert counts[2] < 1.2 * counts[0]
