"""Tensors that left a storage for another, and count writes with those that stayed."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import register


def build_and_move(kept):
    module = nn.Linear(2, 2)
    kept.append(module.weight.detach())
    return module.double()


def build_pair(kept):
    """Return a module made in a cell and a real one, and keep what they were before."""
    torch.manual_seed(0)
    with record():
        made = build_and_move(kept)
    torch.manual_seed(0)
    return made, build_and_move(kept)


def test_a_write_of_what_a_tensor_was_moved_to_is_none_of_what_it_left():
    def build():
        module = nn.Linear(2, 2)
        kept.append(module.weight.detach())
        module.double()
        with torch.no_grad():
            module.weight.add_(1)
        return module

    kept = []
    build_twice(build)
    real, made = map(register, kept)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_write_of_what_a_tensor_was_set_to_is_none_of_what_it_left():
    def build():
        x = torch.ones(2)
        view = x[...]
        return x, view.set_(torch.zeros(2)).add_(1)

    (real, _), (made, _), _, _ = build_twice(build)
    real, made = register(real), register(made)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_later_write_of_what_a_tensor_was_moved_to_is_none_of_what_it_left():
    kept = []
    (made, real), inside = build_pair(kept), record()
    for module, context in ((made, inside), (real, nullcontext())):
        with context, torch.no_grad():
            module.weight.mul_(2)
    met, wanted = map(register, kept)
    materialize(met)
    assert_bit_equal(met, wanted)


def test_a_later_write_of_what_a_tensor_left_is_none_of_what_it_was_moved_to():
    kept = []
    (made, real), inside = build_pair(kept), record()
    for module, tensor, context in zip(
        (made, real), kept, (inside, nullcontext()), strict=True
    ):
        with context, torch.no_grad():
            tensor.mul_(2)
            module(torch.ones(2, dtype=torch.float64))
    materialize(made)
    assert_bit_equal(made, real)


def test_a_write_outside_of_what_counts_with_another_storage_is_refused():
    kept = []
    with record():
        module = build_and_move(kept)
    kept[0].add_(1)
    with record(), torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(register(kept[0]))
