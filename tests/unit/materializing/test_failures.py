"""Bad input to materialize(): an error that says what to do, and nothing changed."""

import copy
import re

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, MetaMagicError, materialize, record
from tests.unit.eager import (
    assert_bit_equal,
    build_twice,
    is_untouched,
    tensors_of,
)


def build():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def recorded():
    with record():
        return build()


def holding(tensor, kind="buffer"):
    module = nn.Module()
    if kind == "buffer":
        module.register_buffer("odd", tensor)
    else:
        module.odd = nn.Parameter(tensor, requires_grad=False)
    return module


# Arguments


@pytest.mark.parametrize(
    "device",
    ["meta", "nonsense", "cuda:99", "mps", "", "cpu:x", None, 3.5, [], 99],
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
        assert "'replay', 'reset', 'empty', a path or a state dict" in str(caught.value)
    assert is_untouched(made, before)


@pytest.mark.parametrize(
    "init", [None, 3, b"model.safetensors", [("weight", 1)], nn.Linear(2, 3), True]
)
def test_an_init_of_another_type_is_an_error_that_lists_what_there_is(init):
    with pytest.raises(MaterializeError, match="'replay', 'reset', 'empty'"):
        materialize(recorded(), init=init)


@pytest.mark.parametrize(
    "thing", [None, "module", torch.ones(2), nn.Linear, [nn.Linear(2, 3)], torch.nn]
)
def test_what_is_no_module_is_an_error_that_says_so(thing):
    with pytest.raises(MaterializeError, match=r"wanted a torch\.nn\.Module, not a"):
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


# No recording


def test_a_module_of_no_recording_is_an_error_that_names_it_and_the_way_out():
    with torch.device("meta"):
        made = build()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made)
    text = str(caught.value)
    assert "cannot replay '0.weight': it was not built under a recording" in text
    assert "Build the module under %%meta or mm.record()" in text
    assert "init='reset', init='empty' or a checkpoint" in text
    assert is_untouched(made, before)


def test_a_module_that_is_in_part_of_no_recording_is_an_error_that_names_the_part():
    made = recorded()
    made.append(nn.Linear(3, 4, device="meta"))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"'2\.weight': it was not built"):
        materialize(made)
    assert is_untouched(made, before)


def test_a_copy_made_outside_of_a_recording_is_an_error():
    with pytest.raises(MaterializeError, match=r"'0\.weight': it was not built"):
        materialize(copy.deepcopy(recorded()))


def test_a_cast_outside_of_a_recording_is_an_error():
    with pytest.raises(MaterializeError, match=r"'0\.weight': it was not built"):
        materialize(recorded().half())


def test_a_forward_outside_that_changes_statistics_is_an_error_that_names_them():
    made = recorded()
    made(torch.ones(4, 2, device="meta"))
    with pytest.raises(MaterializeError, match="was changed in place outside"):
        materialize(made)


def test_a_module_of_the_block_that_still_runs_is_an_error():
    with record():
        made = build()
        with pytest.raises(MaterializeError, match="not built under a recording"):
            materialize(made)


def test_values_that_came_from_meta_tensors_outside_are_an_error_that_says_so():
    outside = torch.ones(3, device="meta")
    with record():
        made = holding(outside * 2)
    with pytest.raises(MaterializeError, match="came from outside of the recording"):
        materialize(made)


def test_a_half_real_module_replays_what_is_on_meta():
    made = recorded()
    made[0].weight = nn.Parameter(torch.ones(3, 2))
    report = materialize(made)
    assert report.names("kept") == ("0.weight",)


def test_a_half_real_module_that_was_not_recorded_is_an_error_that_names_what_is_not():
    made = nn.Linear(2, 3)
    made.bias = nn.Parameter(torch.empty(3, device="meta"))
    weight = made.weight.detach().clone()
    with pytest.raises(MaterializeError, match="'bias'"):
        materialize(made)
    assert torch.equal(made.weight, weight)


# Tensors that torch cannot make

INITS = ["replay", "reset", "empty"]


def test_a_lazy_parameter_is_an_error_that_says_to_call_the_module():
    with record():
        made = nn.LazyLinear(3)
    with pytest.raises(
        MaterializeError, match=r"'weight': its shape is not known yet: call the module"
    ):
        materialize(made)
    assert isinstance(made.weight, nn.UninitializedParameter)


def test_a_lazy_buffer_is_an_error_that_names_it():
    with record():
        made = nn.LazyBatchNorm1d()
    with pytest.raises(MaterializeError, match="its shape is not known yet"):
        materialize(made)


def test_a_lazy_module_that_was_called_is_none_any_more():
    def called():
        made = nn.LazyLinear(3)
        made(torch.ones(2, 4))
        return made

    real, made, _, _ = build_twice(called)
    materialize(made)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("init", INITS)
def test_a_quantized_tensor_is_an_error_that_names_it(init):
    made = holding(torch.empty(2, 3, dtype=torch.qint8, device="meta"))
    with pytest.raises(MaterializeError, match="'odd': it is quantized"):
        materialize(made, init=init)
    assert made.odd.is_meta


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_tensor_quantized_in_the_cell_is_an_error_there():
    # On meta torch would return a tensor of float32, and say nothing.
    with pytest.raises(MetaMagicError, match=r"not of torch\.qint8"), record():
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


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
    made = nn.Sequential(nn.Linear(2, 2, device="meta"), holding(LAYOUTS[layout]()))
    before = tensors_of(made)
    with pytest.raises(MaterializeError, match=r"cannot materialize '1\.odd': it"):
        materialize(made, init=init)
    assert is_untouched(made, before)


@pytest.mark.parametrize("layout", ["COO", "CSR"])
def test_a_sparse_tensor_made_in_the_cell_is_an_error_that_names_it(layout):
    with record():
        made = holding(LAYOUTS[layout]())
    with pytest.raises(MaterializeError, match="'odd'"):
        materialize(made)


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


# Too little memory


def huge():
    """A hundred terabytes, and six smaller ones."""
    with record():
        return nn.ModuleDict(
            {
                "middle": nn.Linear(1_000, 1_000, bias=False),
                "huge": nn.Linear(5_000_000, 5_000_000, bias=False),
                **{f"n{i}": nn.Linear(100, i, bias=False) for i in range(10, 15)},
            }
        )


@pytest.mark.parametrize("init", INITS)
def test_too_little_memory_is_an_error_before_anything_is_made(init):
    made = huge()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init=init)
    # 25e12 elements of 4 bytes are 90.9 TiB.
    assert re.search(
        r"takes 90\.9 TiB .* and [\d.,]+ [GMK]iB is free", str(caught.value)
    )
    assert is_untouched(made, before)


def test_too_little_memory_names_the_five_largest_tensors():
    with pytest.raises(MaterializeError) as caught:
        materialize(huge())
    names = re.findall(r"(?:huge|middle|n\d+)\.weight", str(caught.value))
    assert names == [
        "huge.weight",
        "middle.weight",
        "n14.weight",
        "n13.weight",
        "n12.weight",
    ]


def test_too_little_memory_says_what_to_do():
    with pytest.raises(MaterializeError, match="Materialize a submodule"):
        materialize(huge())


def test_a_small_part_of_a_huge_module_is_no_problem():
    made = huge()
    materialize(made["middle"])
    assert not made["middle"].weight.is_meta


def test_memory_that_is_used_on_the_way_counts():
    with record():
        made = holding(torch.ones(5_000_000, 5_000_000).sum(0))
    with pytest.raises(MaterializeError, match="takes 90"):
        materialize(made)


# Failure in the middle


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("init", [*INITS, "checkpoint"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_cancelled_materialize_leaves_the_module_as_it_was(init, error, at):
    real, made, _, _ = build_twice(lambda: nn.Transformer(8, 2, 1, 1, 16))
    before, state = tensors_of(made), torch.get_rng_state()
    source = dict(real.state_dict()) if init == "checkpoint" else init
    seen = []

    def cancel(fraction):
        seen.append(fraction)
        if len(seen) > at or fraction >= 1:
            raise error

    if init in {"reset", "empty"} and at:
        pytest.skip("has no steps")
    with pytest.raises(error):
        materialize(made, init=source, progress=cancel)
    assert is_untouched(made, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_cancelled_materialize_can_be_done_again():
    real, made, _, state = build_twice(build)

    def cancel(_):
        raise Cancelled

    with pytest.raises(Cancelled):
        materialize(made, progress=cancel)
    materialize(made)
    assert_bit_equal(made, real)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_second_materialize_within_the_first_is_an_error():
    made, other = recorded(), recorded()
    caught = []

    def again(_):
        with pytest.raises(MaterializeError, match="another module is being") as error:
            materialize(other)
        caught.append(error)

    materialize(made, progress=again)
    assert caught


class Failing(nn.Module):
    """Fails to reset itself, after it has begun."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.weight = nn.Parameter(torch.empty(3))
        self.real = nn.Parameter(torch.ones(2, device="cpu"))

    def reset_parameters(self):
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.real)
        raise ZeroDivisionError("by three")


def test_a_reset_that_fails_is_an_error_that_names_it():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init="reset")
    assert "reset_parameters of a Failing raised ZeroDivisionError: by three" in str(
        caught.value
    )


def test_a_reset_that_fails_leaves_the_module_as_it_was():
    with record():
        made = Failing()
    before = {n: t for n, t in tensors_of(made).items() if n != "real"}
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    after = {n: t for n, t in tensors_of(made).items() if n != "real"}
    assert all(after[n] is before[n] and before[n].is_meta for n in before)


def test_a_reset_that_fails_leaves_real_tensors_as_they_were():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    assert made.real.tolist() == [1, 1]


def test_a_module_whose_reset_failed_can_be_materialized():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    materialize(made, init="empty")
    assert not made.weight.is_meta


def test_a_reset_that_is_interrupted_leaves_the_module_as_it_was():
    class Interrupted(nn.Linear):
        def reset_parameters(self):
            if not self.weight.is_meta:
                raise KeyboardInterrupt
            super().reset_parameters()

    with record():
        made = Interrupted(2, 3)
    before = tensors_of(made)
    with pytest.raises(KeyboardInterrupt):
        materialize(made, init="reset")
    assert is_untouched(made, before)


def test_a_reset_that_wants_arguments_is_an_error_that_names_it():
    class Demanding(nn.Linear):
        def reset_parameters(self, gain=None):
            if gain is None and not self.weight.is_meta:
                raise TypeError("gain is missing")

    with record():
        made = Demanding(2, 3)
    with pytest.raises(MaterializeError, match="of a Demanding raised TypeError"):
        materialize(made, init="reset")


def test_a_complex_tensor_stays_complex_in_a_cast():
    with record():
        made = holding(torch.tensor([1 + 2j]))
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


def test_two_dtypes_on_the_same_bytes_are_kept_without_a_cast():
    def build_two():
        module = nn.Module()
        module.register_buffer("floats", torch.ones(4))
        module.register_buffer("integers", module.floats.view(torch.int32))
        return module

    real, made, _, _ = build_twice(build_two)
    materialize(made)
    assert_bit_equal(made, real)


# Notes


def test_load_state_dict_that_assigns_is_not_noted():
    state = nn.Linear(2, 3).state_dict()
    with record() as trace:
        made = nn.Linear(2, 3)
        made.load_state_dict(state, assign=True)
    assert [note for note in trace.notes if note.kind == "load"] == []
    assert not made.weight.is_meta
