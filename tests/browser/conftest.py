"""A real Chromium, and a real JupyterLab for it to open."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

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


@pytest.fixture(scope="module")
def browser():
    """Chromium, as the system has it.

    Ends with the module: while Playwright runs, no other test can run a coroutine.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """An empty page; its script errors are in ``errors``, logged ones in ``logged``."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.errors, page.logged = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda m: m.type == "error" and page.logged.append(m.text))
    yield page
    page.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Address and folder of a JupyterLab server."""
    root = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {
        name: str(tmp_path_factory.mktemp(name.lower()))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *(f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={root}", "--IdentityProvider.token="),
        *("--ServerApp.ip=127.0.0.1", "--LabApp.expose_app_in_browser=True"),
    ]
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **folders}
        )
    url = f"http://127.0.0.1:{port}"
    wait_for(f"{url}/api/status", server)
    yield url, root
    server.terminate()
    server.wait(10)


def wait_for(url, server):
    """Return when a server answers."""
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("JupyterLab did not start")


@pytest.fixture
def open_notebook(lab, page):
    """Open a notebook of the given cells; the page, when its kernel is idle."""
    url, root = lab

    def open_cells(name, *cells):
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, root / name)
        page.goto(f"{url}/lab/tree/{name}?reset")
        page.wait_for_function("() => window.jupyterapp")
        page.evaluate(READY)
        return page

    yield open_cells
    page.evaluate("() => jupyterapp.shell.currentWidget?.sessionContext.shutdown()")
