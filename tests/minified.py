"""What a wheel has in the place of the report's files."""

import runpy
from pathlib import Path

import pytest

from meta_magic.view import scripts

__all__ = ["use_minified"]

ROOT = Path(__file__).parents[1]


def minify_report():
    """Return the texts of the minified files by name, as a build makes them."""
    pytest.importorskip("minify", reason="no binary of the minifier for this machine")
    hook = runpy.run_path(str(ROOT / ".github" / "minify_report.py"))
    return hook["minify_report"](ROOT)


def use_minified(monkeypatch):
    """Have reports written as from a wheel."""
    minified = minify_report()
    for name, end in (("read_script", "js"), ("read_styles", "css")):
        monkeypatch.setattr(
            scripts, name, lambda kind, end=end: minified[f"{kind}.min.{end}"]
        )
