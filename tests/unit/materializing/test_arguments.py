"""Bad arguments to materialize(): an error says what to do, and nothing is changed."""

import re

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import is_untouched, tensors_of
from tests.unit.materializing.refusals import build, recorded


@pytest.mark.parametrize(
    "device",
    ["meta", "nonsense", "cuda:99", "mps", "", "cpu:x", 3.5, [], 99],
)
def test_a_device_that_is_not_there_is_an_error_that_says_which_are(device):
    made = recorded()
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"there (is|are) .*cpu"):
        materialize(made, device)
    assert is_untouched(made, before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), 0])
def test_cuda_without_a_gpu_is_an_error_that_says_what_there_is(device):
    with pytest.raises(MaterializeError, match="there is cpu"):
        materialize(recorded(), device)


@pytest.mark.parametrize(
    "dtype", ["float16", "nonsense", torch.int8, torch.bool, torch.quint8, float, 16]
)
def test_a_dtype_that_is_none_is_an_error_that_names_it(dtype):
    made = recorded()
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=re.escape(f"dtype={dtype!r}")) as caught:
        materialize(made, dtype=dtype)
    assert "such as torch.bfloat16" in str(caught.value)
    assert is_untouched(made, before)


@pytest.mark.parametrize(
    "init", ["relpay", "Replay", "", "normal", "no/such/file.safetensors", "x" * 5000]
)
def test_a_misspelt_init_is_an_error_that_lists_what_there_is(init):
    made = recorded()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init=init)
    if init:
        listed = ", ".join(map(repr, INITS))
        assert f"{listed}, a path or a state dict" in str(caught.value)
    assert is_untouched(made, before)


@pytest.mark.parametrize(
    "init", [None, 3, b"model.safetensors", [("weight", 1)], nn.Linear(2, 3), True]
)
def test_an_init_of_another_type_is_an_error_that_lists_what_there_is(init):
    with pytest.raises(MaterializeError, match=", ".join(map(repr, INITS))):
        materialize(recorded(), init=init)


def test_the_docstring_says_what_each_init_gives():
    for name in INITS:
        assert f'* ``"{name}"``: ' in materialize.__doc__
    assert "INITS" not in materialize.__doc__
    assert max(map(len, materialize.__doc__.splitlines())) <= 88


@pytest.mark.parametrize(
    "thing", [None, "module", 3, nn.Linear, [], {"a": [1]}, torch.nn, object()]
)
def test_what_holds_no_tensor_is_an_error_that_says_so(thing):
    wanted = "wanted a module, a tensor or an object that holds some, not a"
    with pytest.raises(MaterializeError, match=f"{wanted} {type(thing).__name__}"):
        materialize(thing)


@pytest.mark.parametrize("trace", ["trace", 3, torch.ones(2)])
def test_what_is_no_trace_is_an_error(trace):
    made = recorded()
    with pytest.raises(MaterializeError, match="trace"):
        materialize(made, trace=trace)


def test_the_trace_of_another_module_is_an_error():
    made = recorded()
    with record() as trace:
        build()
    with pytest.raises(MaterializeError, match=r"'0\.weight'.*under the given trace"):
        materialize(made, trace=trace)


def test_progress_that_cannot_be_called_leaves_the_module_as_it_was():
    made = recorded()
    before = tensors_of(made)
    with pytest.raises((TypeError, MaterializeError)):
        materialize(made, progress=3)
    assert is_untouched(made, before)
