"""Bad arguments to materialize(), dtypes, and tensors that torch cannot make."""

import re

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.modules import build_norm, holding_odd, recorded, register

DEVICES = ["meta", "nonsense", "cuda:99", "mps", "", "cpu:x", 3.5, [], 99]
DTYPES = ["float16", "nonsense", torch.int8, torch.bool, torch.quint8, float, 16]
MISSPELT = ["relpay", "Replay", "", "normal", "no/such/file.safetensors", "x" * 5000]
OTHERS = [None, 3, b"model.safetensors", [("weight", 1)], nn.Linear(2, 3), True]
LISTED = re.escape(f"{', '.join(map(repr, INITS))}, a path or a state dict")
BAD = [
    *((one, None, "replay", r"there (is|are) .*cpu") for one in DEVICES),
    *(("cpu", one, "replay", re.escape(f"dtype={one!r}")) for one in DTYPES),
    *(("cpu", None, one, LISTED if one else "") for one in (*MISSPELT, *OTHERS)),
]


@pytest.mark.parametrize(("device", "dtype", "init", "words"), BAD)
def test_a_bad_argument_is_an_error_that_says_what_there_is(device, dtype, init, words):
    made = recorded()
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=words) as caught:
        materialize(made, device, dtype=dtype, init=init)
    assert dtype is None or "such as torch.bfloat16" in str(caught.value)
    assert is_untouched(made, before)


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


def test_the_trace_of_another_module_is_an_error():
    made = recorded()
    with record() as trace:
        build_norm()
    with pytest.raises(MaterializeError, match=r"'0\.weight'.*under the given trace"):
        materialize(made, trace=trace)


# The dtype that materialize() is asked for.


@pytest.mark.parametrize(
    "build", [lambda: nn.BatchNorm1d(4), lambda: nn.TransformerEncoderLayer(8, 2, 16)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_dtype_gives_what_to_would_give(build, dtype):
    real, made, _, _ = build_twice(build)
    materialize(made, dtype=dtype)
    assert_bit_equal(made, real.to(dtype))


@pytest.mark.parametrize("init", sorted({*INITS} - {"replay"}))
def test_dtype_casts_without_a_replay(init):
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    report = materialize(made, init=init, dtype=torch.float16)
    assert made.weight.dtype == torch.float16
    assert report.nbytes == (12 + 4) * 2


def test_a_complex_tensor_stays_complex_in_a_cast():
    with record():
        made = holding_odd(torch.tensor([1 + 2j]))
    materialize(made, dtype=torch.float64)
    assert (made.odd.dtype, made.odd.tolist()) == (torch.complex128, [1 + 2j])


def test_a_cast_of_bytes_that_are_read_as_two_dtypes_is_an_error_that_names_both():
    def build_two():
        module = nn.Module()
        module.register_buffer("floats", torch.ones(4))
        module.register_buffer("integers", module.floats.view(torch.int32))
        return module

    with record():
        made = build_two()
    with pytest.raises(MaterializeError, match=r"floats, integers read one storage"):
        materialize(made, dtype=torch.float16)


# Tensors that torch cannot make: lazy, quantized, or of another layout.


def test_a_lazy_parameter_is_an_error_that_says_to_call_the_module():
    with record():
        made = nn.LazyLinear(3)
    with pytest.raises(
        MaterializeError, match=r"'weight': its shape is not known yet: call the module"
    ):
        materialize(made)
    assert isinstance(made.weight, nn.UninitializedParameter)


@pytest.mark.parametrize("init", INITS)
def test_a_quantized_tensor_is_an_error_that_names_it(init):
    made = holding_odd(torch.empty(2, 3, dtype=torch.qint8, device="meta"))
    with pytest.raises(MaterializeError, match="'odd': it is quantized"):
        materialize(made, init=init)
    assert made.odd.is_meta


LAYOUTS = {
    "COO": lambda: torch.sparse_coo_tensor(size=(2, 3), device="meta"),
    "CSR": lambda: torch.empty(2, 3, layout=torch.sparse_csr, device="meta"),
    "CSC": lambda: torch.empty(2, 3, layout=torch.sparse_csc, device="meta"),
    "jagged": lambda: torch.nested.nested_tensor_from_jagged(
        torch.empty(5, 2, device="meta"),
        torch.empty(3, dtype=torch.int64, device="meta"),
        min_seqlen=2,
        max_seqlen=3,
    ),
}


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_another_layout_is_an_error_that_names_it(layout, init):
    made = nn.Sequential(nn.Linear(2, 2, device="meta"), holding_odd(LAYOUTS[layout]()))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"cannot materialize '1\.odd': it"):
        materialize(made, init=init)
    assert is_untouched(made, before)


def test_a_list_that_holds_itself_does_no_harm():
    def circular():
        module = nn.Linear(2, 3)
        module.things = [torch.ones(2)]
        module.things.append(module.things)
        module.names = {"attributes": module.__dict__}
        return module

    with record():
        made = circular()
    materialize(made)
    assert made.things[0].tolist() == [1, 1]


# Where materialize() is called: under modes, in threads, within other recordings.


def test_autocast_around_materialize_does_not_change_values():
    real, made, _, _ = build_twice(
        lambda: register(torch.randn(3, 3) @ torch.randn(3, 3))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        materialize(made)
    assert_bit_equal(made, real)


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
