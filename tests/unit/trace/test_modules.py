"""What a module tree says of its containers."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.trace.summary import format_headline


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)


class Tower(nn.Sequential):
    pass


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)


def kind_of(module):
    with record() as trace:
        root = module()
    assert root is not None
    return trace.modules[0].kind


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (lambda: nn.ModuleList(Block() for _ in range(64)), "64 x Block"),
        (lambda: nn.ModuleDict({"q": Block(), "k": Block()}), "2 x Block"),
        (
            lambda: nn.Sequential(Block(), Block(), nn.LayerNorm(2)),
            "2 x Block, LayerNorm",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), "2 x Linear"),
        (lambda: nn.ParameterList([torch.ones(2)] * 3), "3 x Parameter"),
        (nn.ParameterList, "ParameterList"),
    ],
)
def test_a_container_says_what_it_holds(module, kind):
    assert kind_of(module) == kind


def test_a_container_of_many_kinds_names_the_first_and_counts_the_others():
    layers = [layer for _ in range(20) for layer in (nn.Linear, nn.Identity)]
    kind = kind_of(lambda: nn.Sequential(*(layer(2, 2) for layer in layers)))
    assert kind == "Linear, Identity, Linear, … 37 more"


def test_a_container_with_a_class_of_its_own_keeps_it():
    assert kind_of(lambda: Tower(Block(), Block())) == "Tower of 2 x Block"


@pytest.mark.parametrize("module", [Pair, nn.ReLU, nn.Sequential])
def test_all_else_is_named_by_its_class(module):
    with record() as trace:
        root = module()
        root.register_buffer("kept", torch.ones(2))
    assert trace.modules[0].kind == module.__name__


def test_the_text_names_the_layers_of_a_list():
    with record() as trace:
        model = Block()
        model.layers = nn.ModuleList(Block() for _ in range(3))
    assert model is not None
    assert "layers: 3 x Block" in str(trace)
    assert "ModuleList" not in str(trace)


def test_a_part_of_two_models_is_counted_once():
    with record() as trace:
        shared, first, second = (nn.Linear(10, n) for n in (10, 5, 5))
        second.weight = first.weight
        models = [nn.Sequential(shared, nn.Linear(10, n)) for n in (2, 3)]
    roots = first, second, *models
    distinct = {id(p): p.numel() for root in roots for p in root.parameters()}
    n_elements = sum(distinct.values())
    assert len(trace.modules) == len(roots)
    parts = format_headline(trace).split(" · ")
    assert parts[0] == f"{n_elements} parameters, {4 * n_elements} bytes"
