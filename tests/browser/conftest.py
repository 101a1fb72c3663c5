"""A real Chromium, and a real JupyterLab for it to open."""

import base64
import json
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from meta_magic.view.payload import pack
from meta_magic.view.scripts import join_scripts, join_styles
from tests.browser.lab import (
    CHROMIUM,
    CLOSE,
    OPEN,
    REPLACE,
    RESTART,
    open_chromium,
    open_in_lab,
    run_lab,
    write_notebook,
)
from tests.browser.served import ADDRESS, PAGE, TRAITS

BROWSER = ExitStack()
OPENED = {}
"""Chromium, and its page that shows JupyterLab, if they are open."""


@pytest.fixture(scope="module")
def browser():
    """Chromium, as the system has it, for all tests of this folder."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    if "browser" not in OPENED:
        OPENED["browser"] = BROWSER.enter_context(open_chromium())
    return OPENED["browser"]


def pytest_collection_modifyitems(items):
    """All tests of this folder drive a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """End Chromium: while Playwright runs, no other test can run a coroutine."""
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        OPENED.clear()
        BROWSER.close()


def open_page(browser):
    """Yield an empty page, with its errors: ``errors`` of scripts, ``logged`` ones."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.errors, page.logged = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda m: m.type == "error" and page.logged.append(m.text))
    yield page
    page.close()


page = pytest.fixture(open_page)


@pytest.fixture(scope="module")
def lab_page(browser):
    """One page for all files of tests: JupyterLab takes seconds to load."""
    if "lab" not in OPENED:
        OPENED["lab"] = BROWSER.enter_context(contextmanager(open_page)(browser))
    return OPENED["lab"]


@pytest.fixture
def expect():
    """Playwright's assertions, which wait for what is seen."""
    from playwright.sync_api import expect

    return expect


@pytest.fixture(scope="session")
def lab(tmp_path_factory, forked_kernels):
    """Address and folder of a JupyterLab server."""
    root = tmp_path_factory.mktemp("lab")
    with run_lab(root) as url:
        yield url, root


def open_notebooks(lab, lab_page):
    """Open a notebook of the given cells; the page, when its kernel is idle."""
    url, root = lab
    lab_page.errors.clear()
    lab_page.logged.clear()

    def open_cells(name, *cells):
        write_notebook(root / name, *cells)
        if lab_page.evaluate("() => Boolean(window.jupyterapp)"):
            lab_page.evaluate(OPEN, name)
        else:
            open_in_lab(lab_page, url, name)
        return lab_page

    yield open_cells
    lab_page.evaluate(CLOSE)


open_notebook = pytest.fixture(open_notebooks)
open_shared_notebook = pytest.fixture(open_notebooks, scope="module")


@pytest.fixture(scope="module")
def shared_notebook(open_shared_notebook):
    """The page of a notebook; its kernel serves all tests of a file."""
    return open_shared_notebook("shared.ipynb", "pass")


@pytest.fixture
def show_cells(shared_notebook):
    """Replace the cells of the shared notebook, or its kernel, too; the page."""

    def replace(*cells, in_new_kernel=False):
        shared_notebook.evaluate(REPLACE, cells)
        if in_new_kernel:
            shared_notebook.evaluate(RESTART)
        # JupyterLab logs the requests that a restart cancels.
        shared_notebook.errors.clear()
        shared_notebook.logged.clear()
        return shared_notebook

    return replace


@pytest.fixture
def serve(page):
    """Show the live report of a trace; its page."""

    def show(trace, **traits):
        body = PAGE % {
            "styles": join_styles("live"),
            "scripts": join_scripts("live"),
            "payload": base64.b64encode(pack(trace)).decode(),
            "traits": json.dumps(TRAITS | traits),
        }
        page.route(
            ADDRESS, lambda route: route.fulfill(body=body, content_type="text/html")
        )
        page.goto(ADDRESS)
        page.wait_for_function("() => window.ready")
        return page

    yield show
    assert (page.errors, page.logged) == ([], [])
