"""Where materialize() is called: under modes, in threads, within other recordings."""

import threading

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import register


def test_autocast_around_materialize_does_not_change_values():
    real, made, _, _ = build_twice(
        lambda: register(torch.randn(3, 3) @ torch.randn(3, 3))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        materialize(made)
    assert_bit_equal(made, real)


def test_a_module_is_real_although_the_default_device_is_meta():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with torch.device("meta"):
        materialize(made)
    assert_bit_equal(made, real)


def test_another_thread_can_materialize():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    thread = threading.Thread(target=materialize, args=(made,))
    thread.start()
    thread.join()
    assert_bit_equal(made, real)


def test_a_module_can_be_materialized_within_another_recording():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record() as trace:
        materialize(made)
    assert_bit_equal(made, real)
    assert len(trace.ops) == 0


def test_inference_mode_in_the_cell_makes_no_difference_to_values():
    def build():
        with torch.inference_mode():
            return nn.Linear(3, 4)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made.weight, real.weight)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_refused():
    with record():
        made = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(MaterializeError, match="scripted module"):
        materialize(made)


def test_within_a_transform_it_is_refused():
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))

    def loss(x):
        materialize(made)
        return x.sum()

    with pytest.raises(MaterializeError, match="transforms"):
        torch.func.grad(loss)(torch.ones(2))
    assert made.weight.is_meta


def test_under_inference_mode_a_module_can_be_trained_afterwards():
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    with torch.inference_mode():
        materialize(made)
    made(torch.ones(1, 2, requires_grad=True)).sum().backward()
    torch.optim.SGD(made.parameters(), lr=1).step()
    assert not made.weight.is_inference()
