"""Loading and unloading the extension, also without torch or with a newer one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meta_magic import load_ipython_extension

REPOSITORY = Path(__file__).parents[3]
CELLS = ["%load_ext meta_magic\nimport torch", "%%meta\nx = torch.ones(2)\nx.is_meta"]


def count_installed(shell) -> dict[str, int]:
    """Return how many things there are in each place where extensions put some."""
    return {
        "configurables": len(shell.configurables),
        "matchers": len(shell.Completer.custom_matchers),
        "transformers": len(shell.input_transformers_cleanup),
        "transformers after": len(shell.input_transformers_post),
        "magics": len(shell.magics_manager.registry),
        "line magics": len(shell.magics_manager.magics["line"]),
        "cell magics": len(shell.magics_manager.magics["cell"]),
        "ast": len(shell.ast_transformers),
        **{event: len(found) for event, found in shell.events.callbacks.items()},
    }


@pytest.fixture
def loaded(shell):
    return count_installed(shell)


def test_loading_adds_one_of_each(shell, loaded):
    shell.run_cell("%unload_ext meta_magic")
    bare = count_installed(shell)
    shell.run_cell("%load_ext meta_magic")
    added = {name for name in loaded if loaded[name] - bare[name] == 1}
    assert added == {"configurables", "matchers", "transformers", "magics",
                     "line magics", "pre_run_cell", "post_run_cell"}  # fmt: skip
    assert loaded["cell magics"] - bare["cell magics"] == len(["meta", "exercise"])
    assert sum(loaded.values()) - sum(bare.values()) == len(added) + 2


def test_loading_twice_is_as_loading_once(shell, loaded):
    shell.run_cell("%load_ext meta_magic")
    load_ipython_extension(shell)
    assert count_installed(shell) == loaded


def test_unloading_gives_back_the_debugger_of_the_shell(shell):
    loaded = shell.InteractiveTB.debugger_cls
    shell.run_cell("%unload_ext meta_magic")
    assert shell.InteractiveTB.debugger_cls is shell.debugger_cls is loaded.__base__


def test_unloading_leaves_nothing_of_ours(shell):
    shell.run_cell("%unload_ext meta_magic")
    everything = [
        *shell.configurables,
        *shell.Completer.custom_matchers,
        *shell.input_transformers_cleanup,
        *(callback for found in shell.events.callbacks.values() for callback in found),
        *shell.magics_manager.registry.values(),
    ]
    homes = [getattr(thing, "__module__", "") for thing in everything]
    assert not any(home.startswith("meta_magic") for home in homes)
    assert not any("meta_magic" in name for name in vars(shell))
    shell.run_cell("%load_ext meta_magic")


@pytest.mark.parametrize("name", ["meta", "exercise"])
def test_unloading_takes_a_magic_away(name, shell, capsys):
    shell.run_cell("%unload_ext meta_magic")
    shell.run_cell(f"%%{name}\n1")
    assert f"Cell magic `%%{name}` not found" in capsys.readouterr().err
    shell.run_cell("%load_ext meta_magic")


def test_the_newest_trace_survives_a_reload(shell):
    shell.run_cell("%%meta\ntorch.ones(2)")
    shell.run_cell("%reload_ext meta_magic")
    assert len(shell.user_ns["_meta"].ops) == 1


# Fresh processes.


def run_ipython(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor",
         "--HistoryManager.enabled=False", "--ipython-dir", str(directory), *arguments],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_an_ipy_script_whose_cell_fails_fails(tmp_path, forked_pythons):
    script = tmp_path / "cell.ipy"
    script.write_text("%%meta\nimport torch\n1 / 0\n")
    run = run_ipython(tmp_path, "--ext=meta_magic", str(script))
    assert run.returncode == 1


def test_run_runs_the_meta_cells_of_a_notebook(shell, tmp_path):
    cells = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [],
         "execution_count": None} for source in CELLS
    ]  # fmt: skip
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path = tmp_path / "cells.ipynb"
    path.write_text(json.dumps(notebook))
    shell.run_line_magic("run", str(path))
    assert shell.user_ns["x"].is_meta


def test_loading_imports_nothing_heavy(tmp_path):
    heavy = {"torch", "pandas", "plotly", "ipywidgets", "anywidget", "numpy"}
    command = f"import sys; print({heavy!r} & set(sys.modules))"
    run = run_ipython(tmp_path, "--ext=meta_magic", "-c", command)
    assert run.stdout == "set()\n"


def test_a_cell_that_only_constructs_does_not_import_dynamo_or_plotly(tmp_path):
    cell = "%%meta -q\nfrom torch import nn\nimport sys\nmodel = nn.Linear(2, 3)\n"
    view = "import meta_magic.view.charts\n"
    command = f"{cell}{view}print({{'torch._dynamo', 'plotly'}} & {{*sys.modules}})"
    run = run_ipython(tmp_path, "--ext=meta_magic", "-c", command)
    assert run.stdout == "set()\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts the metadata of another torch before those of ours."""

    def put(version):
        home = tmp_path / f"torch-{version}.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return put


@pytest.mark.parametrize("version", ["2.99.0", "3.0.0+cu132", "2.100.0a0+git1a2b"])
def test_a_newer_torch_gets_one_line_and_works(shell, capsys, install, version):
    install(version)
    shell.run_cell("%reload_ext meta_magic").raise_error()
    said = capsys.readouterr()
    line = "meta_magic was tested with torch up to 2.15; this is "
    assert (said.out, said.err) == (f"{line}{version}.\n", "")
    assert shell.run_cell("%%meta -q\ntorch.ones(2).is_meta").result


@pytest.mark.parametrize("version", ["2.15.1", "2.9.0"])
def test_of_a_torch_that_is_no_newer_nothing_is_said(shell, capsys, install, version):
    install(version)
    shell.run_cell("%reload_ext meta_magic").raise_error()
    assert capsys.readouterr().out == ""


PROGRAM = """
import sys
sys.modules["torch"] = None  # as for a package that is not installed
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext meta_magic").raise_error()
shell.run_cell("%%meta\\nx = 1")
print("ran:", "x" in shell.user_ns)
"""


def test_a_cell_says_in_one_sentence_how_to_install_torch():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    message = "UsageError: %%meta needs PyTorch, which is not installed: run `pip "
    assert run.stderr.strip() == f"{message}install torch`"
    assert run.stdout.strip() == "ran: False"
