"""Values that a recording lacks because plain code made a tensor between cells."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import MissingValueError


def make_model():
    with record():
        return nn.GroupNorm(2, 4)


def call_between_recordings():
    """Return what plain code made of a recorded module, and a recorded tensor."""
    model = make_model()
    with record():
        x = torch.ones(2, 4, 3)
    return model(x), x


def test_the_variable_that_plain_code_made_is_named():
    v, x = call_between_recordings()
    with record(), pytest.raises(MissingValueError) as raised:
        (x + v).sum().item()
    text = str(raised.value)
    assert (
        "It is `v`, which plain code made (by NativeGroupNorm): put %%meta on" in text
    )
    assert "read by aten.add.Tensor in line" in text


def test_no_variable_is_named_that_has_its_values():
    (v, x), made = call_between_recordings(), [torch.ones(3, device="meta")]
    with record():
        w = x * 2
        assert w.sum().item() == 48
        with pytest.raises(MissingValueError) as raised:
            made[0].sum().item()
    assert "It is" not in str(raised.value)
    assert v.is_meta
