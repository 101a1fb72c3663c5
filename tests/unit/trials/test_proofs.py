"""Advice is proven by recordings of the block as advised, where that can be tried.

Each kind of advice is proven in ``tests/unit/cost/test_advice.py``.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from meta_magic import record
from meta_magic.trials import proofs
from tests.unit.cost.test_advice import compare
from tests.unit.wasteful import BATCH, WIDTH, train


def make_model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def test_a_choice_that_comes_too_late_proves_nothing():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with record() as trace:
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    (advice,) = trace.advice
    assert advice.proof is None
    assert advice.unproven == "'fused' changes nothing in the block itself"


def test_a_block_that_cannot_run_again_is_advised_without_proof(tmp_path):
    with record() as trace:
        (tmp_path / "log").write_text("begun")
        train(lambda p: torch.optim.AdamW(p, foreach=True))
    (advice,) = trace.advice
    assert advice.proof is None
    assert advice.unproven.startswith("it writes the file")


class Doubling(torch.optim.Optimizer):
    """An optimizer of one's own, whose temporaries no choice spares."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        gradients = [p.grad for p in group["params"]]
        doubled = torch._foreach_mul(gradients, 2)
        torch._foreach_add_(group["params"], doubled)


def test_advice_on_an_optimizer_of_ones_own_is_not_proven():
    with record() as trace:
        train(Doubling)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof) == ("foreach", None)


def train_many(n_layers):
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n_layers))
    model = nn.Module()
    model.layers = layers
    model.forward = lambda x: layers[0](x).sum()
    model(torch.ones(1, WIDTH)).backward()
    return model


def test_a_line_that_makes_what_is_used_too_proves_nothing():
    with record() as trace:
        _kept = train_many(n_layers=3)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof) == ("no gradient", None)
    assert advice.unproven.endswith("the block computes something else")


def test_a_copy_that_does_not_raise_the_peak_is_proven_to_be_in_vain():
    with record() as trace:
        torch.ones(64, 64).clone().exp()
    (advice,) = trace.advice
    assert (advice.kind, advice.proof.saved_nbytes) == ("copy", 0)


def test_a_change_that_makes_the_block_fail_proves_nothing():
    """One of the losses is differentiated, which without its graph it cannot be."""
    model = nn.Linear(WIDTH, 8)
    with record() as trace:
        losses = []
        for step in range(6):
            loss = model(torch.ones(BATCH, WIDTH)).exp().square().mean()
            if step == 5:
                loss.backward()
            losses.append(loss)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof) == ("leak", None)
    assert "does not require grad" in advice.unproven


def test_of_much_advice_that_is_tried_which_spares_most(monkeypatch):
    monkeypatch.setattr(proofs, "MOST", 1)
    with record() as trace:
        small, large = torch.ones(64), torch.ones(64, 64)
        _first = small.clone().exp()
        _second = large.clone().exp(), small, large
    first, second = trace.advice
    assert first.nbytes > second.nbytes
    assert first.proof is not None
    assert second.proof is None
    assert second.unproven.endswith("only the advice that saves most was tried")


def attend(dropout_p, kernels=(SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)):
    q = torch.ones(2, 4, 256, 32)
    with sdpa_kernel(list(kernels)):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p)


def test_attention_without_dropout():
    advice, _ = compare(attend, 0.1, 0.0, "dropout_p=0")
    assert (advice.kind, advice.choice) == ("attention", "dropout_p=0")


def attend_by(kernel):
    return attend(0.0, [kernel])


def test_attention_with_its_kernels_switched_on():
    kernels = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
    advice, _ = compare(attend_by, *kernels, "all kernels")
    assert advice.kind == "attention"
