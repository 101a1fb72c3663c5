"""Which elements a call reads, worked out by hand; torch's samples are a sweep.

``python -m tests.conformance.pictures`` compares the browser's reading with torch.
"""

import json
import random
import shutil
import subprocess
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import record
from meta_magic.view.payload import build_payload
from meta_magic.view.pictures import find_picture, find_previous_windows

DUMP = Path(__file__).parents[2] / "js" / "reach_dump.mjs"


def find_last(function):
    """Return the picture of the last operator of a function."""
    with record(as_device="cpu") as trace:
        function()
    signature = trace.program.signatures[trace.columns.signature[-1]]
    return find_picture(signature)


@pytest.mark.parametrize(
    ("function", "kind", "reaches"),
    [
        (lambda: torch.ones(3, 1) + torch.ones(4), "broadcast", [[0, 1], [1]]),
        (lambda: torch.ones(3, 4).T, "memory", ()),
        (lambda: torch.ones(3, 4).sum(0), "reduction", [[-1, 0]]),
        (lambda: torch.ones(3, 4).sum(0, keepdim=True), "reduction", [[-1, 1]]),
        (lambda: torch.ones(3, 4).softmax(0), "line", [[-1, 1]]),
        (lambda: torch.ones(3).cumsum(0), "line", [[["upto", 0]]]),
        (
            lambda: torch.cat([torch.ones(2), torch.ones(3)]),
            "join",
            [[["shift", 0, 0]], [["shift", 0, 2]]],
        ),
        (
            lambda: torch.ones(3, 4)[torch.zeros(2, dtype=torch.long)],
            "pick",
            [[-1, 1], [0]],
        ),
        (
            lambda: functional.max_pool2d(torch.ones(1, 9, 8), (3, 2), (2, 1)),
            "window",
            [[0, ["window", 1, 2, 0, 1, 3], ["window", 2, 1, 0, 1, 2]]],
        ),
    ],
)
def test_a_call_has_the_picture_of_its_family(function, kind, reaches):
    found = find_last(function)
    assert (found.kind, found.reaches) == (kind, reaches)


def test_a_product_has_its_letters():
    found = find_last(lambda: torch.ones(2, 3, 4).bmm(torch.ones(2, 4, 5)))
    assert (found.kind, found.terms) == ("product", "bik,bkj->bij")
    assert found.reaches == [[0, 1, -1], [0, -1, 2]]


def test_what_has_no_rule_has_no_picture():
    assert find_last(lambda: torch.linalg.inv(torch.eye(2))) is None
    assert find_last(lambda: torch.ones(3).exp()) is None
    assert find_last(lambda: torch.ones(3)) is None


def read_all(*functions):
    """Return what the browser reads for the last call of each function."""
    lines = []
    for function in functions:
        with record(as_device="cpu") as trace:
            function()
        lines.append(json.dumps(build_payload(trace)))
    text = "\n".join(lines)
    done = subprocess.run(
        ["node", DUMP], input=text, capture_output=True, text=True, check=True
    )
    return [json.loads(line)[-1] for line in done.stdout.splitlines()]


needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="no Node.js on this machine"
)


@needs_node
@pytest.mark.parametrize(
    ("function", "read"),
    [
        (
            lambda: torch.arange(6).view(2, 3).T,
            [[[[0]], [[3]], [[1]], [[4]], [[2]], [[5]]]],
        ),
        # Of a window of three, one place lies in the padding at each end.
        (
            lambda: functional.avg_pool2d(torch.ones(1, 1, 4), (1, 3), 1, (0, 1)),
            [[[[0, 1]], [[0, 1, 2]], [[1, 2, 3]], [[2, 3]]]],
        ),
        (
            lambda: torch.stack([torch.ones(2), torch.zeros(2)], 1),
            [[[[0], None], [None, [0]], [[1], None], [None, [1]]]],
        ),
        (
            lambda: torch.ones(1, 2) @ torch.ones(2, 2),
            [[[[0, 1], [0, 2]], [[0, 1], [1, 3]]]],
        ),
    ],
)
def test_the_browser_reads_what_is_worked_out_by_hand(function, read):
    (call,) = read_all(function)
    assert call["read"] == read


def make_layer(generator, channels):
    """Return a random convolution or pooling, and the channels that it makes."""
    size, step = generator.choice([1, 2, 3]), generator.choice([1, 1, 2])
    padding, dilation = generator.randint(0, size // 2), generator.choice([1, 2])
    kind = generator.choice(["convolution", "grouped", "max", "average", "residual"])
    if kind == "convolution":
        made = generator.choice([1, 2, 4])
        return nn.Conv2d(channels, made, size, step, padding, dilation), made
    if kind == "grouped":
        layer = nn.Conv2d(
            channels, channels, (size, 1), step, (padding, 0), groups=channels
        )
        return nn.Sequential(layer, nn.ReLU()), channels
    if kind == "max":
        return nn.MaxPool2d(size, step, padding, dilation, ceil_mode=step > 1), channels
    if kind == "average":
        return nn.AvgPool2d(size, step, padding), channels
    return Residual(channels, generator.choice([1, 3])), channels


class Residual(nn.Module):
    """A convolution and what it is given, added up."""

    def __init__(self, channels, size):
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, size, padding=size // 2)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.norm(self.layer(x)).relu() + x


def make_stack(seed):
    """Return random layers after one another, and the shape of an image."""
    generator = random.Random(seed)
    channels = start = generator.choice([1, 2])
    layers = []
    for _ in range(generator.randint(2, 4)):
        layer, channels = make_layer(generator, channels)
        layers.append(layer)
    layers.append(nn.Conv2d(channels, 1, 1))
    return nn.Sequential(*layers).eval(), (start, 11, generator.choice([9, 12]))


@needs_node
def test_an_element_after_many_windows_comes_from_what_torch_says():
    # An element is not a number where one that it comes from is none.
    stacks = [make_stack(seed) for seed in range(30)]
    calls = read_all(*(lambda s=s, z=z: s(torch.ones(1, *z)) for s, z in stacks))
    for (stack, shape), call in zip(stacks, calls, strict=True):
        n = prod(shape)
        images = torch.zeros(n, n).fill_diagonal_(torch.nan).view(n, *shape)
        with torch.no_grad():
            is_read = stack(images).flatten(1).isnan().T
        wanted = [one.nonzero().flatten().tolist() for one in is_read]
        assert [sorted(one) for one in call["first"]] == wanted


def test_a_cell_that_fails_has_the_windows_up_to_there():
    with pytest.raises(RuntimeError), record() as trace:
        x = nn.MaxPool2d(2)(nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8)))
        nn.Conv2d(5, 6, 3)(x)
    calls = {call.index: call.op for call in trace.ops}
    found = find_previous_windows(trace)
    assert [(calls[n], calls[m]) for n, m in found.items()] == [
        ("aten.max_pool2d_with_indices.default", "aten.convolution.default")
    ]
