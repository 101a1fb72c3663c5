"""``record()`` hands out a proxy of its trace; ``meta_like`` copies to meta."""

import copy
import gc
import importlib
import pickle
import sys
from threading import Event, Thread

import pytest
import torch
from torch import nn

from meta_magic import Trace, UnfinishedTraceError, meta_like, record
from meta_magic.torch_private.replacing import DEVICE_OF_META_KERNELS, FUSED_DEVICES


@pytest.fixture
def handle():
    with record() as handle:
        torch.ones(2, 3).sum()
    return handle


@pytest.mark.parametrize("question", ["ops", "notes", "summary", "program", "roots"])
def test_before_the_end_a_question_is_an_error_that_names_it(question):
    message = rf"trace\.{question} is known"
    with record() as handle, pytest.raises(UnfinishedTraceError, match=message):
        getattr(handle, question)


@pytest.mark.parametrize("ask", [len, str, pickle.dumps, hash])
def test_before_the_end_it_is_no_value(ask):
    with record() as handle, pytest.raises(UnfinishedTraceError):
        ask(handle)


def test_before_the_end_it_can_be_printed_by_a_debugger():
    with record() as handle:
        assert repr(handle) == "<Trace: recording>"
        assert handle == handle  # noqa: PLR0124
        assert handle != 1
        assert not hasattr(handle, "_repr_html_")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_a_copy_is_the_trace_itself(handle, copied):
    made = copied(handle)
    assert type(made) is Trace
    assert made == handle
    assert handle == made


def test_two_equal_recordings_are_equal_and_others_are_not(handle):
    with record() as other:
        torch.ones(2, 3).mean()
    assert handle == handle  # noqa: PLR0124
    assert handle != other
    assert handle != 1


def test_a_trace_cannot_be_changed(handle):
    with pytest.raises(AttributeError):
        handle.error = "none"
    with pytest.raises(AttributeError):
        copy.copy(handle).error = "none"


def test_shape_stride_offset_and_dtype_are_kept():
    real = torch.randn(4, 6, dtype=torch.float64).t()[1:, ::2]
    like = meta_like(real)
    assert like.is_meta
    assert (like.shape, like.stride()) == (real.shape, real.stride())
    assert (like.storage_offset(), like.dtype) == (real.storage_offset(), real.dtype)


def test_a_view_has_a_base_of_the_same_size():
    base = torch.randn(3, 4)
    like = meta_like(base[1])
    assert like._base.shape == (3, 4)
    assert like.untyped_storage().nbytes() == base.untyped_storage().nbytes()


def test_a_parameter_stays_one():
    like = meta_like(nn.Parameter(torch.ones(2), requires_grad=False))
    assert isinstance(like, nn.Parameter)
    assert not like.requires_grad


def test_a_sparse_tensor_stays_one():
    assert meta_like(torch.eye(3).to_sparse()).layout is torch.sparse_coo


def test_what_is_lifted_meets_the_tensors_of_a_cell():
    real = torch.ones(2, 3)
    with record() as trace:
        y = meta_like(real) @ torch.ones(3, 4)
    assert y.shape == (2, 4)
    assert trace.ops[-1].op == "aten.mm.default"


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="takes a tensor, not a list"):
        meta_like([1, 2])


# Recordings in several threads at once; thresholds of Python's collector


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture(autouse=True)
def restored_thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (2**31 - 1, 10, 2**31 - 1)])
def test_a_collector_that_is_off_or_at_its_limit_stays_so(thresholds):
    gc.set_threshold(*thresholds)
    with record():
        assert gc.get_threshold()[0] == thresholds[0]
    assert gc.get_threshold() == thresholds


def test_recordings_of_threads_that_end_in_another_order_leave_what_was_before():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, getattr(*DEVICE_OF_META_KERNELS)),
            *(getattr(*FUSED_DEVICES), torch.FloatTensor, torch.cuda.Event),
        ]

    gc.set_threshold(700, 11, 12)
    before, within = read(), []
    is_first_in, is_second_in, is_first_out = Event(), Event(), Event()

    def run_first():
        with record():
            is_first_in.set()
            is_second_in.wait()
        is_first_out.set()

    def run_second():
        is_first_in.wait()
        with record():
            is_second_in.set()
            is_first_out.wait()
            within.append(gc.get_threshold())

    run_all([Thread(target=run_first), Thread(target=run_second)])
    assert read() == before
    assert within == [(2100, 11, 120)]
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize(
    ("folder", "device"), [("lib/site-packages", "cpu"), ("own", "meta")]
)
def test_a_library_that_a_cell_imports_has_real_constants(
    tmp_path, monkeypatch, folder, device
):
    home, name = tmp_path / folder, f"solver_on_{device}"
    home.mkdir(parents=True)
    (home / f"{name}.py").write_text("import torch\nB = torch.tensor([0.25, 0.75])\n")
    monkeypatch.syspath_prepend(str(home))
    with record() as trace:
        x = torch.ones(2, requires_grad=True)
        y = (x * importlib.import_module(name).B).sum()
        y.backward()
        values = y.item(), x.grad.tolist()
    assert values == (1.0, [0.25, 0.75])
    assert sys.modules[name].B.device.type == device
    assert "aten.mul.Tensor" in {call.op for call in trace.ops}
