"""A recording inside of another."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice


def recorded_linear():
    with record():
        return nn.Linear(3, 3)


def test_a_module_of_a_nested_recording_has_its_values():
    torch.manual_seed(0)
    real = nn.Linear(3, 3)
    torch.manual_seed(0)
    with record():
        made = recorded_linear()
    materialize(made)
    assert_bit_equal(made, real)


def test_a_recording_makes_no_difference_to_the_draws_of_one_around_it():
    def build():
        first = nn.Linear(2, 2)
        return nn.Sequential(first, recorded_linear(), nn.Linear(3, 3))

    real, made, _, _ = build_twice(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3), nn.Linear(3, 3))
    )
    torch.manual_seed(0)
    with record():
        made = build()
    materialize(made)
    assert_bit_equal(made, real)


def test_a_nested_recording_is_refused_while_the_one_around_it_runs():
    with record():
        nn.Linear(2, 2)
        made = recorded_linear()
        with pytest.raises(MaterializeError, match="recording around this one"):
            materialize(made)


def test_a_nested_recording_records_its_own_part():
    with record() as outer:
        x = torch.ones(2)
        with record() as inner:
            y = x.sin()
        y.cos()
    assert [call.op for call in inner.ops] == ["aten.sin.default"]
    assert [call.op for call in outer.ops] == [
        "aten.ones.default", "aten.sin.default", "aten.cos.default",
    ]  # fmt: skip


def test_nested_recordings_describe_the_same_module_calls():
    with record() as outer:
        model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        with record() as inner:
            model(torch.randn(3, 4))
    expected = [(m.module, m.class_name.rpartition(".")[2]) for m in outer.module_calls]
    assert expected == [("", "Sequential"), ("0", "Linear"), ("1", "ReLU")]
    assert [
        (m.module, m.class_name.rpartition(".")[2]) for m in inner.module_calls
    ] == expected
