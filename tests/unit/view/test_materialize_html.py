"""The report of a materialization as HTML."""

from dataclasses import replace

import torch

from meta_magic.materializing.report import FilledTensor, MaterializeReport
from meta_magic.view.materialize_html import render_materialize_report
from tests.unit.view.panels import SCRIPT
from tests.unit.view.tags import Tags


def filled(name, filled_by="replay", tied_to=None):
    return FilledTensor(
        name=name,
        kind="parameter",
        filled_by=filled_by,
        shape=(2, 3),
        dtype=torch.bfloat16,
        tied_to=tied_to,
    )


def report_on(*tensors, module="Model", notes=()):
    return MaterializeReport(
        module=module,
        device=torch.device("cpu"),
        tensors=tensors,
        nbytes=4096,
        peak_nbytes=8192,
        n_operators=7,
        seconds=1.5,
        notes=notes,
    )


def test_the_report_has_a_row_for_each_tensor():
    tags = Tags(render_materialize_report(report_on(filled("a"), filled("b", "kept"))))
    assert tags.cells[0] == "Model on cpu · 1 tensor, 4.0 KiB · 1.50 s"
    assert tags.cells[1] == "1 by replay, 1 kept as before"
    assert tags.cells[9:] == [
        *("a", "parameter", "(2, 3)", "bfloat16", "12 bytes", "replay"),
        *("b", "parameter", "(2, 3)", "bfloat16", "12 bytes", "kept"),
    ]


def test_what_is_uninitialized_comes_first_and_in_red():
    html = render_materialize_report(
        report_on(filled("good"), filled("bad", "uninitialized"))
    )
    cells = Tags(html).cells
    assert cells.index("bad") < cells.index("good")
    assert "UNINITIALIZED: 1 tensor holds whatever was in memory before" in cells
    assert '<tr class="mm-danger"><th scope="row">bad' in html
    assert html.count('class="mm-danger"') == 2


def test_what_is_left_on_meta_stands_in_red_and_the_rest_of_it_in_a_note():
    report = report_on(filled("good"), filled("state", "left on meta"))
    html = render_materialize_report(replace(report, on_meta=("batch", SCRIPT)))
    cells = Tags(html).cells
    assert "LEFT ON META: 1 tensor holds no values, and what uses it fails" in cells
    assert '<tr class="mm-danger"><th scope="row">state' in html
    assert "Model on cpu · 1 tensor, 4.0 KiB · 1.50 s" in cells
    assert any(cell.startswith("still on meta: 2 (batch, <img") for cell in cells)
    assert "img" not in Tags(html).tags


def test_a_long_table_is_folded_and_a_very_long_one_is_cut():
    short = render_materialize_report(report_on(*map(filled, "abc")))
    assert "<details open>" in short
    many = (filled(f"t{i}") for i in range(1003))
    html = render_materialize_report(report_on(*many))
    assert "<details>" in html
    assert "… 3 more" in html
    assert "t999" in html
    assert "t1000" not in html


def test_hostile_names_are_text_in_the_report():
    html = render_materialize_report(
        report_on(filled(SCRIPT, tied_to=SCRIPT), module=SCRIPT, notes=(SCRIPT,))
    )
    tags = Tags(html)
    assert "img" not in tags.tags
    assert sum(SCRIPT in cell for cell in tags.cells) == 4
