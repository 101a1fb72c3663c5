"""A block runs again in the contexts that it had, with torch told what it was told."""

import pytest
import torch
from torch import nn

import meta_magic as mm
from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.trial import ask_trial


def compute(weight):
    """Keep an array for the backward pass, if there is to be one."""
    return (weight * 2).exp().exp().sum()


def list_dtypes(trace, _variables=None):
    made = [call.outputs[0].dtype for call in trace.ops]
    return [str(dtype) for dtype in made], trace.memory.peak_nbytes


def test_contexts_beside_the_recording_are_entered_again():
    weight = nn.Parameter(torch.ones(2**20))
    with torch.no_grad(), record() as before:
        compute(weight)
    with mm.record(as_device="cpu") as after, torch.no_grad():
        compute(weight)
    with torch.autocast("cpu"), record() as between, torch.no_grad():
        compute(weight @ torch.ones(2**20))
    with record() as keeping:
        compute(weight)
    for trace in (before, after, between, keeping):
        assert ask_trial(trace, list_dtypes) == list_dtypes(trace)
    assert "torch.bfloat16" in list_dtypes(between)[0]
    assert before.memory.peak_nbytes < keeping.memory.peak_nbytes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_around_the_recording_are_as_they_were(mode):
    weight = nn.Parameter(torch.ones(2**20))
    with mode():
        with record() as without:
            compute(weight)
        with torch.autocast("cpu"):
            with record() as cast:
                torch.ones(2, 2) @ torch.ones(2, 2)
            assert ask_trial(without, list_dtypes) == list_dtypes(without)
    with record() as keeping:
        compute(weight)
    for trace in (without, cast, keeping):
        assert ask_trial(trace, list_dtypes) == list_dtypes(trace)
        with mode(), torch.autocast("cpu", torch.float16):
            assert ask_trial(trace, list_dtypes) == list_dtypes(trace)


def test_the_default_dtype_is_as_it_was():
    with record() as trace:
        torch.ones(2)
    torch.set_default_dtype(torch.float64)
    try:
        assert ask_trial(trace, list_dtypes) == (["torch.float32"], 8)
    finally:
        torch.set_default_dtype(torch.float32)


def make_recording():
    return record()


def test_a_recording_that_cannot_be_told_from_other_contexts_is_named():
    with make_recording() as trace, torch.no_grad():
        torch.ones(2)
    with pytest.raises(TrialError, match="which of its contexts"):
        ask_trial(trace, list_dtypes)
