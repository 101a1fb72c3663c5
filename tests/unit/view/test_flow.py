"""The flow shows the calls of each ``forward``, and no wire crosses a label."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meta_magic import record
from meta_magic.view.payload import pack
from tests.browser.gallery import open_shell, record_cells
from tests.browser.gallery_models import CELLS
from tests.run_node import run_node


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(x + self.norm(self.conv(x)))


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x @ self.weight)
        return -x[None]


@pytest.fixture
def list_steps(tmp_path):
    """Return the steps of a phase, as pairs of a box's name and its steps, or names."""

    def list_all(trace, phase="forward"):
        path = tmp_path / "trace.gz"
        path.write_bytes(pack(trace))
        return run_node("steps.mjs", path, phase)

    return list_all


def name_of(step):
    return step if isinstance(step, str) else step[0]


SEQUENCES = {
    "attention": (
        Attention,
        (2, 3, 8),
        [
            *("qkv: Linear", "chunk, unflatten, transpose"),
            *("scaled_dot_product_attention", "transpose, flatten"),
            *("out: Linear", "add"),
        ],
    ),
    "residual": (
        Residual,
        (1, 4, 8, 8),
        ["conv: Conv2d", "norm: BatchNorm2d", "add", "relu"],
    ),
    "repeated": (Repeated, (2, 4), ["matmul", "tanh"] * 3 + ["getitem", "neg"]),
}


@pytest.mark.parametrize("has_grad", [True, False])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_module_shows_the_calls_of_its_forward(name, has_grad, list_steps):
    make, shape, expected = SEQUENCES[name]
    with record() as trace, torch.set_grad_enabled(has_grad):
        model = make()
        model(torch.zeros(shape))
    (_, steps), *_ = [step for step in list_steps(trace) if not isinstance(step, str)]
    assert [*map(name_of, steps)] == expected


def test_a_training_step_shows_what_autograd_calls_as_operators(list_steps):
    model = nn.Linear(4, 2, device="meta")
    with record() as trace:
        model(torch.zeros(3, 4)).sum().backward()
    assert [*map(name_of, list_steps(trace))] == [
        *("input", "model: Linear", "sum", "backward")
    ]
    steps = list_steps(trace, "backward")
    assert "linear" not in json.dumps(steps)
    assert "mm" in json.dumps(steps)


def test_what_a_model_is_given_has_the_names_of_its_forward(list_steps):
    class Model(nn.Module):
        def forward(self, tokens, mask, *, sizes=None):
            return tokens * mask + sizes[1] + tokens

    model = Model()
    with record() as trace:
        one, two, three = torch.zeros(2), torch.ones(2), torch.rand(2)
        model(one, two, sizes=[three, three])
    names = [*map(name_of, list_steps(trace))]
    assert names[:3] == ["tokens", "mask", "sizes.0, sizes.1"]


def test_the_function_that_failed_is_the_last_step(list_steps):
    model = nn.Linear(4, 2, device="meta")
    with pytest.raises(RuntimeError), record() as trace:
        F.cross_entropy(model(torch.zeros(3, 4)), torch.zeros(3))
    *_, (name, operators) = list_steps(trace)
    assert (name, operators[0]) == ("cross_entropy", "_log_softmax")


LEVELS = "2"


@pytest.fixture(scope="module")
def traces():
    with open_shell() as shell:
        return record_cells(shell, CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_no_wire_runs_through_a_label_or_a_box(traces, tmp_path, name):
    path = tmp_path / "payload"
    path.write_bytes(pack(traces[name]))
    pictures = run_node("crossings.mjs", path, LEVELS)
    assert len(pictures) >= 8  # two directions, two kinds of steps, two levels
    assert {key: found for key, found in pictures.items() if found["crossings"]} == {}
