"""What recorded ranks keep for each other of what they cannot save."""

from pathlib import Path

import torch

from meta_magic.recording.intercept.world.checkpoints import Skeletons
from meta_magic.trace.world import Peers


def test_two_ranks_that_keep_one_file_at_once(tmp_path, monkeypatch):
    peers = Peers(str(tmp_path), (0, 1))
    first, second = (Skeletons(rank, peers, saver=None) for rank in (0, 1))
    value, plain = {"w": torch.ones(3, 2)}, Path.rename

    def rename(path, target):
        monkeypatch.setattr(Path, "rename", plain)
        second.keep("model.pt", value)
        return path.rename(target)

    monkeypatch.setattr(Path, "rename", rename)
    first.keep("model.pt", value)
    assert first.take("model.pt")["w"].shape == (3, 2)
    assert second.take("model.pt")["w"].shape == (3, 2)
