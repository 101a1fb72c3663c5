"""A replay runs each call under the backend flags that the cell had."""

import pytest
import torch
from torch.nn.functional import conv2d

from meta_magic import record
from meta_magic.torch_private.snapshot import flushes_denormals
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import both, replay

HIGHEST = torch.get_float32_matmul_precision()


def convolve():
    return conv2d(torch.randn(2, 8, 17, 17), torch.randn(16, 8, 3, 3))


def convolve_without_mkldnn():
    with torch.backends.mkldnn.flags(enabled=False):
        return convolve()


def convolve_after_it_was_switched_off():
    torch.backends.mkldnn.enabled = False
    try:
        return convolve()
    finally:
        torch.backends.mkldnn.enabled = True


def convolve_with_it_again():
    convolve_without_mkldnn()
    return convolve()


def flush():
    torch.set_flush_denormal(True)
    try:
        return torch.full((3,), 1e-39) * 0.5
    finally:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def flags_can_be_set():
    """Torch's own tests, of which others import some, forbid it for the process."""
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield


PROGRAMS = {
    "mkldnn off": convolve_without_mkldnn,
    "mkldnn set off": convolve_after_it_was_switched_off,
    "mkldnn on again": convolve_with_it_again,
    "denormals flushed": flush,
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_has_the_flags_of_the_cell(name, seed):
    real, made = both(PROGRAMS[name], seed=seed)
    assert_same_tensor(made, real)


def halve():
    return torch.full((3,), 1e-39) * 0.5


@pytest.mark.parametrize("is_in_cell", [True, False])
def test_a_flag_that_is_set_after_a_call_does_not_hold_in_its_replay(is_in_cell):
    try:
        with record() as trace:
            made = halve()
            torch.set_flush_denormal(is_in_cell)
        torch.set_flush_denormal(True)
        values = replay(trace, made)[0]
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)
    assert_same_tensor(values, halve())


def test_a_replay_flushes_denormals_like_the_cell():
    torch.set_flush_denormal(True)
    try:
        with record() as trace:
            made = halve()
    finally:
        torch.set_flush_denormal(False)
    assert replay(trace, made)[0].tolist() == [0, 0, 0]


def test_a_changed_flag_is_recorded_with_its_first_call():
    with record() as trace:
        torch.ones(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("high")
        torch.ones(2)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(HIGHEST)
    assert [(call, value) for call, _, value in trace.program.flags] == [
        *((1, 1), (1, "high")),
        *((2, 0), (2, HIGHEST)),
    ]
