"""What the report of materialize() counts, names and says."""

from torch import nn

from meta_magic import materialize
from tests.unit.eager import build_twice
from tests.unit.materializing.modules import Masked, Raw, Tied


def test_the_report_counts_the_bytes_of_storages_once():
    _, made, _, _ = build_twice(Tied)
    assert materialize(made).nbytes == 10 * 4 * 4


def test_the_report_names_kinds():
    _, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {t.name: t.kind for t in report.tensors} == {
        "linear.weight": "parameter",
        "linear.bias": "parameter",
        "mask": "buffer",
        "steps": "buffer",
        "scale": "attribute",
        "listed[0]": "attribute",
        "listed[1]": "attribute",
        "mapped['deep'][0]": "attribute",
    }


def test_the_report_reads_as_text():
    _, made, _, _ = build_twice(Tied)
    lines = str(materialize(made)).splitlines()
    assert lines[0].startswith("Tied on cpu: 2 tensors, 160 bytes, in ")
    assert lines[1:] == [
        "  replay: 2 (embed.weight, head.weight)",
        "  ties kept: 1 (head.weight)",
    ]


def test_the_report_shouts_what_is_uninitialized():
    _, made, _, _ = build_twice(Raw)
    assert "  UNINITIALIZED: 1 (weight)" in str(materialize(made)).splitlines()


def test_reports_of_two_equal_runs_are_equal():
    first, second = (
        materialize(build_twice(lambda: nn.Linear(3, 4))[1]) for _ in range(2)
    )
    assert first == second


def test_the_peak_of_a_linear_is_its_own_size():
    _, made, _, _ = build_twice(lambda: nn.Linear(100, 50))
    assert materialize(made).peak_nbytes == (100 * 50 + 50) * 4


def test_the_report_counts_tensors_of_a_real_module():
    report = materialize(nn.Linear(3, 4))
    assert (report.nbytes, report.n_operators) == (0, 0)
