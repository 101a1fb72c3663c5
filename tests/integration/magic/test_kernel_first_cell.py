"""What the first cells of a kernel leave undone."""

import pytest

from tests.integration.kernels import RunningKernel

WATCH = """import gc, sys, torch
before, kinds = gc.get_threshold(), []
gc.callbacks.append(lambda phase, info: kinds.append(info["generation"]))
"""

LINEAR = "%%meta\nx = torch.nn.Linear(4, 3)(torch.ones(2, 4))"
OTHERS = "%%meta\ny = (x * 2).softmax(-1) + 1"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("JUPYTER_PATH", raising=False)  # not one that is forked
    kernel = RunningKernel(tmp_path, is_loaded=False)
    yield kernel
    kernel.stop()


def test_they_look_at_no_whole_heap_and_import_no_dynamo(kernel):
    assert kernel.run(WATCH).status == "ok"
    assert kernel.run("%load_ext meta_magic").status == "ok"
    assert len(kernel.run(LINEAR).reports) == 1
    assert kernel.run("2 in kinds, gc.get_threshold() == before").value == (
        "(False, True)"
    )
    assert len(kernel.run(OTHERS).reports) == 1
    assert kernel.run("'torch._dynamo' in sys.modules").value == "False"
