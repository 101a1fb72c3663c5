"""Advice is proven by recordings of the block as advised, where that can be tried."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from meta_magic import record
from meta_magic.trials import proofs
from tests.unit.cost.test_advice import Tied, collect, train_partial
from tests.unit.wasteful import BATCH, WIDTH, Block, add_noise, train, train_head


def make_model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


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


def run_kept(run, **kwargs):
    kept = run(**kwargs)
    del kept


def prove_change(run, wasteful, mended, as_device="cpu"):
    """Return the one advice on a block, and the recording of one written as advised."""
    with record(as_device=as_device) as trace:
        run_kept(run, **wasteful)
    with record(as_device=as_device) as written:
        run_kept(run, **mended)
    (advice,) = trace.advice
    assert advice.unproven is None
    assert advice.proof.before_nbytes == trace.memory.peak_nbytes
    assert advice.proof.after_nbytes == written.memory.peak_nbytes
    assert advice.proof.saved_nbytes > 0
    return advice


def copy(is_copied):
    x = torch.ones(BATCH, WIDTH)
    y = x.clone() if is_copied else x
    return (y * 2).exp(), x


def test_no_copy():
    advice = prove_change(copy, {"is_copied": True}, {"is_copied": False})
    assert (advice.kind, advice.proof.choice) == ("copy", "no copy")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def test_a_narrower_dtype():
    wide, narrow = torch.float32, torch.bfloat16
    advice = prove_change(add_noise, {"dtype": wide}, {"dtype": narrow})
    assert (advice.kind, advice.proof.choice) == ("dtype", "dtype=bfloat16")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def collect_detached():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
    losses = []
    for _ in range(6):
        loss = model(torch.ones(BATCH, WIDTH)).square().mean().detach()
        losses.append(loss)
    return losses


def test_results_without_their_graphs():
    with record(as_device="cpu") as trace:
        run_kept(collect, keep=lambda loss: loss)
    with record(as_device="cpu") as written:
        run_kept(collect_detached)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof.choice) == ("leak", ".detach()")
    assert advice.proof.after_nbytes == written.memory.peak_nbytes
    assert advice.proof.saved_nbytes >= advice.peak_nbytes > 0


def test_no_gradients_of_what_nobody_steps():
    advice = prove_change(train_head, {"is_frozen": False}, {"is_frozen": True})
    assert (advice.kind, advice.choice) == ("gradient", "requires_grad_(False)")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def attend(dropout_p=0.0):
    q = torch.ones(2, 4, 256, 32)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p)


def test_attention_without_dropout():
    advice = prove_change(attend, {"dropout_p": 0.1}, {})
    assert (advice.kind, advice.choice) == ("attention", "dropout_p=0")


def attend_by(kernels):
    with sdpa_kernel(kernels):
        return attend()


def test_attention_with_its_kernels_switched_on():
    math, fused = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
    advice = prove_change(attend_by, {"kernels": [math]}, {"kernels": [fused]})
    assert (advice.kind, advice.choice) == ("attention", "all kernels")


def test_no_weight_of_what_is_tied():
    with record() as trace:
        _kept = Tied(has_head=True)
    with record() as written:
        _kept = nn.Embedding(1000, WIDTH)
    (advice,) = trace.advice
    assert (advice.kind, advice.proof.choice) == ("tying", "no weight of its own")
    assert advice.proof.after_nbytes == written.memory.peak_nbytes
    assert advice.proof.saved_nbytes == advice.peak_nbytes == 4 * 1000 * WIDTH


def test_no_parameters_that_no_forward_reads():
    advice = prove_change(train_partial, {"has_more": True}, {"has_more": False})
    assert (advice.kind, advice.proof.choice) == ("no gradient", "none of them")
    assert advice.proof.saved_nbytes == advice.peak_nbytes
