"""How notebooks and scripts become cells."""

import json

from tests.conformance.script_cells import find_files, read_cells, record


def write_script(folder, text):
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_code_cells_of_a_notebook_are_its_cells(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["x = 1\n", "x"]},
        {"cell_type": "code", "source": []},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert read_cells(path) == ["x = 1\nx"]


def test_a_script_is_one_cell(tmp_path):
    path = write_script(tmp_path, "x = 1\n\n\ndef f():\n    pass\n")
    assert read_cells(path) == ["x = 1\n\n\ndef f():\n    pass"]


def test_a_script_is_divided_at_its_marks(tmp_path):
    path = write_script(tmp_path, f"x = 1\n# %% next\ny = 2\n{'#' * 70}\nz = 3\n")
    assert read_cells(path) == ["x = 1", "y = 2", "z = 3"]


def test_a_script_is_split_at_blank_lines_of_its_top_level(tmp_path):
    function = "@decorate\ndef f():\n    y = 1\n\n    return y\nf()\n"
    text = f'x = """\n\n"""\n\n\n{function}\nz = 3\n'
    assert read_cells(write_script(tmp_path, text), split=True) == [
        'x = """\n\n"""\n\n',
        function,
        "z = 3",
    ]


def test_what_installs_or_runs_a_shell_is_left_out_and_lines_stay(tmp_path):
    path = write_script(tmp_path, "if True:\n    !pip install x\n%pip install y\nz = 1")
    assert read_cells(path) == ["if True:\n    pass\npass\nz = 1"]


def test_a_cell_of_nothing_but_an_install_is_no_cell(tmp_path):
    assert read_cells(write_script(tmp_path, "# first\n!pip install x\n")) == []


def test_meta_stands_in_front_of_a_cell():
    assert record("x = 1") == "%%meta\nx = 1"


def test_a_cell_with_a_magic_of_its_own_stays_as_it_is():
    assert record("%%capture\nx = 1") == "%%capture\nx = 1"


def test_meta_stands_within_a_cell_that_is_timed():
    assert record("%%time\nx = 1") == "%%time\n%%meta\nx = 1"
    assert record("%%time\n%%capture\nx = 1") == "%%time\n%%capture\nx = 1"


def test_notebooks_and_scripts_below_a_folder_are_found(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.ipynb").touch()
    (tmp_path / "b.py").touch()
    (tmp_path / "c.txt").touch()
    assert find_files(tmp_path) == [tmp_path / "b.py", tmp_path / "below" / "a.ipynb"]
