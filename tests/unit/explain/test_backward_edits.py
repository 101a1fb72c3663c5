"""What mends a backward pass, or what autograd refuses."""

import pytest

from meta_magic.explain.backward_errors import (
    BrokenGraph,
    edit_refusals,
    list_backward_edits,
)
from meta_magic.explain.edits.program_text import Program
from tests.unit.explain.made_situations import make_situation, write_edits


@pytest.mark.parametrize(
    ("text", "kind", "written"),
    [
        ("y = x.detach()", "cut", "y = x"),
        ("y = x.data * 2", "cut", "y = x * 2"),
        ("with torch.no_grad(): pass", "cut", "with torch.enable_grad(): pass"),
        ("loss.backward()", "freed", "loss.backward(retain_graph=True)"),
        ("out, h = rnn(x, h)", "freed", "out, h = rnn(x, h.detach())"),
        ("x += 1", "written", "x = x + 1"),
        ("x.relu_()", "written", "x = x.relu()"),
        ("x[0] = 1", "written", "x = x.clone(); x[0] = 1"),
        ("f = nn.ReLU(inplace=True)", "written", "f = nn.ReLU(inplace=False)"),
    ],
)
def test_a_graph_is_mended(text, kind, written):
    edits = list_backward_edits(Program(text), BrokenGraph("", kind, 1))
    assert written in write_edits(make_situation(text), edits)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a = x.numpy()", "a = x.detach().numpy()"),
        ("w -= 0.1 * w.grad", "with torch.no_grad(): w -= 0.1 * w.grad"),
        ("w[0] = 1", "with torch.no_grad(): w[0] = 1"),
        ("w.mul_(2)", "w.data.mul_(2)"),
        ("loss.backward()", "loss.mean().backward()"),
        ("nn.Parameter(x)", "nn.Parameter(x, requires_grad=False)"),
    ],
)
def test_what_autograd_refuses_is_done_without_it(text, written):
    error = "RuntimeError: a leaf Variable that requires grad is being used"
    made = make_situation(text, error=error)
    assert written in write_edits(made, edit_refusals(made))


def test_without_autograd_nothing_is_changed_for_it():
    made = make_situation("a = x.numpy()", error="TypeError: can't convert")
    assert [*edit_refusals(made)] == []
