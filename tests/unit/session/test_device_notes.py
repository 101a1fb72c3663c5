"""Notes on the devices that a cell names: ``cuda``, which is planned, and ``meta``."""

import pytest
import torch
from torch import nn

from meta_magic import materialize, record


def notes_on(run, kind, **options):
    with record(**options) as trace:
        run()
    return [note.text for note in trace.notes if note.kind == kind]


def on_cuda(*shape):
    return torch.ones(*shape, device="cuda")


FAILS = {
    "add": lambda: on_cuda(3) + torch.ones(3),
    "a layer that was not moved": lambda: nn.Linear(3, 2)(on_cuda(4, 3)),
    "an input that was not moved": lambda: nn.Linear(3, 2).cuda()(torch.ones(4, 3)),
    "an embedding": lambda: nn.Embedding(5, 3).cuda()(torch.zeros(4, dtype=torch.long)),
    "where": lambda: torch.where(torch.ones(3) > 0, on_cuda(3), on_cuda(3)),
    "in place": lambda: on_cuda(3).add_(torch.ones(3)),
}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", FAILS)
def test_what_would_fail_for_real_is_noted(name, cache):
    notes_on(FAILS[name], "fails")  # so that the next one may find it known
    (text,) = notes_on(FAILS[name], "fails", cache=cache)
    assert "took a tensor without a named device, and one on cuda:0" in text
    assert text.endswith("in a real run the first is on the CPU, and this fails")


def train():
    model = nn.Sequential(nn.Embedding(5, 3), nn.LSTM(3, 4), Last()).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        out = model(torch.zeros(2, 7, dtype=torch.long).cuda())
        out[0][..., 1:].mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


class Last(nn.Module):
    def forward(self, value):
        return value[0][-1:]


WORKS = {
    "a number": lambda: on_cuda(3) * torch.tensor(2.0),
    "indices": lambda: on_cuda(3)[torch.tensor([0, 2])],
    "a mask": lambda: on_cuda(3)[torch.tensor([True, False, True])],
    "a move": lambda: on_cuda(3) + torch.ones(3).cuda(),
    "an item": lambda: on_cuda(3).__setitem__(0, torch.tensor(1.0)),
    "the CPU": lambda: torch.ones(3, device="cpu") + torch.ones(3),
    "nothing named": lambda: torch.ones(3) + torch.ones(3),
    "training": train,
}


@pytest.mark.parametrize("name", WORKS)
def test_what_would_work_for_real_is_not_noted(name):
    assert notes_on(WORKS[name], "fails") == []


def test_what_a_library_is_told_of_a_placed_tensor_is_named(tmp_path, monkeypatch):
    code = "def add(x): return x + x.new_tensor(0.0).new_zeros(3).to(x.device)\n"
    code += (
        "def count(x):\n    import torch\n    return torch.arange(3, device=x.device)"
    )
    package = tmp_path / "site-packages" / "told.py"
    package.parent.mkdir()
    package.write_text(code)
    monkeypatch.syspath_prepend(package.parent)
    import told

    def run():
        x = on_cuda(3)
        assert str(told.count(x).device) == "cuda:0"
        assert str(told.count(torch.ones(3)).device) == "meta"
        told.add(x) + told.count(x)

    assert notes_on(run, "fails", as_device="cuda") == []


def test_to_empty_stays_on_meta_and_offers_materialize():
    with record() as trace:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to_empty(device="cuda:1")
        assert str(model.weight.device) == "cuda:1"
    assert model.weight.is_meta
    (note,) = trace.notes
    assert note.text.startswith("to_empty planned tensors on cuda:1")
    assert "meta_magic.materialize" in note.text
    report = materialize(model, init="reset")
    assert report.names("reset") == ("weight", "bias")


def test_values_that_rest_on_another_generator_are_noted():
    def run():
        drawn = torch.randn(3, device="cuda")
        kept = torch.zeros(3, device="cuda")
        kept += drawn
        kept.sum().item()

    (text,) = notes_on(run, "drawn")
    assert text.startswith("values rest on random numbers of cuda:0, and are not")


NOT_DRAWN = {
    "values of others": lambda: (on_cuda(3).sum().item(), torch.randn(3).cuda()),
    "no values": lambda: torch.randn(3, device="cuda"),
    "values that the CPU drew": lambda: torch.randn(3).cuda().sum().item(),
}


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_other_values_are_not_noted(name):
    def run():
        torch.randn(3, device="cuda")
        NOT_DRAWN[name]()

    assert notes_on(run, "drawn") == []


def make():
    """Return a layer on meta."""
    with torch.device("meta"):
        return nn.Linear(3, 4)


def make_beside(tensor):
    """Return a layer on the device of a tensor."""
    with torch.device(tensor.device):
        return nn.Linear(3, 4)


def make_within(device):
    """Return a layer on a device."""
    with device:
        return nn.Linear(3, 4)


def load(state):
    """Return a layer that was on meta, given a state dict."""
    layer = make()
    layer.load_state_dict(state, strict=False, assign=True)
    return layer


def fill():
    """Return a layer that was on meta, whose memory was filled."""
    layer = make().to_empty(device="cpu")
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def step():
    """Take a training step on meta."""
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(2, 3, device="meta")).sum().backward()
    optimizer.step()


ON_META = {"device": "meta"}
PROGRAMS = {
    "move a module": lambda: make().to("cpu"),
    "move a tensor": lambda: torch.ones(3, device="meta").cpu(),
    "call it with what lies on the CPU": lambda: make()(torch.ones(2, 3)),
    "read what it returns": lambda: make()(torch.ones(2, 3, **ON_META)).sum().item(),
    "numpy": lambda: torch.ones(3, device="meta").numpy(),
    "branch": lambda: bool(torch.ones(3, device="meta").sum() > 2),
    "copy from it": lambda: torch.ones(3).copy_(torch.ones(3, device="meta")),
    "join": lambda: torch.cat([torch.ones(3), torch.ones(3, device="meta")]),
    "add a number": lambda: torch.ones(3, device="meta") + torch.tensor(2.0),
    "a likeness": lambda: torch.ones_like(make().bias, device="cpu") + torch.ones(4),
    "load a part": lambda: load({"bias": torch.ones(4)}).to("cpu"),
    "load all": lambda: load(nn.Linear(3, 4).state_dict())(torch.ones(2, 3)).sum(),
    "fill": lambda: fill().to("cpu")(torch.ones(2, 3)).sum().item(),
    "skip": lambda: nn.utils.skip_init(nn.Linear, 3, 4)(torch.ones(2, 3)),
    "train": step,
    "beside a tensor": lambda: make_beside(torch.ones(1))(torch.ones(2, 3)).sum(),
    "move what is beside": lambda: make_beside(torch.ones(1)).to("cpu"),
    "beside what is there": lambda: make_beside(make().bias).to("cpu"),
    "within": lambda: make_within(torch.ones(1).device).to("cpu"),
    "within meta": lambda: make_within(torch.device("meta")).to("cpu"),
    "sizes": lambda: torch.broadcast_shapes((3,), (2, 3)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_note_says_that_a_line_fails_where_it_fails_for_real(program):
    try:
        program()
    except (RuntimeError, TypeError):
        does_fail = True
    else:
        does_fail = False
    with record() as trace:
        program()
    assert any(note.kind == "fails" for note in trace.notes) == does_fail


def test_the_note_names_function_line_and_ways_out():
    with record() as trace:
        layer = make()
        layer.to("cpu")
    (note,) = [note for note in trace.notes if note.kind == "fails"]
    code = test_the_note_names_function_line_and_ways_out.__code__
    assert note.line == code.co_firstlineno + 3
    assert note.text.startswith("torch.Tensor.to needs values")
    assert "to_empty" in note.text
    assert "assign=True" in note.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_on_meta_takes_no_memory_until_it_is_put_elsewhere(device):
    with record() as trace:
        with torch.device("meta"):
            layer = nn.Linear(1000, 1000, bias=False)
            layer(torch.ones(10, 1000))
        layer.to_empty(device=device)
    assert trace.memory.peak_nbytes == 4_000_000  # of the weight, once
    assert trace.memory.live_nbytes[0] == 0
