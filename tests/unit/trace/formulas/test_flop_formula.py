"""Formulas of users: ``flop_formula``, and those that libraries give to torch."""

import pytest
import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

import meta_magic as mm
from meta_magic.trace.formulas import call_costs


@torch.library.custom_op("mm_formulas::attend", mutates_args=())
def define(x: torch.Tensor, heads: int, *, scale: float = 1.0) -> torch.Tensor:
    return x * heads


define.register_fake(lambda x, heads, *, scale=1.0: torch.empty_like(x))


@pytest.fixture
def attend(monkeypatch):
    """Return an operator that nobody knows the FLOPs of."""
    monkeypatch.setattr(call_costs, "OWN", {})
    before = dict(flop_registry)
    yield torch.ops.mm_formulas.attend
    flop_registry.clear()
    flop_registry.update(before)


def run(attend):
    with mm.record() as trace:
        attend(torch.ones(2, 3), 4, scale=0.5) + 1
    return trace


def test_what_has_no_formula_is_listed_with_its_share_of_bytes(attend):
    (unknown,) = run(attend).cost.unknown
    assert (unknown.op, unknown.n_calls) == ("mm_formulas.attend.default", 1)
    # It reads and writes as many as the sum, and as many are made at first.
    assert (unknown.nbytes, unknown.share) == (2 * 24, 2 / 5)


@pytest.mark.parametrize(
    "named",
    [
        lambda op: op,
        lambda op: op.default,
        lambda _: "mm_formulas.attend",
        lambda _: "mm_formulas::attend",
    ],
)
def test_a_formula_is_called_as_the_operator_is_with_shapes(attend, named):
    trace = run(attend)
    calls = []

    @mm.flop_formula(named(attend))
    def attend_flops(x_shape, heads, *, out_shape, scale):
        calls.append((x_shape, heads, out_shape, scale))
        return 1000

    assert trace.flops == trace.cost.flops == 1000
    assert trace.cost.unknown == ()
    assert calls[0] == ((2, 3), 4, (2, 3), 0.5)


def test_a_formula_of_ones_own_counts_before_any_other(monkeypatch):
    monkeypatch.setattr(call_costs, "OWN", {})
    mm.flop_formula(torch.ops.aten.mm)(lambda a, b, *, out_shape: 7)
    with mm.record() as trace:
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert trace.ops[-1].flops == trace.flops == 7


def test_an_error_of_a_formula_is_the_users(attend):
    @mm.flop_formula(attend)
    def attend_flops(*_, **__):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(attend).flops


@pytest.mark.parametrize("wrong", [7, None, torch.mm, "attend"])
def test_what_is_no_operator_is_refused(wrong):
    with pytest.raises(TypeError, match="takes an operator such as"):
        mm.flop_formula(wrong)


def test_a_formula_that_torch_was_given_counts(attend):
    register_flop_formula(attend)(lambda x, heads, *, out_shape=None, **_: 5 * x[0])
    assert run(attend).flops == 5 * 2


def test_a_formula_that_wants_tensors_is_not_used(attend):
    register_flop_formula(attend, get_raw=True)(lambda x, *_, **__: x.numel())
    assert [u.op for u in run(attend).cost.unknown] == ["mm_formulas.attend.default"]
