"""The report's JavaScript and styles in one piece each, as browsers see them.

It imports nothing but the standard library: a build of a wheel runs it, too, where no
torch is, and puts what it minifies beside the files (``.github/minify_report.py``).
"""

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
    "STYLES",
    "join_report",
    "join_scripts",
    "join_styles",
    "list_scripts",
    "pack_report",
    "read_script",
    "read_styles",
]

STATIC: Final = Path(__file__).resolve().parent / "static"

Kind: TypeAlias = Literal["live", "saved", "starter"]
"""The script that stands behind all others: beside a kernel, without one, and what
unpacks the latter.
"""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

VIEWS: Final = (
    "shell",
    "why",
    "tables",
    "flow",
    "source",
    "details",
    "charts",
    "memory",
)

STYLES: Final = {
    "tree": ("report",),  # plain, which a report takes the place of
    "saved": VIEWS,
    "live": ("report", *VIEWS, "panel", "fit"),
}
"""The files, by what they are the styles of."""

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
    script = "".join(map(strip_script, list_scripts(STATIC / f"{kind}.js")))
    return f"const report = (() => {{\n{script}}})();\n"


@cache
def strip_script(path: Path) -> str:
    """Return what a browser needs of a script that others stand before and behind."""
    script = IMPORT.sub("", path.read_text("utf-8"))
    script = EXPORT.sub(lambda met: f"return {met[1]}" if met[1] else "", script)
    for pattern in (COMMENT, INDENT):
        script = pattern.sub("", script)
    return script


def join_styles(name: str) -> str:
    """Return the styles of a report, or of the plain tree."""
    return "\n".join((STATIC / f"{n}.css").read_text("utf-8") for n in STYLES[name])


def join_report(script: str, styles: str) -> bytes:
    """Return what a saved report unpacks: the constants ``report`` and ``styles``."""
    return f"{script}\nconst styles = {json.dumps(styles)};\n".encode()


@cache
def read_script(kind: Kind) -> str:
    """Return the JavaScript, minified if this was installed from a wheel."""
    return read_built(f"{kind}.min.js").decode() or join_scripts(kind)


@cache
def read_styles(name: str) -> str:
    """Return the styles, minified if this was installed from a wheel."""
    return read_built(f"{name}.min.css").decode() or join_styles(name)


@cache
def pack_report() -> bytes:
    """Return script and styles of a saved report, by gzip."""
    if built := read_built("saved.gz"):
        return built
    text = join_report(join_scripts("saved"), join_styles("saved"))
    return gzip.compress(text, mtime=0)


def read_built(name: str) -> bytes:
    """Return a file that a wheel has beside the others; nothing if it is not there."""
    path = STATIC / name
    return path.read_bytes() if path.is_file() else b""
