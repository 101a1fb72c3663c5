"""Sizes that depend on values beyond the limits, and what is assumed of them."""

import pytest
import torch

from meta_magic import (
    MaterializeError,
    MissingValueError,
    ValueLimits,
    materialize,
    record,
)
from meta_magic.view.payload import build_payload

NOTHING = ValueLimits(nbytes=0, flops=0)


def record_with(*assume):
    return record(limits=NOTHING, assume=assume)


def test_all_are_true():
    with record_with("nonzero=all"):
        mask = torch.rand(3, 4) > 0.5
        assert mask.nonzero().shape == (12, 2)
        assert torch.rand(3, 4, 5)[mask].shape == (12, 5)
        assert torch.rand(3, 4).masked_select(mask).shape == (12,)
        assert torch.rand(5, 3, 4).masked_select(mask).shape == (60,)
        assert [len(t) for t in torch.where(mask)] == [12, 12]


@pytest.mark.parametrize(
    ("part", "n_true"), [("0.5", 6), ("0", 0), ("0.3", 4), ("1", 12)]
)
def test_a_part_is_true(part, n_true):
    # 0.3 x 12 = 3.6, which is nearest to 4.
    with record_with(f"nonzero={part}"):
        assert (torch.rand(3, 4) > 0.5).nonzero().shape == (n_true, 2)


def route(tokens, n_experts, k):
    """Return for each expert how many tokens a loop over experts gives it."""
    logits = torch.rand(tokens, n_experts)
    chosen = logits.topk(k, dim=-1).indices
    return [len(torch.where(chosen == e)[0]) for e in range(n_experts)]


def test_each_expert_gets_as_many_tokens():
    with record_with("routing=uniform"):
        assert route(64, 8, 2) == [64 * 2 // 8] * 8


def test_routing_through_one_hot_and_a_permutation():
    # The router's 64 x 8 numbers take 2,048 bytes, the list of experts 8 x 8.
    with record(limits=ValueLimits(nbytes=1000), assume="routing=uniform"):
        chosen = torch.rand(64, 8).topk(2, dim=-1).indices
        mask = torch.nn.functional.one_hot(chosen, 8).permute(2, 1, 0)  # (8, 2, 64)
        hit = (mask.sum((-1, -2)) > 0).nonzero()
        assert hit.shape == (8, 1)
        assert [int(i) for i in hit[:, 0]] == [*range(8)]
        assert len(torch.where(mask[hit[3, 0]])[0]) == 64 * 2 // 8


def test_what_can_be_known_is_not_assumed():
    with record(assume="nonzero=all") as trace:
        assert torch.tensor([True, False]).nonzero().shape == (1, 1)
    assert not trace.program.assumptions


def test_the_operator_and_all_that_follows_are_marked():
    with record_with("nonzero=0.5") as trace:
        x = torch.rand(4)
        positions = (x > 0.5).nonzero()
        y = x[positions] * 2
        x.add_(1)
        y.sum()
    marked = {op.op: op.assumed for op in trace.ops}
    assert marked == {
        "aten.rand.default": None,
        "aten.gt.Scalar": None,
        "aten.nonzero.default": "nonzero=0.5",
        "aten.index.Tensor": "nonzero=0.5",
        "aten.mul.Tensor": "nonzero=0.5",
        "aten.add_.Tensor": None,
        "aten.sum.default": "nonzero=0.5",
    }
    (note,) = trace.notes
    assert note.kind == "assumed"
    assert "Tensor.nonzero gives was assumed: nonzero=0.5, so 2 of 4" in note.text
    assert build_payload(trace)["remarks"]["assumed"] == [
        (2, 5, "nonzero=0.5"),
        (6, 7, "nonzero=0.5"),
    ]


def test_values_that_rest_on_an_assumption_are_spread_evenly():
    with record(limits=ValueLimits(nbytes=200), assume="nonzero=0.5") as trace:
        mask = torch.rand(1000)[:8] > 0.5  # 4,000 bytes: too much to know
        positions = mask.nonzero()
        assert positions[:, 0].tolist() == [1, 3, 5, 7]
        assert torch.arange(8)[mask].tolist() == [1, 3, 5, 7]
    assert len(trace.program.assumptions) == 2


@pytest.mark.parametrize(
    "text", ["nonzero=2", "nonzero=-0.1", "nonzero=some", "routing=random", "", "all"]
)
def test_an_assumption_that_is_not_known_is_refused_with_the_list(text):
    with pytest.raises(ValueError, match=r"nonzero=all, nonzero=FRACTION.*routing"):
        record(assume=text)


def test_what_rests_on_an_assumption_is_not_made_real():
    with record(limits=ValueLimits(nbytes=4000), assume="nonzero=all"):
        x = torch.arange(2000.0)
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(x[x < 0])
        assert "tensor(..." in repr(module.weight)
    with pytest.raises(MaterializeError, match=r"assumed \(nonzero=all\)"):
        materialize(module)
    assert module.weight.is_meta


@pytest.mark.parametrize("text", ["values=nan", "values=2"])
def test_a_value_beyond_the_limits_is_the_number(text):
    wanted = float(text.removeprefix("values="))
    with record_with(text):
        x = torch.rand(3, 4)
        met = [x.sum().item(), float(x[0, 0]), *x[0].tolist(), *x.numpy()[1]]
        assert f"{x.mean():.1f}" == f"{wanted:.1f}"
        assert bool(x.max())
    assert met == pytest.approx([wanted] * 10, nan_ok=True)


def test_a_module_that_an_assumed_number_went_into_is_not_materialized():
    with record_with("values=nan"), torch.no_grad():
        module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        module.weight.mul_(module.weight.sum().item())
    with pytest.raises(MaterializeError, match=r"which was assumed \(values=nan\)"):
        materialize(module)
    materialize(other)


OPTIONS = {
    "values=nan": lambda: torch.rand(3).sum().item(),
    "values=0": lambda: bool(torch.rand(3).sum() > 0),
    "nonzero=all": lambda: torch.rand(3).gt(0).nonzero(),
    "routing=uniform": lambda: route(64, 8, 2),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_error_names_the_option_that_helps(option):
    names_it = f"go on without it \\(--assume {option} or record"
    with pytest.raises(MissingValueError, match=names_it), record_with():
        OPTIONS[option]()
    with record_with(option):
        OPTIONS[option]()
