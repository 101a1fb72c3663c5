"""A block with a change has the peak of one that was written as advised."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from meta_magic import record

WIDTH, BATCH = 64, 512


def run_kept(run, **kwargs):
    kept = run(**kwargs)
    del kept


def prove(run, wasteful, mended, as_device="cpu"):
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
    advice = prove(copy, {"is_copied": True}, {"is_copied": False})
    assert (advice.kind, advice.proof.choice) == ("copy", "no copy")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def add_noise(dtype):
    y = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)(
        torch.ones(BATCH, WIDTH, dtype=torch.bfloat16)
    )
    noise = torch.randn(BATCH, WIDTH, dtype=dtype)
    return (y + noise).exp().to(torch.bfloat16)


def test_a_narrower_dtype():
    wide, narrow = torch.float32, torch.bfloat16
    advice = prove(add_noise, {"dtype": wide}, {"dtype": narrow})
    assert (advice.kind, advice.proof.choice) == ("dtype", "dtype=bfloat16")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def test_a_dtype_that_is_torchs_default():
    def add(**options):
        x = torch.ones(BATCH, WIDTH, dtype=torch.bfloat16)
        return torch.ones(BATCH, 1, **options) * x.exp()

    prove(add, {}, {"dtype": torch.bfloat16})


def collect(keep):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
    losses = []
    for _ in range(6):
        loss = model(torch.ones(BATCH, WIDTH)).square().mean()
        losses.append(keep(loss))
    return losses


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


def train_head(is_frozen):
    body = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    head = nn.Linear(WIDTH, 10)
    body.requires_grad_(not is_frozen)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        head(body(torch.ones(BATCH, WIDTH))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return body


def test_no_gradients_of_what_nobody_steps():
    advice = prove(train_head, {"is_frozen": False}, {"is_frozen": True})
    assert (advice.kind, advice.choice) == ("gradient", "requires_grad_(False)")
    assert advice.proof.saved_nbytes == advice.peak_nbytes


def attend(dropout_p=0.0):
    q = torch.ones(2, 4, 256, 32)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p)


def test_attention_without_dropout():
    advice = prove(attend, {"dropout_p": 0.1}, {})
    assert (advice.kind, advice.choice) == ("attention", "dropout_p=0")


def attend_in_layer(dropout):
    layer = nn.MultiheadAttention(WIDTH, 4, dropout=dropout, batch_first=True)
    return layer(*[torch.ones(2, 256, WIDTH)] * 3, need_weights=False)


def test_a_layer_of_attention_without_dropout():
    advice = prove(attend_in_layer, {"dropout": 0.1}, {"dropout": 0.0})
    assert (advice.kind, advice.choice) == ("attention", "dropout_p=0")


def attend_by(kernels):
    with sdpa_kernel(kernels):
        return attend()


def test_attention_with_its_kernels_switched_on():
    math, fused = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
    advice = prove(attend_by, {"kernels": [math]}, {"kernels": [fused]})
    assert (advice.kind, advice.choice) == ("attention", "all kernels")


def attend_apart(is_copied):
    tensors = [torch.ones(2, 4, 32, 256).transpose(-1, -2) for _ in range(3)]
    if is_copied:
        q, k, v = (tensor.contiguous() for tensor in tensors)
        return F.scaled_dot_product_attention(q, k, v)
    return F.scaled_dot_product_attention(*tensors)


def test_attention_of_heads_that_are_contiguous():
    advice = prove(attend_apart, {"is_copied": False}, {"is_copied": True})
    assert (advice.kind, advice.choice) == ("attention", ".contiguous()")


class Tied(nn.Module):
    def __init__(self, *, has_head):
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        if has_head:
            self.head = nn.Linear(WIDTH, 1000)
            self.head.weight = self.embed.weight


def test_no_weight_of_what_is_tied():
    with record() as trace:
        _kept = Tied(has_head=True)
    with record() as written:
        embed = nn.Embedding(1000, WIDTH)
        _kept = embed, nn.Parameter(torch.empty(1000))
    (advice,) = trace.advice
    assert (advice.kind, advice.proof.choice) == ("tying", "no weight of its own")
    assert advice.proof.after_nbytes == written.memory.peak_nbytes
    assert advice.proof.saved_nbytes == advice.peak_nbytes == 4 * 1000 * WIDTH


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
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, WIDTH)).backward()
    optimizer.step()
    return model


def test_no_parameters_that_no_forward_reads():
    advice = prove(train_partial, {"has_more": True}, {"has_more": False})
    assert (advice.kind, advice.proof.choice) == ("no gradient", "none of them")
    assert advice.proof.saved_nbytes == advice.peak_nbytes
