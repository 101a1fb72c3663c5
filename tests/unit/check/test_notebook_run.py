import json

import pytest

from meta_magic.check.block_run import read_cells
from meta_magic.errors import CheckError

PYTHON = {"kernelspec": {"language": "python", "name": "python3"}}


def code(*lines, tags=()):
    metadata = {"tags": [*tags]}
    return {"cell_type": "code", "metadata": metadata, "source": [*lines]}


@pytest.fixture
def write(tmp_path):
    def write(content, **settings):
        path = tmp_path / "a.ipynb"
        text = content if isinstance(content, str) else json.dumps(content, **settings)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_code_cells_are_numbered_and_others_are_not(write):
    text = {"cell_type": "markdown", "source": ["# Title"]}
    cells = [code("a = 1\n", "b = 2"), text, code("c = 3")]
    first, second = read_cells(write({"cells": cells, "metadata": PYTHON}))
    assert (first.number, first.text) == (1, "a = 1\nb = 2")
    assert (second.number, second.text) == (2, "c = 3")


def test_a_line_of_a_cell_is_found_in_the_file(write):
    cells = [code("x = 1\n", "\n", "z = 'é'"), code("x = 1\n", "y = 2")]
    path = write({"cells": cells, "metadata": PYTHON}, indent=1)
    lines = path.read_text("utf-8").splitlines()
    first, second = read_cells(path)
    assert "z = 'é'" in json.loads(lines[first.find_line(3) - 1].strip(" ,"))
    assert second.find_line(1) > first.find_line(1)
    assert "y = 2" in lines[second.find_line(2) - 1]
    assert second.find_line(None) == second.find_line(1)
    assert second.find_line(9) is None


def test_of_a_file_on_one_line_no_line_is_named(write):
    (cell,) = read_cells(write({"cells": [code("x = 1")], "metadata": PYTHON}))
    assert cell.find_line(1) is None


def test_a_cell_may_be_tagged_to_fail(write):
    (cell,) = read_cells(write({"cells": [code("1 / 0", tags=["raises-exception"])]}))
    assert cell.may_raise


@pytest.mark.parametrize(
    "metadata",
    [
        {"kernelspec": {"language": "R", "name": "ir"}},
        {"language_info": {"name": "julia"}},
    ],
)
def test_a_notebook_of_another_kernel_is_refused(write, metadata):
    with pytest.raises(CheckError, match=r"its kernel runs '(r|julia)', not Python"):
        read_cells(write({"cells": [], "metadata": metadata}))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cells": [{}]}', "no JSON"])
def test_what_is_no_notebook_is_refused(write, content):
    with pytest.raises(CheckError, match="the notebook cannot be read"):
        read_cells(write(content))
