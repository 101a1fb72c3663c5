"""What is known of values without a replay."""

import torch
from torch.nn import functional as F

from meta_magic import record
from meta_magic.recording.rows.known_values import read_program


def test_what_is_known_of_an_earlier_block_is_found_once():
    with record(as_device="cpu") as trace:
        made = torch.arange(10)
    known = []
    for _ in range(2):
        with record(as_device="cpu"):
            F.embedding(made[None], torch.ones(10, 2))
        known.append(read_program(trace.program))
    assert known[0] is known[1]
    assert len(known[0].row_by_storage) == 1
