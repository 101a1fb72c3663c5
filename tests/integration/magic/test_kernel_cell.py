"""``%%meta`` in a real kernel: values, reports, requests."""

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]


def test_out_has_the_number_of_the_cell(kernel):
    run = kernel.run("%%meta\n41 + 1")
    number = run.content["execution_count"]
    assert kernel.run(f"Out[{number}]").value == "42"


def test_the_report_stands_above_the_value(kernel):
    run = kernel.run("%%meta\ntorch.ones(2).shape")
    kinds = [kind for kind, _ in run.messages if kind == "display_data"]
    assert kinds == ["display_data"] * 2
    assert [sorted(output["data"]) for output in run.plain_outputs] == [
        ["text/html", "text/plain"],
        ["text/plain"],
    ]


def test_displays_of_the_cell_come_before_the_report(kernel):
    run = kernel.run("%%meta\nfor i in range(2): display(i)")
    assert [output["data"]["text/plain"] for output in run.outputs[:2]] == ["0", "1"]
    assert len(run.reports) == 1
    assert len(run.plain_outputs) == 3


def test_a_silent_request_fails_with_its_error(kernel):
    assert kernel.run("%%meta\n1 / 0", silent=True).content["ename"] == (
        "ZeroDivisionError"
    )


def test_a_request_without_history_after_another_cell_marks_its_own_line(kernel):
    kernel.run("%%meta\n1")
    run = kernel.run("%%meta\n\n\n\n1 / 0", store_history=False)
    assert run.marked_lines == [5]


def test_input_is_refused_as_in_any_cell(kernel):
    run = kernel.run("%%meta\ninput('name')")
    assert run.content["ename"] == "StdinNotImplementedError"
