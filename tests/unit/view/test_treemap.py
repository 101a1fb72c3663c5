"""The treemap of parameter bytes: a figure, an SVG and a line of text."""

import json
import re
import subprocess
import sys
from html import unescape

import torch
from torch import nn

import meta_magic as mm
from meta_magic.view.treemap import CLEAR, PLOTLY, treemap_bundle


def bundle_of(build):
    with mm.record() as trace:
        model = build()
    assert model is not None
    return treemap_bundle(trace)


def figure_of(bundle):
    return bundle[PLOTLY]["data"][0]


def areas(bundle):
    """Return the share of each box without children, by what is said of it."""
    found = re.findall(
        r'<div title="([^"]*)" style="flex:(\d+) [^"]*background', bundle["text/html"]
    )
    return {unescape(title): int(nbytes) for title, nbytes in found}


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def values(bundle):
    figure = figure_of(bundle)
    return dict(zip(figure["labels"], figure["values"], strict=True))


def test_without_parameters_there_is_no_chart():
    assert bundle_of(nn.ReLU) is None
    with mm.record() as trace:
        torch.ones(3).relu()
    assert treemap_bundle(trace) is None


def test_areas_are_as_the_bytes():
    bundle = bundle_of(lambda: nn.Sequential(linear(3, 1), linear(1, 1)))
    found = areas(bundle)
    assert found == {"0: Linear — 12 bytes": 12, "1: Linear — 4 bytes": 4}


def test_modules_that_are_alike_are_one_box():
    bundle = bundle_of(lambda: nn.Sequential(*(linear(4, 4) for _ in range(5))))
    assert values(bundle)["0-4: 5 x Linear"] == 5 * 16 * 4
    assert len(areas(bundle)) == 1


def test_what_is_in_a_run_counts_for_all_of_the_run():
    def block():
        return nn.Sequential(linear(2, 3), nn.ReLU(), linear(3, 1))

    bundle = bundle_of(lambda: nn.Sequential(block(), block(), block()))
    found = values(bundle)
    assert found["0-2: 3 x Sequential"] == 3 * (6 + 3) * 4
    assert found["0: 3 x Linear"] == 3 * 6 * 4
    assert found["2: 3 x Linear"] == 3 * 3 * 4


def test_own_parameters_beside_children_have_a_box():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.inner = linear(3, 2)

    bundle = bundle_of(Scaled)
    assert values(bundle)["its own parameters"] == 8
    assert sum(areas(bundle).values()) == 8 + 3 * 2 * 4


def test_ties_are_counted_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = linear(4, 10)
            self.head.weight = self.embed.weight

    bundle = bundle_of(Tied)
    assert "head: Linear" not in values(bundle)
    assert bundle["text/plain"].endswith("Tied — 160 bytes")


def test_the_figure_is_plain_json():
    bundle = bundle_of(lambda: nn.Transformer(16, 2, 2, 2, 32))
    assert set(bundle) == {PLOTLY, "text/html", "text/plain"}
    assert json.loads(json.dumps(bundle)) == bundle
    layout = bundle[PLOTLY]["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == CLEAR


def test_plotly_is_imported_only_for_a_chart():
    code = "import sys, meta_magic.view.treemap; print('plotly' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ran.stdout.split() == [b"False"]


def test_a_part_of_two_models_is_counted_in_the_first():
    with mm.record() as trace:
        part = linear(10, 10)
        first = nn.Sequential(part, linear(10, 1))
        second = nn.Sequential(part, linear(10, 2))
    assert first[0] is second[0]
    bundle = treemap_bundle(trace)
    assert sum(areas(bundle).values()) == 4 * (100 + 10 + 20)
    assert values(bundle)["all modules"] == 4 * (100 + 10 + 20)
