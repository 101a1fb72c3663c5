"""Advice is proven by recordings of the block as advised, where a choice does that."""

import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.trials import proofs

WIDTH, BATCH = 64, 512


def make_model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def train(make_optimizer):
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_fused_optimizer_saves_what_was_said():
    with record() as trace:
        train(lambda p: torch.optim.AdamW(p, foreach=True))
    with record() as mended:
        train(lambda p: torch.optim.AdamW(p, fused=True))
    (advice,) = trace.advice
    assert advice.proof.choice == "fused"
    assert advice.proof.before_nbytes == trace.memory.peak_nbytes
    assert advice.proof.after_nbytes == mended.memory.peak_nbytes
    assert advice.proof.saved_nbytes == advice.peak_nbytes > 0
    assert advice.unproven is None


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def test_checkpointing_saves_what_was_said():
    with record() as trace:
        blocks = nn.Sequential(*(Block(1024) for _ in range(8)))
        nn.Sequential(blocks, nn.Tanh())(torch.ones(1 << 14, 1024)).sum().backward()
    (advice,) = trace.advice
    assert advice.proof.choice == "checkpointing"
    assert advice.proof.saved_nbytes == advice.peak_nbytes > 2**30


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


def test_attention_that_no_flag_mends_is_not_proven():
    with record(as_device="cuda") as trace:
        q = torch.ones(2, 4, 256, 32, dtype=torch.float64)
        F.scaled_dot_product_attention(q, q, q)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof) == ("attention", None)
    assert advice.unproven.startswith("only other code makes this change")


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
    assert second.unproven.startswith("other advice spares more")


def test_advice_is_asked_for_once_and_not_pickled():
    with record() as trace:
        torch.ones(64, 64).clone().exp()
    assert trace.advice is trace.advice
    assert "advice" not in trace.__getstate__()
