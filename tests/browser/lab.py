"""A real JupyterLab and a real Chromium, for tests, benchmark and picture."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium-headless-shell")  # a window of the other takes 0.5 s more
    or shutil.which("chromium")
)

READY = """async () => {
  const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
  for (let i = 0; i < 1200; i++, await sleep(50)) {
    const widget = window.jupyterapp?.shell?.currentWidget;
    if (!widget?.sessionContext) continue;
    await widget.context.ready;
    await widget.sessionContext.ready;
    if (widget.sessionContext.session?.kernel?.status === 'idle') return true;
  }
  throw new Error('the kernel never was idle');
}"""

OPEN = f"""async path => {{
  await jupyterapp.commands.execute('docmanager:open', {{ path }});
  return await ({READY})();
}}"""
"""Opens a notebook in a page that shows JupyterLab; returns when its kernel is idle."""

CLOSE = """async () => {
  const widget = jupyterapp.shell.currentWidget;
  await widget?.sessionContext?.shutdown();
  widget?.dispose();
  await jupyterapp.serviceManager.sessions.shutdownAll();
}"""
"""Closes the open notebook without a question, and ends all kernels."""

CHANGE = """async ([i, source]) => {
  const { content } = jupyterapp.shell.currentWidget;
  content.model.sharedModel.cells[i].source = source;
  content.activeCellIndex = i;
  await jupyterapp.commands.execute('notebook:clear-cell-output');
}"""
"""Gives a cell another source, and no output."""

REPLACE = """async sources => {
  const { content } = jupyterapp.shell.currentWidget;
  const book = content.model.sharedModel;
  const before = book.cells.length;
  book.insertCells(0, sources.map(source => ({ cell_type: 'code', source })));
  book.deleteCellRange(sources.length, sources.length + before);
  while (content.widgets.length !== sources.length)
    await new Promise(resolve => setTimeout(resolve, 20));
}"""
"""Replaces all cells of the open notebook, whose kernel goes on."""

RESTART = f"""async () => {{
  await jupyterapp.shell.currentWidget.sessionContext.restartKernel();
  return await ({READY})();
}}"""
"""Restarts the kernel of the open notebook; returns when the kernel is idle."""

RUN = """async i => {
  jupyterapp.shell.currentWidget.content.activeCellIndex = i;
  await jupyterapp.commands.execute('notebook:run-cell');
}"""
"""Runs a cell by its number, and returns when the kernel has."""


@contextmanager
def open_chromium() -> Iterator:
    """Yield Chromium as the system has it, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@contextmanager
def run_lab(root: Path, app: str = "jupyterlab") -> Iterator[str]:
    """Yield the address of a server that serves a folder, with settings of its own.

    Args:
        root: The folder.
        app: ``jupyterlab``, or ``notebook`` for Notebook 7.

    Raises:
        TimeoutError: It did not start within a minute.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    exposed = "LabApp" if app == "jupyterlab" else "JupyterNotebookApp"
    command = [
        *(sys.executable, "-m", app, "--no-browser", "--allow-root"),
        *(f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={root}", "--IdentityProvider.token="),
        *("--ServerApp.ip=127.0.0.1", f"--{exposed}.expose_app_in_browser=True"),
    ]
    with TemporaryDirectory() as own, (root / "server.log").open("w") as log:
        folders = {
            name: f"{own}/{name}"
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        }
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **folders}
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{url}/api/status", server)
            yield url
        finally:
            server.terminate()
            server.wait(10)


def wait_for(url: str, server: subprocess.Popen) -> None:
    """Return when a server answers."""
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"the server at {url} did not start")


def write_notebook(path: Path, *cells: str) -> None:
    """Write a notebook of code cells."""
    import nbformat  # takes two seconds

    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(book, path)


def open_in_lab(page, url: str, name: str) -> None:
    """Open a notebook in JupyterLab, and return when its kernel is idle."""
    page.goto(f"{url}/lab/tree/{name}?reset")
    page.wait_for_function("() => window.jupyterapp")
    page.evaluate(READY)
