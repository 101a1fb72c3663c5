"""Writes since the latest recording, where something counts them on another storage."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.recording.identities import living_tensors


def test_a_write_of_the_running_cell_that_counts_with_another_storage_is_known():
    with record():
        x, z = torch.zeros(2), torch.zeros(2)
        y = x.detach()
    y.data = z.detach()
    with record():
        y.add_(1)
        assert x.tolist() == [0, 0]


def test_a_write_after_the_latest_cell_is_noticed_without_a_look_at_the_heap(
    monkeypatch,
):
    with record():
        made = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(made.parameters())
        inputs = torch.ones(2)

        def train():
            made(inputs).sum().backward()
            optimizer.step()

        train()
    with torch.device("meta"):
        train()
    looks = []
    found = living_tensors.find_living
    monkeypatch.setattr(
        living_tensors, "find_living", lambda: looks.append(1) or found()
    )
    with record():
        train()
    assert not looks
    with pytest.raises(MaterializeError, match="was changed in place outside"):
        materialize(made)
