"""Programs that are right get no advice, however like a mistake they look."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.cost.advice.advisors import find_advice
from tests.unit.wasteful import BATCH, WIDTH, Block, add_noise, train, train_head


def make_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def keep_one_loss():
    return make_model()(torch.randn(8, 64)).sum()


def add_up_losses():
    model, total = make_model(), torch.zeros(())
    for _ in range(4):
        total = total + model(torch.randn(8, 64)).sum()
    return total


def stack_losses():
    model = make_model()
    return torch.stack([model(torch.randn(8, 64)).sum() for _ in range(4)]).mean()


def compare_three():
    model = make_model()
    anchor = model(torch.randn(8, 64))
    positive = model(torch.randn(8, 64))
    negative = model(torch.randn(8, 64))
    return anchor, positive, negative


def recur():
    cell, state = nn.RNNCell(8, 8), torch.zeros(4, 8)
    states = []
    for _ in range(6):
        state = cell(torch.randn(4, 8), state)
        states.append(state)
    return states


def keep_losses_after_backward():
    model, losses = make_model(), []
    for _ in range(4):
        loss = model(torch.randn(8, 64)).sum()
        loss.backward()
        losses.append(loss)
    return losses


def keep_outputs_of_training():
    """Their storages are saved for backward, and listed on purpose."""
    model, outputs = make_model(), []
    for _ in range(4):
        y = model(torch.randn(8, 64))
        y.square().mean().backward()
        outputs.append(y.detach())
    return model, outputs


def copy_before_a_write():
    x = torch.randn(8, 8)
    y = x.clone()
    y[0] = 0
    z = x.clone()
    x.zero_()
    return y.sum() + z.sum()


def copy_to_keep():
    model = make_model()
    return model, {name: t.clone() for name, t in model.state_dict().items()}


def copy_a_part_and_free_the_rest():
    return torch.randn(1000, 64)[:1].clone()


def copy_to_another_layout():
    return torch.randn(8, 8).t().contiguous().sum()


def begin_momentum():
    """SGD clones the first gradient: its own code, and its own matter."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def cast_on_purpose():
    model = make_model().bfloat16()
    logits = model(torch.randn(8, 64).bfloat16()).float()
    return (logits - logits.mean()).square().sum()


def add_up_in_float64():
    total = torch.zeros(10, dtype=torch.float64)
    for _ in range(3):
        total += torch.randn(10)
    return total


def gradients_for_the_next_cell():
    model = make_model()
    model(torch.randn(8, 64)).sum().backward()
    return model


def tune_a_part():
    body, head = make_model(), nn.Linear(10, 2)
    body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(head.parameters())
    head(body(torch.randn(8, 64))).sum().backward()
    optimizer.step()
    return body, head


def clip():
    body, head = make_model(), nn.Linear(10, 2)
    optimizer = torch.optim.AdamW(head.parameters())
    head(body(torch.randn(8, 64))).sum().backward()
    nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    optimizer.step()
    return body, head


RIGHT = (
    *(keep_one_loss, add_up_losses, stack_losses, compare_three, recur),
    *(keep_losses_after_backward, keep_outputs_of_training, copy_before_a_write),
    *(copy_to_keep, copy_a_part_and_free_the_rest, copy_to_another_layout),
    *(begin_momentum, cast_on_purpose, add_up_in_float64, clip),
    *(gradients_for_the_next_cell, tune_a_part),
)


@pytest.mark.parametrize("run", RIGHT, ids=lambda run: run.__name__)
def test_no_advice_on_what_is_right(run):
    with record(as_device="cpu") as trace:
        kept = run()
    del kept
    assert find_advice(trace) == ()


@pytest.mark.parametrize(
    "fail",
    [
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: torch.ones(2).clone(memory_format=torch.channels_last),
        lambda: torch.ones(2).softmax(5),
        lambda: torch.zeros(-1),
    ],
)
def test_no_advice_on_what_failed_at_once(fail):
    with pytest.raises((RuntimeError, IndexError)), record() as trace:
        fail()
    assert find_advice(trace) == ()


# What a program wastes is found where it was planted, with the bytes of its mending


NBYTES = 4 * BATCH * WIDTH
"""Of a batch in float32."""


def advise(run, *args, as_device="cpu", **kwargs):
    """Return the recording of a program, and all advice on it."""
    with record(as_device=as_device) as trace:
        kept = run(*args, **kwargs)
    del kept
    return trace, trace.advice


def compare(run, wasteful, mended, choice=None, **kwargs):
    """Return the one advice on a program, and how much lower the mended peak is.

    By a choice it is proven: the block with it is recorded again.
    """
    trace, (advice,) = advise(run, wasteful, **kwargs)
    other, none = advise(run, mended, **kwargs)
    assert none == ()
    before, after = trace.memory.peak_nbytes, other.memory.peak_nbytes
    if choice is not None:
        assert (advice.proof.choice, advice.unproven) == (choice, None)
        assert advice.proof.before_nbytes == before
        assert advice.proof.after_nbytes == after
        assert advice.proof.saved_nbytes == before - after > 0
    return advice, before - after


def line_after(run, n_lines):
    """Return the line so many lines after the first one of a function."""
    return run.__code__.co_firstlineno + n_lines


def attend(dtype):
    q = torch.ones(2, 4, 256, 32, dtype=dtype, device="cuda")
    return F.scaled_dot_product_attention(q, q, q)


def test_attention_that_falls_to_math():
    advice, _ = compare(attend, torch.float64, torch.bfloat16, as_device="cuda")
    assert advice.kind == "attention"
    assert "torch.float64 has no fused kernel" in advice.text
    # Scores before and after the softmax, a float64 for each pair of tokens; both are
    # alive while the second is made.
    scores = 2 * 4 * 256 * 256 * 8
    assert advice.nbytes == 2 * scores
    assert scores <= advice.peak_nbytes <= 2 * scores


def test_attention_of_few_tokens_may_be_math():
    q = torch.ones(2, 4, 4, 32, dtype=torch.float64)
    assert advise(F.scaled_dot_product_attention, q, q, q, as_device="cuda")[1] == ()


def test_temporaries_of_an_optimizer_that_takes_all_at_once():
    advice, saved = compare(
        train,
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        "fused",
    )
    assert (advice.kind, advice.choice) == ("foreach", "fused")
    assert advice.peak_nbytes == saved


def collect(keep):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
    losses = []
    for _ in range(6):
        loss = model(torch.ones(BATCH, WIDTH)).square().mean()
        losses.append(keep(loss))
    return losses


def test_a_list_that_keeps_graphs():
    advice, saved = compare(collect, lambda loss: loss, torch.Tensor.detach)
    assert (advice.kind, advice.proof.choice) == ("leak", ".detach()")
    assert advice.proof.saved_nbytes >= saved  # no graph is left of the last step
    assert advice.lines == (line_after(collect, 4),)
    # Of each step but the last: what the layers read, and what is squared.
    assert advice.nbytes == 5 * (2 * NBYTES + 4 * BATCH * 8)
    assert advice.peak_nbytes == saved


class Scaled(nn.Module):
    def __init__(self, dtype=torch.float32, *, is_copying=False):
        super().__init__()
        self.linear, self.dtype = nn.Linear(WIDTH, WIDTH), dtype
        self.is_copying = is_copying

    def forward(self, x):
        if self.is_copying:
            x = x.clone()
        y = self.linear(x)
        scale = torch.full((WIDTH,), 2.0, dtype=self.dtype)
        return (y * scale).exp().sum()


def scale(dtype):
    Scaled(dtype)(torch.ones(BATCH, WIDTH)).backward()


def test_float64_among_float32():
    advice, saved = compare(scale, torch.float64, torch.float32)
    assert advice.kind == "dtype"
    assert advice.lines == (line_after(Scaled.forward, 5),)
    # Scale, product, its exponential, and the gradients of the two: 4 bytes more for a
    # number; and the sum, and its gradient.
    assert advice.nbytes == 4 * (WIDTH + 4 * BATCH * WIDTH + 2)
    assert advice.peak_nbytes == saved


def test_float32_among_bfloat16():
    choice = "dtype=bfloat16"
    advice, saved = compare(add_noise, torch.float32, torch.bfloat16, choice)
    assert advice.kind == "dtype"
    assert "bfloat16 is combined with float32" in advice.text
    # Noise, sum and exponential, 2 bytes more for a number.
    assert advice.nbytes == 3 * 2 * BATCH * WIDTH
    assert advice.peak_nbytes == saved


def copy(is_copying):
    Scaled(is_copying=is_copying)(torch.ones(BATCH, WIDTH))


def test_a_copy_that_changes_nothing():
    advice, saved = compare(copy, True, False, "no copy")
    assert advice.kind == "copy"
    assert advice.lines == (line_after(Scaled.forward, 2),)
    assert advice.nbytes == advice.peak_nbytes == saved == NBYTES


def test_gradients_that_nobody_reads():
    advice, saved = compare(train_head, False, True, "requires_grad_(False)")
    assert advice.kind == "gradient"
    flops = [advise(train_head, frozen)[0].cost.flops for frozen in (False, True)]
    assert advice.flops == flops[0] - flops[1] > 0
    assert advice.peak_nbytes == saved
    # Of weights and biases; those of the second step are added to the first ones.
    assert advice.nbytes == 3 * 4 * (WIDTH * WIDTH + WIDTH)


class Partial(nn.Module):
    def __init__(self, *, has_more):
        super().__init__()
        self.used = nn.Linear(WIDTH, WIDTH)
        if has_more:
            self.unused = nn.Linear(WIDTH, 32)

    def forward(self, x):
        return self.used(x).sum()


def train_partial(has_more):
    model = Partial(has_more=has_more)
    model(torch.ones(1, WIDTH)).backward()
    return model


def test_parameters_that_no_forward_reads():
    advice, saved = compare(train_partial, True, False, "none of them")
    assert advice.kind == "no gradient"
    assert "unused.weight and " in advice.text
    assert advice.lines == (line_after(Partial.__init__, 4),)
    assert advice.nbytes == advice.peak_nbytes == saved == 4 * 32 * (WIDTH + 1)


def train_cut_off(is_cut_off):
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    model = nn.Sequential(first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = first(torch.ones(1, WIDTH))
    second(y.detach() if is_cut_off else y).sum().backward()
    optimizer.step()
    return model


def test_parameters_that_no_gradient_reaches():
    advice, _ = compare(train_cut_off, True, False)
    assert advice.kind == "no gradient"
    assert "0.weight and kept.0.bias are used, and no gradient" in advice.text


class Tied(nn.Module):
    def __init__(self, *, has_head):
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        if has_head:
            self.head = nn.Linear(WIDTH, 1000, bias=False)
            self.head.weight = self.embed.weight


def tie(has_head):
    return Tied(has_head=has_head)


def test_a_weight_that_is_filled_and_thrown_away():
    advice, saved = compare(tie, True, False, "no weight of its own")
    assert advice.kind == "tying"
    assert advice.lines == (line_after(Tied.__init__, 4),)
    assert advice.nbytes == advice.peak_nbytes == saved == 4 * 1000 * WIDTH


def train_blocks(width=1024, batch=1 << 14):
    model = nn.Sequential(nn.Sequential(*(Block(width) for _ in range(8))), nn.Tanh())
    model(torch.ones(batch, width)).sum().backward()


def test_activations_that_could_be_computed_again():
    _, (advice,) = advise(train_blocks)
    assert (advice.kind, advice.proof.choice) == ("activations", "checkpointing")
    assert advice.proof.saved_nbytes == advice.peak_nbytes > 2**30
    # Each block saves what relu makes, for itself and for the layer after it.
    assert advice.nbytes == 8 * 4 * 4 * 1024 * (1 << 14)
    assert advice.flops == -8 * 2 * 2 * 4 * 1024 * 1024 * (1 << 14)


def test_advice_is_a_line_of_text():
    _, (advice,) = advise(tie, has_head=True)
    assert str(advice) == (
        "tying: 250.0 KiB are filled and then thrown away, as head.weight is tied to "
        "another parameter: call a function with that parameter, such as F.linear, "
        f"instead of a module with its own (line {line_after(Tied.__init__, 4)})"
    )
