"""Builds of a wheel minify the report's script and styles, which cells are saved with.

Where the minifier has no binary, a wheel has the files as they are, and so has an
editable installation. Zopfli takes its time to find what gzip does not.
"""

import gzip
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

try:
    import minify
except ImportError:
    minify = None
try:
    from zopfli.gzip import compress
except ImportError:
    compress = partial(gzip.compress, mtime=0)


class MinifyReport(BuildHookInterface):
    """Adds what is minified to the files that ``view/scripts.py`` reads."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write it, and have it included."""
        if minify is None or version == "editable":
            return
        folder = Path(mkdtemp())
        for name, data in minify_report(Path(self.root)).items():
            (folder / name).write_bytes(data)
            target = f"meta_magic/view/static/{name}"
            build_data["force_include"][str(folder / name)] = target


def minify_report(root: Path) -> dict[str, bytes]:
    """Return the built files by name; the scripts of a saved report are one file."""
    read = load_scripts(root)
    scripts = {
        kind: minify.string("application/javascript", read.join_scripts(kind))
        for kind in read.KINDS
    }
    styles = {
        name: minify.string("text/css", read.join_styles(name)) for name in read.STYLES
    }
    saved = {
        f"{kind}.gz": compress(read.join_report(scripts.pop(kind), styles.pop(kind)))
        for kind in ("saved", "world", "varied", "lesson")
    }
    return {
        **{f"{kind}.min.js": script.encode() for kind, script in scripts.items()},
        **{f"{name}.min.css": style.encode() for name, style in styles.items()},
        **saved,
    }


def load_scripts(root: Path) -> ModuleType:
    """Return ``view/scripts.py`` by itself: its package imports torch."""
    spec = spec_from_file_location("scripts", root / "meta_magic/view/scripts.py")
    scripts = module_from_spec(spec)
    spec.loader.exec_module(scripts)
    return scripts
