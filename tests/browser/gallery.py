"""Pictures of six models, for a person to look through.

``python -m tests.browser.gallery --out FOLDER`` writes a picture of each model in each
view at each width, light and dark, and for each view a sheet with all of its pictures.
"""

import argparse
import atexit
import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meta_magic.trace.units import format_bytes
from meta_magic.view.choices import describe_root
from meta_magic.view.payload import pack
from meta_magic.view.scripts import join_scripts, join_styles
from tests.browser.gallery_models import CELLS, LOAD
from tests.browser.lab import open_chromium
from tests.browser.served import ADDRESS, PAGE, TRAITS, VIEWS

WIDTHS = (700, 1000, 1440)
HEIGHT = 900

SCHEMES = {
    "light": ("light", "theme-light-extension"),
    "dark": ("dark", "theme-dark-extension"),
    "file-light": ("light", None),
    "file-dark": ("dark", None),
}
"""What the browser prefers, and JupyterLab's theme; no theme is a file of its own."""

GROUND = """body { background: var(--jp-layout-color0, Canvas) !important;
color: var(--jp-content-font-color1, CanvasText) !important }"""

SETTLE = "() => new Promise((r) => requestAnimationFrame(() => setTimeout(r, 50)))"

ADD_THEME = """(textContent) => document.head.append(Object.assign(
  document.createElement('style'), { className: 'theme', textContent }))"""

SHEET = """<!doctype html><meta charset="utf-8"><title>{view}</title><style>
body {{ font: 14px system-ui; margin: 12px; background: #888; }}
div {{ display: flex; flex-wrap: wrap; gap: 12px; align-items: start; }}
figure {{ margin: 0; }} img {{ display: block; width: {width}px; }}
</style><h1>{view}</h1><div>{figures}</div>"""
FIGURE = (
    "<figure><figcaption>{name}</figcaption>"
    '<a href="{name}.png"><img src="{name}.png"></a></figure>'
)


@contextmanager
def open_shell() -> Iterator[Any]:
    """Yield an IPython shell with the extension, and no history on disk."""
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryAccessor.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "meta_magic")
    yield shell
    shell.run_line_magic("unload_ext", "meta_magic")
    atexit.unregister(shell.atexit_operations)
    InteractiveShell.clear_instance()


def record_cells(shell: Any, names: Iterable[str]) -> dict[str, Any]:
    """Run the models' cells in a shell; the trace of each by its name."""
    shell.run_cell(LOAD)
    traces = {}
    for name in names:
        torch.manual_seed(0)
        shell.run_cell(f"%%meta -q{CELLS[name]}").raise_error()
        traces[name] = shell.user_ns["_meta"]
    return traces


def make_page(trace: Any) -> str:
    """Return the live report of a trace as an HTML page, without a kernel."""
    roots = trace.modules
    nbytes = sum(node.parameter_nbytes + node.buffer_nbytes for node in roots[:1])
    traits = {
        "roots": [describe_root(node) for node in roots],
        "needed": format_bytes(nbytes),
        "settings": {},
    }
    return PAGE % {
        "styles": join_styles("live"),
        "scripts": join_scripts("live"),
        "payload": base64.b64encode(pack(trace)).decode(),
        "traits": json.dumps(TRAITS | traits),
    }


def open_page(browser: Any, html: str, width: int, scheme: str) -> Any:
    """Open a page of the given width, with the colours of a scheme."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT})
    page.route(ADDRESS, lambda r: r.fulfill(body=html, content_type="text/html"))
    page.goto(ADDRESS)
    page.wait_for_function("() => window.ready")
    set_scheme(page, scheme)
    return page


def set_scheme(page: Any, scheme: str) -> None:
    """Show a page in the colours of a scheme."""
    color_scheme, theme = SCHEMES[scheme]
    page.emulate_media(color_scheme=color_scheme)
    page.evaluate("document.querySelectorAll('style.theme').forEach((s) => s.remove())")
    if theme:
        from jupyterlab.commands import get_app_dir  # takes two seconds

        file = Path(get_app_dir(), "themes/@jupyterlab", theme, "index.css")
        styles = file.read_text("utf-8") + GROUND
        # JupyterLab says no colour scheme: a page that asks gets the light one.
        styles += ":root{color-scheme:light}"
        page.evaluate(ADD_THEME, styles)
    # A page hears of a change by this, there too.
    page.evaluate("name => { document.body.dataset.jpThemeName = name }", scheme)


def show_view(page: Any, view: str) -> None:
    """Choose a view, and wait until it has drawn."""
    page.get_by_role("tab", name=view).click()
    page.get_by_role("tabpanel", name=view).wait_for()
    page.mouse.move(0, 0)
    page.evaluate(SETTLE)


def take_pictures(browser: Any, pages: Mapping[str, str], out: Path, of: Any) -> None:
    """Write the pictures of each page in each view, width and scheme."""
    for name, width, scheme in product(pages, of.widths, of.schemes):
        page = open_page(browser, pages[name], width, scheme)
        for view in of.views:
            show_view(page, view)
            path = out / f"{view}-{name}-{width}-{scheme}.png"
            page.locator("#report").screenshot(path=path)
        page.close()


def write_sheets(browser: Any, out: Path, of: Any, per_row: int = 4) -> None:
    """Write for each view, width and scheme a sheet of all models, as HTML and PNG."""
    for view, width, scheme in product(of.views, of.widths, of.schemes):
        names = [f"{view}-{name}-{width}-{scheme}" for name in of.models]
        figures = "".join(FIGURE.format(name=escape(name)) for name in names)
        path = out / f"sheet-{view}-{width}-{scheme}.html"
        path.write_text(SHEET.format(view=view, width=width, figures=figures), "utf-8")
        row = min(per_row, 3200 // width) * (width + 12) + 24
        page = browser.new_page(viewport={"width": row, "height": HEIGHT})
        page.goto(path.as_uri())
        page.screenshot(path=path.with_suffix(".png"), full_page=True)
        page.close()


def read_options() -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=VIEWS)
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument(
        "--schemes", nargs="+", choices=SCHEMES, default=["light", "dark"]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    return parser.parse_args()


def main() -> None:
    """Record the models, and write the pictures and the sheets."""
    of = read_options()
    of.out.mkdir(parents=True, exist_ok=True)
    with open_shell() as shell:
        traces = record_cells(shell, of.models)
    pages = {name: make_page(trace) for name, trace in traces.items()}
    with open_chromium() as browser:
        take_pictures(browser, pages, of.out, of)
        write_sheets(browser, of.out, of)


if __name__ == "__main__":
    main()
