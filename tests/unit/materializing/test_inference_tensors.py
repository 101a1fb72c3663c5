"""Of tensors made in inference mode torch counts no writes: a note says so."""

import torch

from meta_magic import materialize, record
from tests.unit.materializing.modules import register


def test_that_nobody_counts_the_writes_of_an_inference_tensor_is_said():
    with record(), torch.inference_mode():
        x = torch.zeros(3)
    with record() as trace:
        y = x * 2
    assert [note.kind for note in trace.notes] == ["inference"]
    assert any("inference mode" in note for note in materialize(register(y)).notes)


def test_it_is_said_where_such_a_tensor_is_made_real_too():
    with record(), torch.inference_mode():
        x = torch.zeros(3)
    (note,) = materialize(register(x)).notes
    assert "inference mode" in note


def test_a_view_outside_of_inference_mode_of_what_was_made_there_is_looked_at():
    with record():
        with torch.inference_mode():
            x = torch.multinomial(torch.ones(5), 3)
        view, other = x.view(torch.uint8), torch.zeros(2)
        other.data.add_(1)
    assert view.shape == (24,)
