"""Notebooks with ``%%meta`` cells, executed and saved by the usual tools."""

import re

import pytest
from jupyter_client import AsyncKernelManager

from tests.integration.kernels import TIMEOUT, kernel_environment

pytestmark = pytest.mark.kernel

START = "%load_ext meta_magic\nimport torch\nfrom torch import nn"
MODEL = "%%meta\nmodel = nn.Linear(2, 3)\nmodel(torch.ones(4, 2)).shape"
FAILING = "%%meta\ntorch.ones(2)\n1 / 0"


def build_notebook(*sources, tags=()):
    import nbformat  # takes two seconds

    cells = [nbformat.v4.new_code_cell(source) for source in (START, *sources)]
    cells[1].metadata["tags"] = list(tags)
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def execute(tmp_path, forked_kernels):
    from nbclient import NotebookClient

    def execute_notebook(notebook, **options):
        manager = AsyncKernelManager()
        client = NotebookClient(notebook, km=manager, timeout=TIMEOUT, **options)
        client.execute(env=kernel_environment(tmp_path))
        return notebook.cells[1].outputs

    return execute_notebook


def test_a_saved_notebook_has_the_report_and_the_value(execute):
    report, panel, value = execute(build_notebook(MODEL))
    assert sorted(report.data) == ["text/html", "text/plain"]
    assert report.data["text/plain"].startswith("9 parameters, 36 bytes · ")
    assert panel.data["text/plain"] == "Materialize: run the cell again"
    assert value.data["text/plain"] == "torch.Size([4, 3])"
    # One script that asks for nothing, and a tree for where scripts are forbidden.
    html = report.data["text/html"]
    assert html.count("<script") == html.count("</script>") == 1
    assert not re.search(r"src=|href=|@import|url\(", html)
    assert len(html) < 400_000
    html = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    assert "model: Linear" in html


def test_a_cell_that_may_fail_is_saved_with_report_and_error(execute):
    outputs = execute(build_notebook(FAILING), allow_errors=True)
    assert [output.output_type for output in outputs] == [
        "error",
        *("display_data", "display_data"),
    ]
