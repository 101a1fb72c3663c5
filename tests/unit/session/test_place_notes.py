"""What a cell is told of the devices that it names."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import materialize, record


def notes_on(run, kind, **options):
    with record(**options) as trace:
        run()
    return [note.text for note in trace.notes if note.kind == kind]


def on_cuda(*shape):
    return torch.ones(*shape, device="cuda")


FAILS = {
    "add": lambda: on_cuda(3) + torch.ones(3),
    "matmul": lambda: torch.ones(2, 3) @ on_cuda(3, 2),
    "a layer that was not moved": lambda: nn.Linear(3, 2)(on_cuda(4, 3)),
    "an input that was not moved": lambda: nn.Linear(3, 2).cuda()(torch.ones(4, 3)),
    "a loss": lambda: functional.cross_entropy(
        on_cuda(4, 3), torch.zeros(4, dtype=torch.long)
    ),
    "an embedding": lambda: nn.Embedding(5, 3).cuda()(torch.zeros(4, dtype=torch.long)),
    "cat": lambda: torch.cat([on_cuda(3), torch.zeros(3)]),
    "where": lambda: torch.where(torch.ones(3) > 0, on_cuda(3), on_cuda(3)),
    "in place": lambda: on_cuda(3).add_(torch.ones(3)),
    "index_select": lambda: on_cuda(3).index_select(0, torch.zeros(2).long()),
}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", FAILS)
def test_what_would_fail_for_real_is_noted(name, cache):
    notes_on(FAILS[name], "fails")  # so that the next one may find it known
    (text,) = notes_on(FAILS[name], "fails", cache=cache)
    assert "took a tensor that no device was named for, with one on cuda:0" in text
    assert text.endswith("for real it would lie on the CPU, and this would fail")


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
    "a copy": lambda: on_cuda(3).copy_(torch.ones(3)),
    "a move": lambda: on_cuda(3) + torch.ones(3).cuda(),
    "an item": lambda: on_cuda(3).__setitem__(0, torch.tensor(1.0)),
    "what is written by index": lambda: on_cuda(3).__setitem__(
        torch.tensor([0]), torch.tensor(1.0)
    ),
    "like": lambda: on_cuda(3) + torch.zeros_like(on_cuda(3)),
    "new": lambda: on_cuda(3) + on_cuda(3).new_zeros(3),
    "the CPU": lambda: torch.ones(3, device="cpu") + torch.ones(3),
    "nothing named": lambda: torch.ones(3) + torch.ones(3),
    "training": train,
}


@pytest.mark.parametrize("name", WORKS)
def test_what_would_work_for_real_is_not_noted(name):
    assert notes_on(WORKS[name], "fails") == []


def test_a_note_says_the_line():
    with record() as trace:
        weights = torch.ones(3)
        for _ in range(3):
            on_cuda(3) + weights
            on_cuda(3) * weights
    first = test_a_note_says_the_line.__code__.co_firstlineno
    lines = [note.line for note in trace.notes if note.kind == "fails"]
    assert lines == [first + 4, first + 5]


def test_what_backward_itself_makes_is_not_noted():
    def run():
        x = on_cuda(4, 3).requires_grad_()
        x[:, 1].unfold(0, 2, 1).prod().backward()
        (x.grad * on_cuda(3)).sum()

    assert notes_on(run, "fails") == []


TOLD = """
import torch

def add(x):
    return x + torch.ones(3).to(x.device)

def count(x):
    return torch.arange(3, device=x.device)
"""


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


def test_values_that_do_not_are_not_noted():
    def run():
        torch.randn(3, device="cuda")
        torch.ones(3, device="cuda").sum().item()

    assert notes_on(run, "drawn") == []


def test_values_in_a_file_that_rest_on_it_are_noted(tmp_path):
    def run():
        torch.save(torch.randn(3, device="cuda"), tmp_path / "x.pt")

    assert len(notes_on(run, "drawn")) == 1


def test_where_no_value_is_asked_for_nothing_is_said_of_generators():
    assert notes_on(lambda: torch.randn(3, device="cuda"), "drawn") == []


def test_what_the_cpu_drew_and_was_moved_is_right_and_not_noted():
    assert notes_on(lambda: torch.randn(3).cuda().sum().item(), "drawn") == []
