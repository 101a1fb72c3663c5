"""Operators in a replay: what they give, and which cannot run."""

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from meta_magic import ReplayError, ValueLimits, record
from meta_magic.replaying.operators import find_operator
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import both, plan, replay


def beside_transposed():
    x = torch.arange(6.0).view(2, 3).clone()
    before, alias = x * 2, x.detach()
    x.t_()
    return before + alias


def beside_grown():
    out = torch.arange(4.0)
    alias, before = out.detach(), out * 2
    torch.arange(6.0, out=out.resize_(6))
    return before + alias


def foreach_in_place():
    tensors = [torch.ones(2), torch.ones(2)]
    torch._foreach_mul_(tensors, [3.0, 4.0])
    return tensors[1]


def gradient():
    x = torch.arange(3.0, requires_grad=True)
    (x.exp() * 2).sum().backward()
    return x.grad


def statistics():
    mean = torch.zeros(2)
    functional.batch_norm(
        torch.arange(6.0).view(3, 2), mean, torch.ones(2), training=True
    )
    return mean


LAYOUTS = {
    "beside one that was transposed": beside_transposed,
    "beside one that grew": beside_grown,
    "transposed": lambda: torch.arange(6.0).view(2, 3).t().contiguous().t() * 2,
    "channels last": lambda: (
        torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last) * torch.arange(3.0)
    ),
    "conjugated": lambda: torch.tensor([1 + 2j]).conj() * 1,
    "complex as real": lambda: torch.view_as_real(torch.tensor([1 + 2j, 3])).clone(),
    "other dtype": lambda: torch.arange(4.0).view(torch.int32).clone(),
    "unfolded": lambda: torch.arange(6.0).unfold(0, 3, 1).clone(),
    "diagonal": lambda: torch.eye(3).diagonal().add_(1),
    "matrix product": lambda: torch.arange(6.0).view(2, 3) @ torch.ones(3, 4),
    "solve": lambda: torch.linalg.solve(torch.eye(3) * 2, torch.arange(3.0)),
    "sort": lambda: torch.tensor([3.0, 1, 2]).sort().values,
    "topk": lambda: torch.tensor([3.0, 1, 2]).topk(2).indices,
    "cumulative sum": lambda: torch.arange(5).cumsum(0),
    "split": lambda: torch.arange(6.0).split(2)[1].mul(2),
    "index put": lambda: torch.zeros(3).index_put_(
        (torch.tensor([0, 2]),), torch.tensor([5.0, 6.0])
    ),
    "scatter": lambda: torch.zeros(3).scatter_(0, torch.tensor([1]), 4.0),
    "where": lambda: torch.where(torch.tensor([True, False]), 1.0, 2.0),
    "einsum": lambda: torch.einsum("ij,j->i", torch.ones(2, 3), torch.arange(3.0)),
    "nan and inf": lambda: torch.full((2,), math.inf) * torch.tensor([1.0, -1]),
    "full of nan": lambda: torch.full((3,), math.nan).nan_to_num(nan=2.5),
    "nan": lambda: torch.full((2,), math.nan).view(torch.int32),
    "nan of an item": lambda: (torch.ones(2) * (torch.zeros(2) / 0).sum().item()).view(
        torch.int32
    ),
    "negative zero": lambda: 1 / torch.full((3,), -0.0),
    "out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(2)),
    "resized out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(0)),
    "grown from a value": lambda: torch.tensor(3.0).resize_(2).fill_(1),
    "resized": lambda: torch.ones(2).resize_(1),
    "set": lambda: torch.empty(0).set_(torch.arange(3.0)),
    "interpolated": lambda: functional.interpolate(
        torch.ones(1, 1, 2, 2), scale_factor=2
    ),
    "softmax": lambda: torch.arange(4.0).softmax(0),
    "attention": lambda: functional.scaled_dot_product_attention(
        *torch.arange(24.0).view(3, 1, 2, 4)
    ),
    "layer norm": lambda: functional.layer_norm(torch.arange(4.0), (4,)),
    "foreach": lambda: torch._foreach_add([torch.ones(2), torch.ones(2)], 2)[1],
    "foreach in place": foreach_in_place,
    "grad": gradient,
    "vmap": lambda: torch.vmap(torch.sin)(torch.arange(3.0)),
    "func.grad": lambda: torch.func.grad(lambda x: (x**2).sum())(torch.arange(3.0)),
    "batch norm": lambda: functional.batch_norm(
        torch.arange(6.0).view(3, 2), torch.zeros(2), torch.ones(2), training=True
    ),
    "statistics of a batch norm": statistics,
    "checkpointed": lambda: torch.utils.checkpoint.checkpoint(
        torch.exp, torch.arange(3.0), use_reentrant=False
    ),
    "one value of a range": lambda: torch.arange(0, 1, 0.1)[3:5] + 1,
    "float64 of linspace": lambda: torch.linspace(0, 1, 7, dtype=torch.float64),
    "tril": lambda: torch.ones(3, 3).tril_(-1),
    "masked": lambda: torch.zeros(3).masked_fill_(
        torch.tensor([True, False, True]), float("-inf")
    ),
    "to and back": lambda: torch.arange(3.0).half().float().bool().int(),
    "string index": lambda: torch.ones(3)[..., None, 1:].expand(2, 1, 2).clone(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_operator_replays_to_what_it_gives_for_real(name):
    real, made = both(LAYOUTS[name])
    assert_same_tensor(made, real.detach())


def test_an_out_argument_is_recorded_after_a_negative_tensor():
    # In a process of its own: the cache of signatures remembers such tensors.
    code = """
import torch
from meta_magic import ValueLimits, record
with record():
    torch.tensor([1 + 2j]).conj().imag.clone()
with record() as trace:
    torch.add(torch.ones(2), 1, out=torch.empty(2))
print(len(trace.ops))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("3", "")


def test_meta_data_from_outside_is_an_error_that_names_line_and_operator():
    outside = torch.ones(3, device="meta")
    with record() as trace:
        wanted = outside * 2
    with pytest.raises(
        ReplayError, match=r"12 bytes, read by aten\.mul\.Tensor in line"
    ):
        plan(trace, wanted)


def test_an_operator_that_nobody_registered_is_an_error_that_names_it():
    with pytest.raises(
        ReplayError, match=r"nowhere\.nothing\.default is not registered"
    ):
        find_operator("nowhere.nothing.default")


def test_an_index_out_of_range_is_an_error_that_names_the_operator():
    with record(limits=ValueLimits(nbytes=0)) as trace:
        index = torch.rand(1).add(7).long()  # too expensive to know when recorded
        wanted = torch.arange(3.0)[index]
    with pytest.raises(ReplayError, match=r"aten\.index\.Tensor in line \d+ failed"):
        replay(trace, wanted)
