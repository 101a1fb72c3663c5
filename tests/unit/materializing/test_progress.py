"""The progress that materialize() tells."""

import pytest
from torch import nn

from meta_magic import materialize
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import build_twice


@pytest.mark.parametrize("init", [*INITS, "checkpoint"])
def test_progress_never_goes_back_and_ends_at_one(init):
    real, made, _, _ = build_twice(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    fractions = []
    source = dict(real.state_dict()) if init == "checkpoint" else init
    materialize(made, init=source, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] == 1


def test_progress_ends_at_one_if_nothing_was_to_be_done():
    fractions = []
    materialize(nn.Linear(3, 4), progress=fractions.append)
    assert fractions[-1:] == [1]


def test_progress_ends_at_one_for_two_recordings():
    _, first, _, _ = build_twice(lambda: nn.Linear(2, 3))
    _, second, _, _ = build_twice(lambda: nn.Linear(3, 2))
    fractions = []
    materialize(nn.Sequential(first, second), progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
