"""Calls of layers that torch refuses are refused in its words."""

import pytest
import torch
from torch import nn

from tests.unit.recording.intercept.layer_programs import (
    assert_recorded_alike,
    call_inside,
    run,
)


def call_until_deleted(layer, name):
    for _ in range(2):
        call_inside(layer, torch.ones(2, 4))
    delattr(layer, name)
    call_inside(layer, torch.ones(2, 4))


def take_numbers():
    call_inside(nn.ReLU(), 1.5)


def take_nothing():
    layer = nn.Linear(4, 4)
    call_inside(lambda: [layer()])


def take_two():
    call_inside(nn.Linear(4, 4), torch.ones(2, 4), torch.ones(2, 4))


def take_names_of_ours():
    call_inside(lambda: nn.ReLU()(module=torch.ones(2)))


def take_self_twice():
    call_inside(lambda: nn.ReLU()(self=2))


def call_of_class_alone():
    call_inside(nn.Linear.__call__)


def call_of_another():
    call_inside(lambda: nn.Linear.__call__(3, torch.ones(2)))


def take_wrong_sizes():
    layer = nn.Linear(4, 4)
    for size in (4, 4, 5):
        call_inside(layer, torch.ones(2, size))


def take_wrong_dtypes():
    layer = nn.Linear(4, 4)
    for dtype in (torch.float, torch.float, torch.double):
        call_inside(layer, torch.ones(2, 4, dtype=dtype))


def mix_devices():
    layer = nn.Linear(4, 4, device="cuda")
    for device in ("cuda", "cuda", "cpu"):
        call_inside(layer, torch.ones(2, 4, device=device))


def set_wrong_rate():
    drop = nn.Dropout(0.5)
    for rate in (0.5, 0.5, 2.0):
        drop.p = rate
        call_inside(drop, torch.ones(2, 4))


def delete_weight():
    call_until_deleted(nn.Linear(4, 4), "weight")


def delete_setting():
    call_until_deleted(nn.LayerNorm(4), "eps")


def forget_to_begin():
    relu = nn.ReLU.__new__(nn.ReLU)
    call_inside(lambda: relu(torch.ones(2)))


PROGRAMS = (
    take_numbers,
    take_nothing,
    take_two,
    take_names_of_ours,
    take_self_twice,
    call_of_class_alone,
    call_of_another,
    take_wrong_sizes,
    take_wrong_dtypes,
    mix_devices,
    set_wrong_rate,
    delete_weight,
    delete_setting,
    forget_to_begin,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_torch_refuses_is_refused_in_its_words(program):
    assert_recorded_alike(program)
    with pytest.raises(Exception, match=r".") as caught:
        program()
    if program is not mix_devices:  # which takes an accelerator
        assert run(program, cache=True)[2][0] is caught.type
