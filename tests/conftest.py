"""Fixtures shared by all tests."""

import atexit
import gc
import json
import os
import signal
import sys

# The tests are about a machine without a GPU, but for those that skip without one:
# CUDA_VISIBLE_DEVICES=0 pytest tests/unit/materializing/test_cuda.py
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import torch
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from traitlets.config import Config

MAIN = sys.modules["__main__"]


def pytest_configure():
    """A shell has jobs in the background ignore interrupts; tests send some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """The notebooks, which take longest, come first: no worker ends with them alone."""
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session):
    """Add the lines that ran in children, before pytest-cov combines its data."""
    result = yield
    if "tests.coverage_of_children" in sys.modules and not hasattr(
        session.config, "workerinput"
    ):
        sys.modules["tests.coverage_of_children"].gather()
    return result


def torch_state():
    """Return the modes and the default device of this thread."""
    return (
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        str(torch.get_default_device()),
    )


@pytest.fixture(scope="module", autouse=True)
def others_are_left_out():
    """What looks through all objects leaves out other tests and what they import."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def torch_is_left_alone():
    """Every test leaves torch without modes and on the CPU."""
    assert torch_state() == (0, 0, "cpu")
    yield
    assert torch_state() == (0, 0, "cpu")


@pytest.fixture(autouse=True)
def main_module_is_left_alone():
    """No test finds the variables of another test's shell, which are ``__main__``."""
    sys.modules["__main__"] = MAIN
    yield
    sys.modules["__main__"] = MAIN


@pytest.fixture(autouse=True)
def seed():
    """No test goes on from the random numbers of another.

    ``torch.manual_seed`` would write down the stack once for each kind of GPU.
    """
    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def python_forks(tmp_path_factory):
    """A program that runs what Python runs, in a fork of a process with torch."""
    if not hasattr(os, "pidfd_open"):  # not on Linux
        yield sys.executable
        return
    from tests.python_forks import serve_pythons

    with serve_pythons(tmp_path_factory.mktemp("pythons")) as python:
        yield python


@pytest.fixture
def forked_pythons(python_forks, monkeypatch):
    """The Pythons that the package and the test start are such forks."""
    monkeypatch.setattr(sys, "executable", python_forks)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython looks for it there


@pytest.fixture(scope="session")
def forked_kernels(python_forks, tmp_path_factory):
    """The kernels that tests start are such forks."""
    folder = tmp_path_factory.mktemp("jupyter")
    spec = folder / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [python_forks, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    named = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(named))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        yield


@pytest.fixture
def shell():
    """A real IPython shell with the extension loaded and no history on disk."""
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryAccessor.enabled = False
    shell = InteractiveShell.instance(
        config=config, display_pub_class=CapturingDisplayPublisher
    )
    shell.run_line_magic("load_ext", "meta_magic")
    shell.run_cell("import torch\nfrom torch import nn")
    yield shell
    shell.run_line_magic("unload_ext", "meta_magic")
    # At the end of the process each shell would collect garbage for a second.
    atexit.unregister(shell.atexit_operations)
    InteractiveShell.clear_instance()
