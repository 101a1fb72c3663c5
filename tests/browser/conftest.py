"""A real Chromium, and a real JupyterLab for it to open."""

import base64
import json

import pytest

from meta_magic.view.payload import pack
from meta_magic.view.scripts import join_scripts, join_styles
from tests.browser.lab import (
    CHROMIUM,
    open_chromium,
    open_in_lab,
    run_lab,
    write_notebook,
)
from tests.browser.served import ADDRESS, PAGE, TRAITS


@pytest.fixture(scope="module")
def browser():
    """Chromium, as the system has it.

    Ends with the module: while Playwright runs, no other test can run a coroutine.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def page(browser):
    """An empty page; its script errors are in ``errors``, logged ones in ``logged``."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.errors, page.logged = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda m: m.type == "error" and page.logged.append(m.text))
    yield page
    page.close()


@pytest.fixture
def expect():
    """Playwright's assertions, which wait for what is seen."""
    from playwright.sync_api import expect

    return expect


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Address and folder of a JupyterLab server."""
    root = tmp_path_factory.mktemp("lab")
    with run_lab(root) as url:
        yield url, root


@pytest.fixture
def open_notebook(lab, page):
    """Open a notebook of the given cells; the page, when its kernel is idle."""
    url, root = lab

    def open_cells(name, *cells):
        write_notebook(root / name, *cells)
        open_in_lab(page, url, name)
        return page

    yield open_cells
    page.evaluate("() => jupyterapp.shell.currentWidget?.sessionContext.shutdown()")


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
