"""What a wheel has for the report's files, and what cells are saved with."""

import json
import runpy
from contextlib import contextmanager
from pathlib import Path

import pytest

from meta_magic.view import page, scripts
from meta_magic.view.html import render_html
from meta_magic.view.page import render_snapshot, write_base91
from meta_magic.view.payload import pack

ROOT = Path(__file__).parents[1]


def minify_report():
    """Return the minified files by name, as a build makes them."""
    pytest.importorskip("minify", reason="no binary of the minifier for this machine")
    hook = runpy.run_path(str(ROOT / ".github" / "minify_report.py"))
    return hook["minify_report"](ROOT)


@contextmanager
def as_from_a_wheel():
    """Have reports written as from a wheel."""
    minified = minify_report()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "read_built", minified.__getitem__)
        forget_files()
        yield
    forget_files()


def forget_files():
    """Have what reports are made of read anew."""
    for read in (
        scripts.read_script,
        scripts.read_styles,
        scripts.pack_report,
        page.write_report,
    ):
        read.cache_clear()


def count_added(trace):
    """Return the bytes in a notebook's file above the payload and the plain tree."""
    packed = pack(trace)
    parts = [write_base91(packed), render_html(trace)]
    return count_saved(render_snapshot(trace, packed)) - sum(map(count_saved, parts))


def count_saved(html):
    """Return the bytes of a text in a notebook's file."""
    return len(json.dumps(html, ensure_ascii=False).encode()) - 2
