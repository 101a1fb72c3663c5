"""What a figure of the flow needs; ``tests/browser/test_figure.py`` draws some."""

import pytest
import torch

from meta_magic import record
from meta_magic.view import figures


@pytest.fixture(scope="module")
def trace():
    with record() as trace:
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    return trace


def test_without_a_browser_the_error_says_what_to_do(trace, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "BROWSERS", ())
    monkeypatch.delenv("META_MAGIC_BROWSER", raising=False)
    with pytest.raises(FileNotFoundError, match="install Chromium or Chrome, or name"):
        trace.figure(tmp_path / "flow")
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_draws_nothing_is_named(trace, monkeypatch, tmp_path):
    monkeypatch.setenv("META_MAGIC_BROWSER", "true")
    with pytest.raises(RuntimeError, match="true drew no figure; save one from the"):
        trace.figure(tmp_path / "flow")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_style_lists_the_styles(trace, tmp_path):
    with pytest.raises(ValueError, match="no style 'poster'; there are paper, report"):
        trace.figure(tmp_path / "flow", style="poster")
