"""Real tensors of a cell: left alone, or said to be of unknown values."""

import numpy as np
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import build_twice
from tests.unit.materializing.modules import holding


def test_a_real_tensor_that_was_not_drawn_is_not_touched():
    with record():
        made = nn.Linear(2, 2)
        with torch.device("cpu"):
            made.register_buffer("pos", torch.zeros(4))
        made.pos.numpy()[:] = 7
    report = materialize(made)
    assert made.pos.tolist() == [7] * 4
    assert report.names("kept") == ("pos",)


def test_a_real_tensor_from_a_file_is_no_hindrance(tmp_path):
    np.arange(4, dtype=np.float32).tofile(tmp_path / "values")
    with record():
        made = nn.Linear(2, 2)
        with torch.device("cpu"):
            values = torch.from_file(str(tmp_path / "values"), size=4)
        made.register_buffer("values", values)
    materialize(made)
    assert made.values.tolist() == [0, 1, 2, 3]


def test_a_real_tensor_written_by_numpy_is_said():
    with record():
        with torch.device("cpu"):
            values = torch.zeros(3)
        values.numpy()[:] = [1, 2, 3]
        made = holding(made=torch.empty(3).copy_(values))
    notes = materialize(made).notes
    assert any("written unseen by torch, as numpy does it" in note for note in notes)


def test_a_real_tensor_that_torch_alone_wrote_is_not_said():
    with record():
        with torch.device("cpu"):
            values = torch.zeros(3)
            values += 1
        made = holding(made=torch.empty(3).copy_(values))
    assert materialize(made).notes == ()
    assert made.made.tolist() == [1, 1, 1]


def test_a_module_with_a_real_sparse_tensor_can_be_materialized():
    real, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    made.register_buffer("sparse", torch.eye(3).to_sparse())
    assert materialize(made).names("kept") == ("sparse",)
    assert torch.equal(made.weight, real.weight)
