"""Advice is proven by recordings of the block as advised, where a choice does that."""

import torch
from torch import nn

from meta_magic import record

WIDTH = 64


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


def test_what_no_choice_mends_is_not_proven():
    with record() as trace:
        torch.ones(64, 64).clone().exp()
    (advice,) = trace.advice
    assert (advice.kind, advice.choice, advice.proof) == ("copy", None, None)


def test_advice_is_asked_for_once_and_not_pickled():
    with record() as trace:
        torch.ones(64, 64).clone().exp()
    assert trace.advice is trace.advice
    assert "advice" not in trace.__getstate__()
