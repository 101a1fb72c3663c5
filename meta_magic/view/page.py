"""The report that needs no kernel: saved in a notebook's output, or a file of its own.

It is the same payload and the same JavaScript as the live widget's. Where scripts are
forbidden, the folded module tree as plain HTML is left.
"""

import base64
import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from meta_magic.view.html import render_html
from meta_magic.view.payload import pack

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["join_scripts", "join_styles", "render_page", "render_snapshot"]

SCRIPT_NAMES: Final = """
dom data selection
tables/rows tables/cells tables/grid tables/modules tables/operators
flow/values flow/items flow/boxes flow/routes flow/align flow/columns flow/layers
flow/layout flow/levels flow/spots flow/shapes flow/painter flow/viewport flow/map
flow/crumbs flow/pointer flow/keyboard flow/search flow/export flow/bar flow/flow
source/lines source/source panel report
"""
SCRIPTS: Final = tuple(SCRIPT_NAMES.split())
"""Files of ``static`` in the order in which each uses those before it."""

STYLES: Final = ("report", "shell", "tables", "flow", "source", "panel")

IMPORT: Final = re.compile(r"^import .*;\n", re.MULTILINE)
EXPORT: Final = re.compile(r"^export (default \{.*\};\n)?", re.MULTILINE)
COMMENT: Final = re.compile(r"/\*\*(?:[^*]|\*(?!/))*\*/|(?<!\S)//.*$", re.MULTILINE)
INDENT: Final = re.compile(r"^\s+|[ \t]+$", re.MULTILINE)
"""What is of no use to a browser, and a third of it all. No text has such in it."""

HIDE_ORPHAN: Final = (
    ".jp-OutputArea-child:has(.mm-root)+.jp-OutputArea-child "
    ".jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
)
"""What JupyterLab says below the report when a widget has no kernel any more."""


@cache
def join_scripts() -> str:
    """Return all JavaScript as the one module that browsers see, nothing exported."""
    static = files("meta_magic.view") / "static"
    parts = [(static / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    script = "\n".join(parts)
    for pattern in (IMPORT, EXPORT, COMMENT, INDENT):
        script = pattern.sub("", script)
    return script


@cache
def join_styles() -> str:
    """Return all styles."""
    static = files("meta_magic.view") / "static"
    return "\n".join((static / f"{name}.css").read_text("utf-8") for name in STYLES)


def render_snapshot(
    trace: "Trace",
    packed: bytes,
    uid: str = "mm-report",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the report as a piece of HTML that works without a kernel or a network.

    Args:
        trace: The recording.
        packed: Its payload.
        uid: ``id`` of the element, by which a live report finds and hides it.
        settings: ``depth``, ``hide`` and ``height``.
    """
    encoded = base64.b64encode(packed).decode()
    start = f'start_saved("{uid}", "{encoded}", {json.dumps(dict(settings))});'
    # A name may hold half a character, which no file can.
    tree = render_html(trace).encode("utf-8", "replace").decode()
    return (
        f'<div id="{escape(uid)}" class="mm-root">{tree}</div>'
        f"<style>{join_styles()}\n{HIDE_ORPHAN}</style>"
        f'<script type="module">{join_scripts()}\n{start}</script>'
    )


def render_page(trace: "Trace") -> str:
    """Return the report as a whole HTML file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>meta_magic</title>'
        "<style>body{margin:16px;background:Canvas;color:CanvasText}</style></head>"
        f"<body>{render_snapshot(trace, pack(trace))}</body></html>\n"
    )
