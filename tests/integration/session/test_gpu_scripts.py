"""Training scripts for a GPU, as people write them, on a machine without one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils import data

from meta_magic import record
from meta_magic.torch_private.snapshot import has_gpu

pytestmark = pytest.mark.skipif(has_gpu(), reason="they would train on the GPU")


def classify(folder):
    """Train a classifier as torch's first tutorial does; return its losses."""
    is_there = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator().type if is_there else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    model = model.to(device)
    pairs = data.TensorDataset(torch.randn(16, 4, 4), torch.randint(0, 4, (16,)))
    loader = data.DataLoader(pairs, batch_size=8, pin_memory=is_there)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.save(model.state_dict(), folder / "model.pt")
    model.load_state_dict(torch.load(folder / "model.pt", map_location=device))
    return losses


def remember(folder):
    """Train a packed LSTM in the style of 2017; return its losses."""
    del folder
    use_cuda = torch.cuda.is_available()
    kind = torch.cuda.FloatTensor if use_cuda else torch.FloatTensor
    torch.manual_seed(1)
    layers = [nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 20)]
    model = nn.ModuleList(layers)
    if use_cuda:
        torch.cuda.manual_seed_all(1)
        model.cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        words, lengths = torch.LongTensor([[1, 2, 3], [5, 6, 0]]), [3, 2]
        words = words.cuda() if use_cuda else words
        hidden = (torch.zeros(1, 2, 16).type(kind), torch.zeros(1, 2, 16).type(kind))
        packed = rnn.pack_padded_sequence(model[0](words), lengths, batch_first=True)
        out, _ = rnn.pad_packed_sequence(model[1](packed, hidden)[0], batch_first=True)
        scores = F.log_softmax(model[2](out).view(-1, 20), 1)
        loss = F.nll_loss(scores, words.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        losses.append(loss.data)
    return torch.FloatTensor(losses).tolist()


def attend(folder):
    """Train attention in half precision with a scaler; return its losses."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.DataParallel(layer).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    x = torch.randn(2, 6, 16)
    x = (x.pin_memory() if device == "cuda" else x).to(device, non_blocking=True)
    losses = []
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(x).pow(2).mean() * 100
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, folder)
    return losses


SCRIPTS = {"classify": classify, "remember": remember}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_the_losses_of_the_cpu(name, device, tmp_path):
    wanted = SCRIPTS[name](tmp_path)
    with record(as_device=device) as trace:
        losses = SCRIPTS[name](tmp_path)
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert trace.nbytes_real < 1024


def test_a_script_in_half_precision_comes_near_the_losses_of_the_cpu(tmp_path):
    wanted = attend(tmp_path / "real.pt")
    with record(as_device="cuda:2") as trace:
        losses = attend(tmp_path / "model.pt")
    assert losses == pytest.approx(wanted, rel=0.01)
    assert any("attention_backward" in call.op for call in trace.ops)
