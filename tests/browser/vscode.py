"""Pictures of a saved report in VS Code, and what a person could not read there.

``python -m tests.browser.vscode --server FOLDER --out PICTURES`` needs code-server, in
Node.js 24. Its scripts load from GitHub what a notebook does without:

    npm install --ignore-scripts --prefix FOLDER code-server
    npm install --ignore-scripts --prefix FOLDER/node_modules/code-server/lib/vscode
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from tests.browser.gallery import VIEWS
from tests.browser.lab import open_chromium, wait_for, write_notebook
from tests.browser.served import CHECK

THEMES = ("Dark Modern", "Light+", "Default High Contrast")

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
layer = nn.TransformerEncoderLayer(256, 8, batch_first=True)
model = nn.TransformerEncoder(layer, 6)
model(torch.zeros(4, 32, 256)).sum().backward()""",
    "dir(model)[:3]",
)

LOOK = f"""() => {{
  document.querySelector(".mm-root").parentElement.id = "report";
  document.body.style.background = "var(--vscode-editor-background)";
  {CHECK}
  return check_report();
}}"""
"""What the editor draws behind a notebook's outputs is no part of their page."""


@contextmanager
def run_server(of: argparse.Namespace, folder: Path, theme: str) -> Iterator[str]:
    """Yield the address of a VS Code of a theme, with settings of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "workbench.colorTheme": theme,
        "workbench.editorAssociations": {"*.ipynb": "jupyter-notebook"},
        "security.workspace.trust.enabled": False,
        "chat.disableAIFeatures": True,
        "workbench.secondarySideBar.defaultVisibility": "hidden",
    }
    own = folder / f"settings of {theme}"
    (own / "User").mkdir(parents=True)
    (own / "User" / "settings.json").write_text(json.dumps(settings), "utf-8")
    server = subprocess.Popen(
        [
            *(of.node, of.server / "node_modules/code-server/out/node/entry.js"),
            *("--auth", "none", "--bind-addr", address, "--user-data-dir", own),
            *("--disable-telemetry", "--disable-update-check", folder),
        ],
        env={**os.environ, "XDG_CONFIG_HOME": str(own)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://{address}/healthz", server)
        yield address
    finally:
        server.terminate()
        server.wait(10)


def open_in_code(page: Any, address: str, path: Path) -> Any:
    """Open a notebook; the frame in which its outputs are, when the report is there."""
    payload = json.dumps([["openFile", f"vscode-remote://{address}{path}"]])
    page.goto(f"http://{address}/?folder={path.parent}&payload={quote(payload)}")
    outer = page.frame_locator("iframe.webview.ready")
    outer.frame_locator("#active-frame").locator(".mm-live").wait_for(timeout=60_000)
    return next(frame for frame in page.frames if "fake.html" in frame.url)


def look(page: Any, frame: Any, name: str, out: Path) -> None:
    """Take a picture of each view, and print what cannot be read."""
    frame.get_by_role("row").filter(has_text="linear1").first.click()
    for view in VIEWS:
        frame.get_by_role("tab", name=view).click()
        page.wait_for_timeout(1000)  # the editor follows with the height of the cell
        page.screenshot(path=out / f"{name}-{view}.png")
        for found in frame.evaluate(LOOK):
            print(name, view, *found.values(), sep=" | ")


def main() -> None:
    """Run a notebook, and look at it in each theme."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--node", default="node", help="Node.js 24")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    of = parser.parse_args()
    of.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as own, open_chromium() as browser:
        path = Path(own) / "report.ipynb"
        write_notebook(path, *CELLS)
        convert = ("nbconvert", "--to", "notebook", "--execute", "--inplace")
        subprocess.run([sys.executable, "-m", *convert, path], check=True)
        for theme in THEMES:
            with run_server(of, path.parent, theme) as address:
                page = browser.new_page(viewport={"width": 1400, "height": 1100})
                look(page, open_in_code(page, address, path), theme, of.out)
                page.close()


if __name__ == "__main__":
    main()
