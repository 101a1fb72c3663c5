"""The report's JavaScript and styles in one piece each, as browsers see them.

It imports nothing but the standard library: a build of a wheel runs it, too, where no
torch is, and puts what it minifies beside the files (``.github/minify_report.py``).
"""

import base64
import gzip
import json
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

__all__ = [
    "KINDS",
    "STATIC",
    "compress_report",
    "join_scripts",
    "join_styles",
    "list_scripts",
    "read_script",
    "read_styles",
]

STATIC: Final = Path(__file__).resolve().parent / "static"

Kind: TypeAlias = Literal["live", "saved"]
"""Beside a kernel, or not: the script that stands behind all others of a report."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

STYLES: Final = ("report", "shell", "tables", "flow", "source", "details", "charts")

PANEL: Final = "panel"
"""The style of a live report alone."""

IMPORT: Final = re.compile(r'^import .* from "(.*)";\n', re.MULTILINE)
EXPORT: Final = re.compile(r"^export (?:default (\{.*\};\n))?", re.MULTILINE)
COMMENT: Final = re.compile(r"/\*\*(?:[^*]|\*(?!/))*\*/|(?<!\S)//.*$", re.MULTILINE)
INDENT: Final = re.compile(r"^\s+|[ \t]+$", re.MULTILINE)
"""What is of no use to a browser, and a third of it all. No text has such in it."""


def list_scripts(last: Path, met: Collection[Path] = ()) -> list[Path]:
    """Return a script behind all that it imports, and they, each once."""
    listed: list[Path] = []
    for imported in IMPORT.findall(last.read_text("utf-8")):
        path = (last.parent / imported).resolve()
        if path not in {*met, *listed}:
            listed += list_scripts(path, {*met, *listed, last})
    return [*listed, last]


def join_scripts(kind: Kind) -> str:
    """Return a report's JavaScript as the constant ``report``, the last's default."""
    parts = [path.read_text("utf-8") for path in list_scripts(STATIC / f"{kind}.js")]
    script = IMPORT.sub("", "\n".join(parts))
    script = EXPORT.sub(lambda met: f"return {met[1]}" if met[1] else "", script)
    for pattern in (COMMENT, INDENT):
        script = pattern.sub("", script)
    return f"const report = (() => {{\n{script}}})();\n"


def join_styles(kind: Kind) -> str:
    """Return the styles of a report."""
    names = [*STYLES, PANEL] if kind == "live" else STYLES
    return "\n".join((STATIC / f"{name}.css").read_text("utf-8") for name in names)


@cache
def read_script(kind: Kind) -> str:
    """Return the JavaScript, minified if this was installed from a wheel."""
    return read_minified(f"{kind}.min.js") or join_scripts(kind)


@cache
def read_styles(kind: Kind) -> str:
    """Return the styles, minified if this was installed from a wheel."""
    return read_minified(f"{kind}.min.css") or join_styles(kind)


def read_minified(name: str) -> str:
    """Return a file that a wheel has beside the others; "" if it is not there."""
    path = STATIC / name
    return path.read_text("utf-8") if path.is_file() else ""


@cache
def compress_report() -> str:
    """Return script and styles, by gzip and in base64, as a saved report has them."""
    script, styles = read_script("saved"), json.dumps(read_styles("saved"))
    text = f"{script}\nconst styles = {styles};\n"
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
