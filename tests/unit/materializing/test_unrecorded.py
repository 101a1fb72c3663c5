"""Modules that no recording knows, or not all of: an error that names the part."""

import copy

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import is_untouched, tensors_of
from tests.unit.materializing.refusals import build, holding, recorded


def test_a_module_of_no_recording_is_an_error_that_names_it_and_the_way_out():
    with torch.device("meta"):
        made = build()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made)
    text = str(caught.value)
    assert "cannot replay '0.weight': it was not built under a recording" in text
    assert "Build the module under %%meta or mm.record()" in text
    assert "init='reset', init='empty' or a checkpoint" in text
    assert is_untouched(made, before)


def test_a_module_that_is_in_part_of_no_recording_is_an_error_that_names_the_part():
    made = recorded()
    made.append(nn.Linear(3, 4, device="meta"))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"'2\.weight': it was not built"):
        materialize(made)
    assert is_untouched(made, before)


def test_a_copy_made_outside_of_a_recording_is_an_error():
    with pytest.raises(MaterializeError, match=r"'0\.weight': it was not built"):
        materialize(copy.deepcopy(recorded()))


def test_a_cast_outside_of_a_recording_is_an_error():
    with pytest.raises(MaterializeError, match=r"'0\.weight': it was not built"):
        materialize(recorded().half())


def test_a_forward_outside_that_changes_statistics_is_an_error_that_names_them():
    made = recorded()
    made(torch.ones(4, 2, device="meta"))
    with pytest.raises(MaterializeError, match="was changed in place outside"):
        materialize(made)


def test_a_module_of_the_block_that_still_runs_is_an_error():
    with record():
        made = build()
        with pytest.raises(MaterializeError, match="not built under a recording"):
            materialize(made)


def test_values_that_came_from_meta_tensors_outside_are_an_error_that_says_so():
    outside = torch.ones(3, device="meta")
    with record():
        made = holding(outside * 2)
    with pytest.raises(MaterializeError, match="came from outside of the recording"):
        materialize(made)


def test_a_half_real_module_replays_what_is_on_meta():
    made = recorded()
    made[0].weight = nn.Parameter(torch.ones(3, 2))
    report = materialize(made)
    assert report.names("kept") == ("0.weight",)


def test_a_half_real_module_that_was_not_recorded_is_an_error_that_names_what_is_not():
    made = nn.Linear(2, 3)
    made.bias = nn.Parameter(torch.empty(3, device="meta"))
    weight = made.weight.detach().clone()
    with pytest.raises(MaterializeError, match="'bias'"):
        materialize(made)
    assert torch.equal(made.weight, weight)
