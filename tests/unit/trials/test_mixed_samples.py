"""The first call that mixes the samples of a batch, by replays with other samples."""

import pytest
import torch
from torch import nn

from meta_magic import record


def find_notes(trace):
    return [note for note in trace.notes if note.kind == "samples"]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("first", "n"), [(False, 1), (True, 0)])
def test_attention_over_the_batch_mixes_its_samples(first, n):
    with record(check="batch=B") as trace:
        B = 4
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=first)
        nn.TransformerEncoder(layer, 1)(torch.randn(B, 7, 16))
    notes = find_notes(trace)
    assert len(notes) == n
    for note in notes:
        assert note.text.startswith("multi_head_attention_forward mixes samples")
        assert note.line == trace.module_calls[0].line


def test_a_recurrent_layer_without_batch_first_mixes_samples():
    with record(check="batch=B") as trace:
        B = 4
        nn.LSTM(16, 8)(torch.randn(B, 7, 16))
    assert [note.text[:18] for note in find_notes(trace)] == ["lstm mixes samples"]


def test_a_softmax_over_the_batch_behind_a_convolution_is_found():
    with record(check="batch=B=5") as trace:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Softmax(0))
        net(torch.randn(5, 3, 8, 8))
    (note,) = find_notes(trace)
    assert note.text == (
        "softmax mixes samples of the batch: 720 of 720 elements of (5, 144) depend on "
        "two of them"
    )


@pytest.mark.parametrize(("is_training", "n"), [(True, 1), (False, 0)])
def test_after_batch_normalization_in_training_samples_are_not_followed(is_training, n):
    with record(check="batch=B") as trace:
        B = 6
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        net.train(is_training)(torch.randn(B, 3))
    notes = find_notes(trace)
    assert len(notes) == n
    assert all("on purpose while a model is trained" in note.text for note in notes)


def test_a_batch_that_is_not_there_is_a_note_and_another_text_is_refused():
    with record(check="batch=Q") as trace:
        nn.Linear(3, 4)(torch.ones(2, 3))
    (note,) = find_notes(trace)
    assert "is not known: the block has no name 'Q'" in note.text
    with pytest.raises(ValueError, match="batch=NAME as in batch=B, not 'rows=B'"):
        record(check="rows=B")
