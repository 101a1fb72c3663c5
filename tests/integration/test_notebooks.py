"""Every notebook runs from top to bottom, and is committed without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

BOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))


def test_there_are_notebooks():
    assert BOOKS


@pytest.mark.kernel
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path):
    book = nbformat.read(path, as_version=4)
    NotebookClient(
        book, timeout=300, resources={"metadata": {"path": path.parent}}
    ).execute()
    shown = [
        output["data"]["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert any("70.6 B" in html for html in shown)
    assert not any("<script" in html for html in shown)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    book = nbformat.read(path, as_version=4)
    assert [cell.outputs for cell in book.cells if cell.get("outputs")] == []
