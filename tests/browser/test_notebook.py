"""The report in Notebook 7."""

from tests.browser.lab import READY, run_lab, write_notebook

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
y = model(torch.ones(2, 8))""",
)
WAIT = 60_000


def test_a_cell_has_its_report_in_notebook_7(page, tmp_path, expect, forked_kernels):
    write_notebook(tmp_path / "book.ipynb", *CELLS)
    with run_lab(tmp_path, "notebook") as url:
        page.goto(f"{url}/notebooks/book.ipynb")
        page.wait_for_function("() => window.jupyterapp")
        page.evaluate(READY)
        page.errors.clear()  # Notebook's own, of a setting that it lacks
        page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
        live = page.locator(".mm-live:not(.mm-root)")
        expect(
            live.get_by_role("row").filter(has_text="12 x Linear").first
        ).to_be_visible(timeout=WAIT)
        expect(page.locator(".mm-root")).to_be_hidden()
        live.get_by_role("tab", name="Flow").click()
        expect(live.get_by_role("treeitem").first).to_be_visible()
        page.get_by_role("button", name="Materialize").click()
        expect(page.get_by_text("is now real, on cpu")).to_be_visible(timeout=WAIT)
    assert page.errors == []
