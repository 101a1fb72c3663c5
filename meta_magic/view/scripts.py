"""Join the report's JavaScript and CSS, each into one text, as browsers get it.

The build of a wheel runs this file without torch, so it imports only the standard
library, and ``.github/minify_report.py`` puts the minified texts beside the files.
"""

import gzip
import json
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

STATIC: Final = Path(__file__).resolve().parent / "static"

Saved: TypeAlias = Literal["saved", "world", "varied", "lesson"]
"""The scripts of a saved report: plain, with World view, with sliders; of a lesson."""

ScriptKind: TypeAlias = Literal[
    "live", "saved", "world", "varied", "lesson", "starter", "figure"
]
"""The entry script: of the live report, the saved ones, their unpacker, a figure."""

KINDS: Final[tuple[ScriptKind, ...]] = get_args(ScriptKind)

VIEWS: Final = (
    *("shell", "why", "tables", "flow", "source", "details", "pictures", "charts"),
    "memory",
)

STYLES: Final = {
    "tree": ("report",),  # without scripts
    "saved": VIEWS,
    "world": (*VIEWS, "sent"),
    "varied": (*VIEWS, "sliders"),
    "lesson": ("shell", "pictures", "lesson"),
    "ranks": ("sent",),  # strips, without scripts
    "figure": ("shell", "flow", "figure"),
    "live": ("report", *VIEWS, "sent", "panel", "fit", "sliders"),
}
"""CSS files by report."""

IMPORT: Final = re.compile(r'^import .* from "(.*)";\n', re.MULTILINE)
EXPORT: Final = re.compile(r"^export (?:default (\{.*\};\n))?", re.MULTILINE)
COMMENT: Final = re.compile(r"/\*\*(?:[^*]|\*(?!/))*\*/|(?<!\S)//.*$", re.MULTILINE)
INDENT: Final = re.compile(r"^\s+|[ \t]+$", re.MULTILINE)
"""Comments and indents, a third of all; no string in our scripts looks like them."""


def list_scripts(last: Path, seen: Collection[Path] = ()) -> list[Path]:
    """Return a script after all its imports, each once."""
    listed: list[Path] = []
    for imported in IMPORT.findall(last.read_text("utf-8")):
        path = (last.parent / imported).resolve()
        if path not in {*seen, *listed}:
            listed += list_scripts(path, {*seen, *listed, last})
    return [*listed, last]


def join_scripts(kind: ScriptKind) -> str:
    """Return the JavaScript as a constant ``report``: the entry script's default."""
    *others, last = list_scripts(STATIC / f"{kind}.js")
    script = "".join([*map(strip_script, others), strip_script(last, is_entry=True)])
    return f"const report = (() => {{\n{script}}})();\n"


@cache
def strip_script(path: Path, *, is_entry: bool = False) -> str:
    """Return a script without imports, exports, comments and indents."""
    script = IMPORT.sub("", path.read_text("utf-8"))
    kept = "return {}" if is_entry else ""
    script = EXPORT.sub(lambda found: kept.format(found[1]) if found[1] else "", script)
    for pattern in (COMMENT, INDENT):
        script = pattern.sub("", script)
    return script


def join_styles(name: str) -> str:
    """Return the CSS of a report."""
    return "\n".join((STATIC / f"{n}.css").read_text("utf-8") for n in STYLES[name])


def join_report(script: str, styles: str) -> bytes:
    """Return the text that a saved report unpacks; a wheel's build calls this, too."""
    return f"{script}\nconst styles = {json.dumps(styles)};\n".encode()


@cache
def read_script(kind: ScriptKind) -> str:
    """Return the JavaScript, minified if installed from a wheel."""
    return read_built(f"{kind}.min.js").decode() or join_scripts(kind)


@cache
def read_styles(name: str) -> str:
    """Return the CSS, minified if installed from a wheel."""
    return read_built(f"{name}.min.css").decode() or join_styles(name)


@cache
def pack_report(kind: Saved) -> bytes:
    """Return script and CSS of a saved report, compressed by gzip."""
    if built := read_built(f"{kind}.gz"):
        return built
    return gzip.compress(join_report(join_scripts(kind), join_styles(kind)), mtime=0)


def read_built(name: str) -> bytes:
    """Return a file of the wheel's build; empty if there is none."""
    path = STATIC / name
    return path.read_bytes() if path.is_file() else b""
