"""What a wheel has for the report's files, and what cells are saved with."""

import json
import runpy
from pathlib import Path

import pytest

from meta_magic.view import scripts
from meta_magic.view.base91 import write_base91
from meta_magic.view.html import render_html
from meta_magic.view.page import render_snapshot
from meta_magic.view.payload import pack

__all__ = ["count_added", "use_minified"]

ROOT = Path(__file__).parents[1]


def minify_report():
    """Return the minified files by name, as a build makes them."""
    pytest.importorskip("minify", reason="no binary of the minifier for this machine")
    hook = runpy.run_path(str(ROOT / ".github" / "minify_report.py"))
    return hook["minify_report"](ROOT)


def use_minified(monkeypatch):
    """Have reports written as from a wheel."""
    minified = minify_report()
    monkeypatch.setattr(scripts, "read_built", minified.__getitem__)


def count_added(trace):
    """Return the bytes in a notebook's file above the payload and the plain tree."""
    packed = pack(trace)
    parts = [write_base91(packed), render_html(trace)]
    return count_saved(render_snapshot(trace, packed)) - sum(map(count_saved, parts))


def count_saved(html):
    """Return the bytes of a text in a notebook's file."""
    return len(json.dumps(html, ensure_ascii=False).encode()) - 2
