"""``Trace.figure``: the flow as an SVG and a PDF, drawn by a hidden browser."""

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.browser.lab import CHROMIUM

TEXT = "{http://www.w3.org/2000/svg}text"
EVIL = "<img src=x onerror=alert(1)> & ü"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(EVIL, nn.Linear(8, 8))

    def forward(self, x):
        return x + self.get_submodule(EVIL)(x)


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        model = nn.Sequential(Block(), nn.LayerNorm(8))
        model(torch.ones(3, 8))
    return trace


@pytest.fixture
def draw(trace, tmp_path, monkeypatch):
    monkeypatch.setenv("META_MAGIC_BROWSER", CHROMIUM)

    def write(**settings):
        svg, pdf = trace.figure(tmp_path / "flow", **settings)
        texts = ET.parse(svg).getroot().iter(TEXT)
        return ["".join(text.itertext()) for text in texts], svg.read_text("utf-8"), pdf

    return write


def test_a_figure_is_an_svg_and_a_pdf_of_one_page(draw):
    texts, svg, pdf = draw(depth=1)
    assert "0 Block" in texts
    assert {"1", "2"} <= set(texts)
    # 8 x 8 + 8 of the Linear, 2 x 8 of the norm; 2 x 3 x 8 x 8 FLOPs of the product.
    caption = pdf.with_suffix(".txt").read_text("utf-8")
    assert caption.startswith("88 parameters, 352 bytes, ")
    assert caption.endswith("(1) 0: Block, 72 params; (2) 1: LayerNorm 8, 16 params.\n")
    assert "1 LayerNorm 8" in texts
    assert "+" not in texts  # in the closed block
    assert "color-mix" not in svg
    printed = pdf.read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 1


def test_a_figure_for_print_shows_one_block_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("META_MAGIC_BROWSER", CHROMIUM)
    with record() as trace:
        blocks = nn.Sequential(*(Block() for _ in range(5)))
        blocks(torch.ones(3, 8))
    svg, pdf = trace.figure(tmp_path / "flow", depth=2, style="paper")
    texts = ["".join(one.itertext()) for one in ET.parse(svg).getroot().iter(TEXT)]
    assert texts.count("+") == 1
    assert sum("Block" in text for text in texts) == 1
    assert pdf.with_suffix(".txt").read_text("utf-8").count("Linear") == 1


def test_a_deeper_figure_shows_what_is_in_a_block(draw):
    texts, _, pdf = draw(depth=2, style="report")
    assert "+" in texts
    assert not pdf.with_suffix(".txt").exists()
    assert any(text.startswith(f"{EVIL} Linear") for text in texts)
