"""What autograd saves of a call, beside what it is asked."""

from itertools import product

import pytest
import torch

from meta_magic import record
from meta_magic.cost import saved_storages
from meta_magic.cost.saved_storages import find_saved_slots


@pytest.fixture(scope="module")
def addmm():
    with record() as trace:
        torch.addmm(torch.ones(4), torch.ones(2, 3), torch.ones(3, 4))
    return trace


@pytest.mark.parametrize("needed", [*product((False, True), repeat=3)])
def test_what_is_known_is_what_autograd_answers(addmm, monkeypatch, needed):
    (signature,) = [s for s in addmm.program.signatures if s.op == saved_storages.ADDMM]
    known = find_saved_slots(signature, needed)
    monkeypatch.setattr(saved_storages, "ADDMM", "")
    assert known == find_saved_slots(signature, needed)
