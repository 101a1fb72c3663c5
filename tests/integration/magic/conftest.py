"""A kernel for each file of tests; a shell that says how a cell failed."""

import sys

import pytest

from tests.integration.kernels import ANSI, CLEAN, RunningKernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory, forked_kernels):
    kernel = RunningKernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel_is_left_alone(kernel):
    """Every test leaves the kernel's torch without modes and on the CPU."""
    yield
    assert kernel.torch_state() == CLEAN


@pytest.fixture
def run(shell, capsys):
    """Run a cell and give its error and what was shown of it."""

    def run_cell(source):
        result = shell.run_cell(source)
        error = result.error_in_exec or result.error_before_exec
        return error, ANSI.sub("", capsys.readouterr().out)

    return run_cell


@pytest.fixture
def keep_tracer():
    """A debugger that quits takes away the trace function by which coverage counts."""
    tracer = sys.gettrace()
    yield
    sys.settrace(tracer)
