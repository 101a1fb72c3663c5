"""Storages that are larger on the CPU than what is returned on them."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic.cost.program_columns import KEPT
from meta_magic.session.record import record

A, B = torch.full((7, 1), 0.5), torch.full((7, 3), 0.25)
CALLS = {
    "aten.mse_loss.default": lambda a, b: F.mse_loss(a, b, reduction="sum"),
    "aten.smooth_l1_loss.default": F.smooth_l1_loss,
    "aten.soft_margin_loss.default": F.soft_margin_loss,
    "aten.binary_cross_entropy.default": F.binary_cross_entropy,
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_a_loss_takes_what_it_takes_on_the_cpu(name, reduction):
    call, b = CALLS[name], B
    a = b if name == "aten.binary_cross_entropy.default" else A.expand(7, 3)
    if reduction == "none":
        call = getattr(F, name.split(".")[1])
        real = call(a, b, reduction="none")
    else:
        real = call(a, b)
    with record(as_device="cpu") as trace:
        x, y = torch.ones(a.shape), torch.ones(b.shape)
        if reduction == "none":
            call(x, y, reduction="none")
        else:
            call(x, y)
    index = [c.op for c in trace.ops].index(name)
    (made,) = trace.ops[index].outputs
    living = trace.memory.at(index).storages
    nbytes = next(s.nbytes for s in living if s.storage_id == made.storage_id)
    assert nbytes == real.untyped_storage().nbytes()


def test_a_bag_of_embeddings_takes_what_it_takes_on_the_cpu():
    def run():
        weight, ids = torch.ones(9, 4), torch.zeros(6, dtype=torch.long)
        offsets = torch.zeros(2, dtype=torch.long)
        call = torch.ops.aten._embedding_bag.default
        return call(weight, ids, offsets, False, 1)  # mean

    with record(as_device="cpu") as trace:
        run()
    real = [part.untyped_storage().nbytes() for part in run()]
    living = {s.storage_id: s.nbytes for s in trace.memory.at(-1).storages}
    made = [living.get(part.storage_id, 0) for part in trace.ops[-1].outputs]
    assert made == real


def test_each_that_is_listed_is_an_operator_of_torch():
    for name in KEPT:
        namespace, op, overload = name.split(".")
        getattr(getattr(getattr(torch.ops, namespace), op), overload)
