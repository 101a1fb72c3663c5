"""A kernel for each file of tests."""

import pytest

from tests.integration.kernels import CLEAN, RunningKernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = RunningKernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel_is_left_alone(kernel):
    """Every test leaves the kernel's torch without modes and on the CPU."""
    yield
    assert kernel.torch_state() == CLEAN
