"""Texts of tensors on meta: the CPU's values, and the place that the code named."""

import re
from collections import namedtuple

import pandas as pd
import pytest
import torch
from torch import nn

from meta_magic import ValueLimits, record

Pair = namedtuple("Pair", "a b")  # noqa: PYI024  as notebooks have it


class Marked(torch.Tensor):
    """A subclass that does nothing else."""


def in_a_hook(register):
    def write():
        texts = []
        layer = nn.Linear(2, 3)
        y = layer(torch.ones(4, 2, requires_grad=True))
        register(layer, y, lambda *given: texts.append(f"{given[-1]} {[*given[1:]]}"))
        y.register_hook(lambda grad: texts.append(f"{grad.norm():.3f} {grad[0, 0]}"))
        layer(y[:, :2]).sum().backward()
        return " ".join(texts)

    return write


def in_vmap():
    texts = []
    torch.vmap(lambda x: (texts.append(str(x)), x)[1])(torch.randn(2, 3))
    return texts[0]


WRITTEN = {
    "print": lambda: str(torch.randn(3)),
    "repr": lambda: repr(torch.randn(3, 2)),
    "an f-string": lambda: f"{torch.randn(2, 3)} and {torch.arange(3)!r:>3}",
    "format": lambda: " {:>20} ".join("ab").format(torch.randn(())),
    "per cent": lambda: "%s %r" % (torch.randn(2), torch.arange(2)),  # noqa: UP031
    "a list": lambda: str([torch.randn(2), torch.ones(2, dtype=torch.int32)]),
    "a dict": lambda: f"{ {'a': torch.randn(2)} }",
    "a named tuple": lambda: str(Pair(torch.randn(2), torch.ones(1) > 0)),
    "a parameter": lambda: str(nn.Parameter(torch.randn(2, 3))),
    "a formatted parameter": lambda: f"{nn.Parameter(torch.tensor(3.0))}",
    "parameters": lambda: str(list(nn.Linear(2, 2).named_parameters())),
    "a state dict": lambda: f"{nn.Linear(2, 2).state_dict()}",
    "a subclass": lambda: f"{torch.randn(2, 3).as_subclass(Marked)}",
    "a table": lambda: pd.DataFrame({"a": [torch.ones(()), torch.ones(2)]}).to_string(),
    "a hook of a module": in_a_hook(lambda m, _, f: m.register_forward_hook(f)),
    "a hook of a tensor": in_a_hook(lambda _, y, f: y.register_hook(f)),
    "a hook of gradients": in_a_hook(lambda m, _, f: m.register_full_backward_hook(f)),
    "a hook of a parameter": in_a_hook(
        lambda m, _, f: m.weight.register_post_accumulate_grad_hook(f)
    ),
    "within vmap": in_vmap,
    "nothing": lambda: f"{torch.ones(0, 3)} {torch.ones(0)}",
    "a function of gradients": lambda: str(torch.ones(2, requires_grad=True) * 2),
    "long lines": lambda: str(nn.Linear(5, 20)(torch.ones(5)).exp()),
    "halves": lambda: str(torch.ones(2).half()),
}


METADATA = re.compile(r",\s+(device='meta'|size=\([\d, ]*\)|dtype=torch\.\w+)")
"""What torch says after the values of a tensor on meta."""


def values_in(text):
    """Return a text without metadata, and without what its length breaks or widens."""
    return re.sub(r"\s+", " ", METADATA.sub("", text)).replace("tensor([])", "[]")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_text_has_the_values_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = WRITTEN[name]()
    with record():
        torch.manual_seed(0)
        met = WRITTEN[name]()
    assert "..." not in met
    assert values_in(met) == values_in(wanted)


PLACED = {
    "values": lambda: torch.ones(3, device="cpu"),
    "whole numbers": lambda: torch.arange(30, device="cpu"),
    "another dtype": lambda: torch.ones(2, dtype=torch.int32, device="cpu"),
    "nothing": lambda: torch.ones(0, 2, device="cpu"),
    "a parameter": lambda: nn.Parameter(torch.ones(2, 3, device="cpu")),
    "a gradient": lambda: nn.Parameter(torch.ones(2, 13, device="cpu")).exp() * 2,
    "a subclass": lambda: torch.ones(2, 2, device="cpu").as_subclass(Marked),
    "moved": lambda: torch.eye(2).to("cpu").half(),
    "complex": lambda: torch.ones(2, dtype=torch.complex64, device="cpu").conj(),
}


@pytest.mark.parametrize("name", PLACED)
def test_the_text_of_what_lies_on_the_cpu_by_name_is_the_cpus(name):
    wanted = str(PLACED[name]())
    with record():
        assert str(PLACED[name]()) == wanted


def write_all(device=None):
    halves = torch.full((2, 2), 0.5, device=device)
    return f"{halves} {torch.arange(3, device=device)}"


def test_the_text_of_what_lies_nowhere_by_name_has_values_and_metadata():
    # The values are those of ``write_all()`` on the CPU.
    first, second = write_all().replace(") t", "|t").removesuffix(")").split("|")
    with record():
        met = write_all()
    assert met == (
        f"{first}, device='meta', size=(2, 2)) "
        f"{second}, device='meta', size=(3,), dtype=torch.int64)"
    )


def test_the_text_of_what_lies_on_an_accelerator_names_it():
    first, second = write_all().replace(") t", "|t").removesuffix(")").split("|")
    with record():
        met = write_all("cuda:1")
    assert met == f"{first}, device='cuda:1') {second}, device='cuda:1')"


def test_values_beyond_the_limits_are_not_computed_for_a_text():
    with record(limits=ValueLimits(nbytes=64, flops=64)) as trace:
        x = torch.zeros(99)
        near, far = x.to("cpu"), x.to("cuda")
        texts = str(near[1:]), f"{far.int()}"
    assert texts == (
        "tensor(..., size=(98,))",
        "tensor(..., device='cuda:0', size=(99,), dtype=torch.int32)",
    )
    assert not trace.notes


def test_what_is_printed_leaves_no_trace():
    with record() as trace:
        x = torch.ones(3)
        f"{x} {[x]} {nn.Parameter(x)}"
    assert [call.op for call in trace.ops] == ["aten.ones.default"]
    assert not trace.notes


READERS = {"numpy": torch.Tensor.numpy, "array": torch.Tensor.__array__}


@pytest.mark.parametrize("name", READERS)
def test_numpy_takes_no_tensor_of_an_accelerator(name):
    # Torch's words for a device that is none of numpy's.
    with pytest.raises(TypeError) as wanted:
        READERS[name](torch.ones(2, device="meta"))
    with record(), pytest.raises(TypeError) as met:
        READERS[name](torch.ones(2, device="cuda:1"))
    assert str(met.value) == str(wanted.value).replace("meta", "cuda:1")
