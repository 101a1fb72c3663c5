"""The flow as a figure for print, for ``Trace.figure()``: an SVG and a PDF.

The report's own script draws it, so a browser has to run that: one that is installed,
without a window, and without a network. Read :func:`write_figure` first.
"""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from meta_magic.view.html import read_script, read_styles
from meta_magic.view.payload import pack

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

STYLES: Final = ("paper", "report")

BROWSERS: Final = (
    *("chromium", "chromium-browser", "google-chrome", "chrome", "msedge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Looked for in this order, after the one that ``META_MAGIC_BROWSER`` names."""

SECONDS: Final = 120
"""Seconds that a browser may take."""

FIGURE: Final = re.compile(r"<pre hidden=\"\">([\w+/=]+)</pre>")


def write_figure(
    trace: "Trace", path: Path, *, depth: int | None, style: str
) -> tuple[Path, Path]:
    """Write the flow as ``path.svg`` and ``path.pdf``; return both paths.

    In the style for papers, boxes are numbered, and ``path.txt`` is the caption.
    """
    if style not in STYLES:
        raise ValueError(f"no style {style!r}; there are {', '.join(STYLES)}")
    browser = find_browser()
    svg, pdf = (path.with_name(f"{path.name}.{kind}") for kind in ("svg", "pdf"))
    with TemporaryDirectory(prefix="meta_magic-") as folder:
        page = Path(folder) / "figure.html"
        page.write_text(render_figure(trace, depth, style), "utf-8")
        shown = run_browser(browser, page, "--dump-dom")
        found = FIGURE.findall(shown)
        printed = Path(folder) / "figure.pdf"
        run_browser(browser, page, f"--print-to-pdf={printed}")
        if not found or not printed.is_file():
            raise RuntimeError(
                f"{browser} drew no figure; save one from the menu of the report's Flow"
            )
        svg.write_bytes(base64.b64decode(found[0]))
        for caption in found[1:]:  # none is empty: the style has one, or not
            path.with_name(f"{path.name}.txt").write_bytes(base64.b64decode(caption))
        shutil.copyfile(printed, pdf)
    return svg, pdf


def render_figure(trace: "Trace", depth: int | None, style: str) -> str:
    """Return a page that draws the flow and nothing else."""
    settings = {"style": style} | ({} if depth is None else {"depth": depth})
    payload = base64.b64encode(pack(trace)).decode()
    return (
        '<!doctype html><html><head><meta charset="utf-8"><title>figure</title>'
        f"<style>{read_styles('figure')}</style></head><body>"
        f'<script type="module">{read_script("figure")};'
        f'report.draw_figure("{payload}", {json.dumps(settings)})</script>'
        "</body></html>"
    )


def find_browser() -> str:
    """Return the path of a browser that has a mode without a window."""
    named = os.environ.get("META_MAGIC_BROWSER")
    found = map(shutil.which, (named,) if named else BROWSERS)
    browser = next(filter(None, found), None)
    if browser is None:
        raise FileNotFoundError(
            "a browser draws the figure, and none was found: install Chromium or "
            "Chrome, or name one in META_MAGIC_BROWSER; or save the picture from the "
            "menu of the report's Flow"
        )
    return browser


def run_browser(browser: str, page: Path, action: str) -> str:
    """Open a page without a window; return what is printed, "" if it takes too long."""
    # Chromium has no sandbox for root. The page is our own, and loads nothing.
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    options = [
        *("--headless", "--disable-gpu", "--no-pdf-header-footer"),
        *("--virtual-time-budget=20000", f"--user-data-dir={page.parent / 'profile'}"),
        *(["--no-sandbox"] if is_root else []),
    ]
    command = [browser, *options, action, page.as_uri()]
    try:
        ran = subprocess.run(  # noqa: S603  the user's own browser
            command, capture_output=True, timeout=SECONDS, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return ""
    return ran.stdout
