"""The saved report: HTML that needs no kernel, in a notebook or as its own file.

It has the same payload and the same JavaScript as the live report. Where scripts are
forbidden, the module tree as plain HTML stays. Read :func:`render_snapshot` first;
:func:`write_figure` has a browser draw the flow as SVG and PDF.
"""

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from meta_magic.view.html import render_html
from meta_magic.view.payload import pack
from meta_magic.view.scripts import Saved, pack_report, read_script, read_styles

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace
    from meta_magic.view.sliders import Designs


HIDE_ORPHAN: Final = (
    ".jp-OutputArea-child:has(.mm-root)+.jp-OutputArea-child "
    ".jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
)
"""Hides the message of JupyterLab below the report that a widget has no kernel."""

WAIT: Final = (
    "@keyframes mm-wait{from{max-height:0;overflow:hidden;visibility:hidden}}"
    ".mm-root>.mm-report{animation:mm-wait 1s step-end}"
)
"""Keeps the plain tree from flashing up before the script replaces it."""

WINDOW: Final = (
    "body{margin:0;padding:16px;background:Canvas;color:CanvasText}"
    ".mm-root.mm-live{display:flex;flex-direction:column;margin:0;"
    "height:calc(100vh - 32px)}"
    ".mm-root:has(>.mm-sliders){display:flex;flex-direction:column;"
    "height:calc(100vh - 32px)}"
    ".mm-sliders+.mm-live{flex:1;display:flex;flex-direction:column;min-height:0}"
    ".mm-live>.mm-parts{flex:1;min-height:240px}"
    ".mm-live .mm-views>.mm-view{height:100%;max-height:none;resize:none}"
    "h1{position:absolute;clip-path:inset(50%);width:1px;overflow:hidden}"
)
"""Lets the views fill the window; the title is for screen readers only."""

MAX_TITLE: Final = 60
"""Characters."""

SECONDS: Final = 10.0
"""Seconds for recording the designs that the sliders of a page show."""


def store_sliders(
    trace: "Trace", packed: bytes, seconds: float = SECONDS
) -> tuple[bytes, "Designs | None"]:
    """Return designs for the saved and the live report; b"" and None for no sliders."""
    sliders = () if trace.rerun is None else trace.rerun.options.sliders
    if not sliders or trace.world is not None:  # it has another script
        return b"", None
    from meta_magic.view.sliders import Designs, store_designs  # noqa: PLC0415  few have any

    designs = Designs()
    return store_designs(trace, packed, designs, seconds), designs


def render_snapshot(
    trace: "Trace",
    packed: bytes,
    uid: str = "mm-report",
    settings: Mapping[str, Any] = MappingProxyType({}),
    stored: bytes = b"",
) -> str:
    """Return the report as HTML that works without a kernel or a network.

    ``stored`` is what the sliders show, as of ``view/sliders.py``, ``uid`` the
    ``id`` of the element. ``settings`` has ``depth``, ``parameters``, ``height``. For a
    report below a traceback also ``line``, the only line shown until the report is
    opened, and ``why``, the ``id`` of the explanation above the traceback, or "".
    """
    # A name may hold half a surrogate pair, which UTF-8 cannot write.
    tree = render_html(trace, settings.get("depth")).encode("utf-8", "replace").decode()
    if "line" in settings:
        line = f"<summary>{escape(settings['line'])}</summary>"
        tree = f"<details class='mm-line'>{line}{tree}</details>"
    kind: Saved = "saved" if trace.world is None else "world"
    kind = "varied" if stored else kind
    return render_saved(kind, uid, tree, [packed, stored], settings)


def render_saved(
    kind: Saved,
    uid: str,
    plain: str,
    packed: Sequence[bytes],
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return HTML with a script that draws payloads in place of the plain HTML."""
    data = ", ".join([write_report(kind), *map(write_packed, filter(None, packed))])
    start = f'report.start("{uid}", {json.dumps(dict(settings))}, {data})'
    return (
        f'<div id="{escape(uid)}" class="mm-root">{plain}</div>'
        f"<style>{HIDE_ORPHAN}{WAIT}</style>"
        f'<script type="module">{read_script("starter")};{start}</script>'
    )


def render_lesson(lesson: Mapping[str, Any], text: str) -> str:
    """Return a lesson as HTML; without scripts it is its text.

    ``text`` has the lines and their questions.
    """
    packed = gzip.compress(json.dumps(lesson).encode(), mtime=0)
    plain = f"<pre>{escape(text)}</pre>"
    return render_saved("lesson", f"mm-{uuid4().hex[:8]}", plain, [packed])


@cache
def write_report(kind: Saved) -> str:
    """Return script and styles of a saved report as an argument; all share them."""
    return write_packed(pack_report(kind))


def write_packed(data: bytes) -> str:
    """Return bytes as an argument of ``static/starter.js``."""
    return f"['{write_base91(data)}', {len(data)}]"


def render_page(trace: "Trace") -> str:
    """Return the report as a whole HTML file."""
    packed = pack(trace)
    stored, _ = store_sliders(trace, packed)
    names = ", ".join(filter(None, (root.name for root in trace.modules)))
    shown = names.encode("utf-8", "replace").decode()[:MAX_TITLE]
    title = escape(" · ".join(filter(None, [shown, "meta_magic"])))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title>'
        f"<style>{WINDOW}</style></head><body><main><h1>{title}</h1>"
        f"{render_snapshot(trace, packed, stored=stored)}</main></body></html>\n"
    )


DIGITS: Final = "".join(c for c in map(chr, range(32, 127)) if c not in "\"'<\\")

PAIRS: Final = tuple(high + low for high in DIGITS for low in DIGITS)
"""Two characters for each number of 13 bits."""

SHIFTS: Final = range(13 * 7, -1, -13)
"""By how many bits each of the eight numbers of 13 bits is shifted in 13 bytes."""


def write_base91(data: bytes) -> str:
    """Return bytes as text: 13 bits in each two of 91 characters.

    These are the printable ASCII characters that neither JSON nor HTML escapes. The
    text is a twelfth shorter than base64. ``static/starter.js`` reads it.
    """
    padded = data + bytes(-len(data) % 13)
    chunks = (int.from_bytes(padded[at : at + 13]) for at in range(0, len(padded), 13))
    text = "".join([PAIRS[chunk >> n & 8191] for chunk in chunks for n in SHIFTS])
    return text[: 2 * -(-8 * len(data) // 13)]


STYLES: Final = ("paper", "report")

BROWSERS: Final = (
    *("chromium", "chromium-browser", "google-chrome", "chrome", "msedge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Looked for in this order, after the one that ``META_MAGIC_BROWSER`` names."""

SECONDS_OF_FIGURE: Final = 120
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
            command,
            capture_output=True,
            timeout=SECONDS_OF_FIGURE,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return ""
    return ran.stdout
