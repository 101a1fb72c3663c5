"""What materialize() gives a module, and what it keeps of it."""

import copy
import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import (
    assert_bit_equal,
    assert_same_tensor,
    build_twice,
    tensors_of,
)


class Masked(nn.Module):
    """Holds tensors in every way that a module can."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
        self.register_buffer("steps", torch.arange(5))
        self.scale = torch.rand(2) * 3
        self.listed = [torch.randn(2), torch.randn(3)]
        self.mapped = {"deep": (torch.full((2,), 7.0),)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


class Shared(nn.Module):
    """Two parameters on one storage, with different views of it."""

    def __init__(self):
        super().__init__()
        flat = torch.randn(6)
        self.upper = nn.Parameter(flat[:2])
        self.matrix = nn.Parameter(flat.view(2, 3).t())


class Raw(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.bias = nn.Parameter(torch.zeros(3))


class Legacy(nn.Module):
    """Initialized as before factories took a device."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Parameter(torch.Tensor(3, 2).uniform_(-1, 1))
        self.third = nn.Linear(3, 2)


class Orthogonal(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))
        nn.init.orthogonal_(self.weight)


class Truncated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(40, 4))
        nn.init.trunc_normal_(self.weight, std=0.02)


def init_sparse():
    linear = nn.Linear(10, 10)
    nn.init.sparse_(linear.weight, 0.5)
    return linear


def init_dirac():
    convolution = nn.Conv1d(4, 4, 3)
    nn.init.dirac_(convolution.weight)
    return convolution


BUILDS = {
    "linear": lambda: nn.Linear(3, 4),
    "convolution": lambda: nn.Conv2d(3, 4, 3),
    "embedding with padding": lambda: nn.Embedding(5, 3, padding_idx=1),
    "normalization": lambda: nn.BatchNorm1d(4),
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "every kind of tensor": Masked,
    "tied": Tied,
    "shared storage": Shared,
    "legacy constructor": Legacy,
    "orthogonal": Orthogonal,
    "truncated normal": Truncated,
    "sparse": init_sparse,
    "dirac": init_dirac,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 4)),
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(3, 4)),
    "bfloat16": lambda: nn.Linear(3, 4).bfloat16(),
    "double": lambda: nn.Linear(3, 4, dtype=torch.float64),
    "complex": lambda: nn.Linear(3, 4, dtype=torch.complex64),
    "deep copy": lambda: copy.deepcopy(nn.Linear(3, 4)),
    "expanded": lambda: register(torch.randn(1, 3).expand(4, 3)),
    "conjugated": lambda: register(torch.randn(3, dtype=torch.complex64).conj()),
    "no elements": lambda: register(torch.randn(0, 3)),
    "no dimension": lambda: register(torch.tensor(2.5)),
    "boolean": lambda: register(torch.rand(9) > 0.5),
}


def register(tensor):
    module = nn.Module()
    module.register_buffer("buffer", tensor)
    return module


# The values


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", BUILDS)
def test_a_replay_is_bit_equal_to_eager(name, cache):
    real, made, _, _ = build_twice(BUILDS[name], cache=cache)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.uninitialized == ()


def test_replay_is_what_it_does_unless_told():
    real, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {tensor.filled_by for tensor in report.tensors} == {"replay"}
    assert_bit_equal(made, real)


def test_a_tensor_that_is_a_plain_attribute_gets_its_values():
    real, made, _, _ = build_twice(Masked)
    materialize(made)
    assert_same_tensor(made.scale, real.scale)


def test_tensors_in_lists_get_their_values():
    real, made, _, _ = build_twice(Masked)
    materialize(made)
    assert [t.tolist() for t in made.listed] == [t.tolist() for t in real.listed]


def test_tensors_in_a_tuple_in_a_dict_get_their_values():
    _, made, _, _ = build_twice(Masked)
    materialize(made)
    assert made.mapped["deep"][0].tolist() == [7.0, 7.0]


def test_a_materialized_module_computes_what_the_real_one_does():
    real, made, _, _ = build_twice(lambda: nn.LSTM(3, 4, num_layers=2))
    materialize(made)
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(made(x)[0], real(x)[0])


def test_values_made_under_another_default_dtype_are_the_same():
    def build():
        torch.set_default_dtype(torch.float64)
        try:
            return register(torch.linspace(0, 1, 7) / torch.arange(1, 8))
        finally:
            torch.set_default_dtype(torch.float32)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


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


def test_a_submodule_alone_gets_what_it_has_within_the_whole():
    def build():
        return nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 4))

    real, made, _, _ = build_twice(build)
    materialize(made[2])
    assert_bit_equal(made[2], real[2])


def test_the_rest_stays_on_meta_if_a_submodule_is_materialized():
    _, made, _, _ = build_twice(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)))
    materialize(made[1])
    assert [t.is_meta for t in made[0].parameters()] == [True, True]


def test_submodules_one_by_one_in_any_order_are_the_whole():
    def build():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))

    real, made, _, _ = build_twice(build)
    for submodule in reversed(made):
        materialize(submodule)
    assert_bit_equal(made, real)


def test_a_module_put_together_of_two_recordings_has_the_values_of_both():
    real_first, first, _, _ = build_twice(lambda: nn.Linear(2, 3), seed=1)
    real_second, second, _, _ = build_twice(lambda: nn.Linear(3, 2), seed=2)
    materialize(made := nn.Sequential(first, second))
    assert_bit_equal(made, nn.Sequential(real_first, real_second))


def test_cpu_with_an_index_is_the_cpu():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made, "cpu:0")
    assert_bit_equal(made, real)


# reset and empty


def test_reset_initializes_by_the_methods_of_the_modules():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    torch.manual_seed(5)
    wanted = nn.Linear(3, 4)
    torch.manual_seed(5)
    report = materialize(made, init="reset")
    assert_bit_equal(made, wanted)
    assert report.names("reset") == ("weight", "bias")


def test_reset_resets_statistics():
    with record():
        made = nn.BatchNorm1d(3)
        made.running_mean.fill_(9)
    report = materialize(made, init="reset")
    assert made.running_mean.tolist() == [0, 0, 0]
    assert report.uninitialized == ()


def test_reset_works_without_a_recording():
    made = nn.Linear(3, 4, device="meta")
    torch.manual_seed(5)
    wanted = nn.Linear(3, 4)
    torch.manual_seed(5)
    materialize(made, init="reset")
    assert_bit_equal(made, wanted)


def test_reset_reports_a_buffer_that_nothing_writes_as_uninitialized():
    with record():
        made = nn.Linear(3, 4)
        made.register_buffer("mask", torch.ones(3))
    report = materialize(made, init="reset")
    assert report.uninitialized == ("mask",)


def test_reset_reaches_attention_in_all_its_parts():
    _, made, _, _ = build_twice(lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True))
    assert materialize(made, init="reset").uninitialized == ()


def test_reset_calls_init_weights_of_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)
    with record():
        made = transformers.GPT2LMHeadModel(config)
    report = materialize(made, init="reset")
    assert "transformer.wte.weight" in report.names("reset")
    assert made.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.3)


def test_a_replay_of_a_transformers_model_is_bit_equal_to_eager():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11)
    real, made, _, _ = build_twice(lambda: transformers.GPT2LMHeadModel(config))
    materialize(made)
    assert_bit_equal(made, real)
    assert made.lm_head.weight is made.transformer.wte.weight


def test_reset_keeps_what_is_real():
    made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.empty(4, device="meta"))
    before = made.weight.detach().clone()
    materialize(made, init="reset")
    assert torch.equal(made.weight, before)


def test_reset_keeps_the_real_child_of_a_module_that_resets_its_children():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.real = nn.Linear(2, 2)
            self.made = nn.Linear(2, 2, device="meta")

        def reset_parameters(self):
            self.real.reset_parameters()
            self.made.reset_parameters()

    block = Block()
    before = block.real.weight.detach().clone()
    materialize(block, init="reset")
    assert torch.equal(block.real.weight, before)


def test_empty_reports_everything_as_uninitialized():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    report = materialize(made, init="empty")
    assert report.uninitialized == ("weight", "bias")


def test_empty_makes_every_tensor_real():
    _, made, _, _ = build_twice(Masked)
    materialize(made, init="empty")
    real = [*tensors_of(made).values(), made.scale, *made.listed]
    assert {tensor.device.type for tensor in real} == {"cpu"}


def test_replay_reports_what_the_cell_left_uninitialized():
    _, made, _, _ = build_twice(Raw)
    report = materialize(made)
    assert (report.uninitialized, report.names("replay")) == (("weight",), ("bias",))


# What is kept


def test_tensors_stay_the_same_objects():
    _, made, _, _ = build_twice(Masked)
    before = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    materialize(made)
    after = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("init", ["replay", "reset", "empty"])
def test_a_tie_is_kept(init):
    _, made, _, _ = build_twice(Tied)
    report = materialize(made, init=init)
    assert made.head.weight is made.embed.weight
    assert report.ties == (("head.weight", "embed.weight"),)


@pytest.mark.parametrize("init", ["replay", "empty"])
def test_views_of_one_storage_stay_views_of_one_storage(init):
    _, made, _, _ = build_twice(Shared)
    materialize(made, init=init)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]
    assert made.matrix.stride() == (1, 3)


def test_a_shared_submodule_is_reported_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.ties == (("1.weight", "0.weight"), ("1.bias", "0.bias"))


def test_channels_last_is_kept():
    real, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made)
    assert made.weight.is_contiguous(memory_format=torch.channels_last)
    assert_bit_equal(made, real)


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_strides_are_kept_without_a_replay(init):
    _, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made, init=init)
    assert made.weight.stride() == (27, 1, 9, 3)


def test_requires_grad_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.requires_grad_(False)
    materialize(made)
    assert (made.weight.requires_grad, made.bias.requires_grad) == (False, True)


def test_a_parameter_is_a_leaf():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4).bfloat16())
    materialize(made)
    assert made.weight.is_leaf


def test_classes_of_parameters_and_buffers_are_kept():
    class Special(nn.Parameter):
        pass

    def build():
        module = nn.Module()
        module.special = Special(torch.ones(2))
        module.buffer = nn.Buffer(torch.ones(2))
        return module

    _, made, _, _ = build_twice(build)
    materialize(made)
    assert (type(made.special), type(made.buffer)) == (
        Special,
        nn.Buffer(None).__class__,
    )


def test_attributes_of_a_parameter_are_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.is_special = "yes"
    materialize(made)
    assert made.weight.is_special == "yes"


def test_a_real_tensor_is_not_touched():
    with record():
        made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.arange(4.0))
    address, version = made.bias.data_ptr(), made.bias._version
    report = materialize(made)
    assert (made.bias.data_ptr(), made.bias._version) == (address, version)
    assert report.names("kept") == ("bias",)


def test_a_second_time_nothing_is_done():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    address = made.weight.data_ptr()
    report = materialize(made)
    assert made.weight.data_ptr() == address
    assert report.names("kept") == ("weight", "bias")


def test_a_module_without_tensors_is_fine():
    assert materialize(nn.ReLU()).tensors == ()


def test_a_tensor_hook_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [(4, 3)]


def test_a_hook_that_changes_the_gradient_does_so_once():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.bias.register_hook(lambda grad: grad * 10)
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert made.bias.grad.tolist() == [20] * 4


def test_a_hook_can_be_removed_afterwards():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    handle = made.bias.register_hook(seen.append)
    materialize(made)
    handle.remove()
    made(torch.ones(2, 3)).sum().backward()
    assert seen == []


def test_a_hook_after_accumulation_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [[2] * 4]


def test_hooks_of_modules_are_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.register_forward_pre_hook(lambda *_: seen.append("before"))
    made.register_forward_hook(lambda *_: seen.append("after"))
    made.register_full_backward_hook(lambda *_: seen.append("backward"))
    materialize(made)
    made(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_a_parametrization_goes_on_working():
    real, made, _, _ = build_twice(
        lambda: parametrizations.weight_norm(nn.Linear(3, 4))
    )
    materialize(made)
    assert parametrize.is_parametrized(made, "weight")
    assert torch.equal(made(torch.ones(3)), real(torch.ones(3)))


def test_a_parametrization_can_be_removed_afterwards():
    real, made, _, _ = build_twice(
        lambda: parametrizations.weight_norm(nn.Linear(3, 4))
    )
    materialize(made)
    parametrize.remove_parametrizations(made, "weight")
    assert torch.equal(made.weight, real.weight)


def test_the_old_weight_norm_goes_on_working():
    real, made, _, _ = build_twice(lambda: nn.utils.weight_norm(nn.Linear(3, 4)))
    materialize(made)
    assert torch.equal(made(torch.ones(3)), real(torch.ones(3)))


def test_a_pruned_module_goes_on_working():
    def build():
        return prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made(torch.ones(4)), real(torch.ones(4)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_made_before_steps_the_real_tensors(kind):
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    optimizer, wanted = kind(made.parameters(), lr=0.1), kind(real.parameters(), lr=0.1)
    materialize(made)
    for module, stepping in ((made, optimizer), (real, wanted)):
        module(torch.arange(6.0).view(2, 3)).pow(2).sum().backward()
        stepping.step()
    assert_bit_equal(made, real)


def test_a_graph_that_is_alive_does_not_matter():
    with record():
        made = nn.Linear(3, 4)
        loss = made(torch.ones(2, 3)).sum()
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert loss.grad_fn is not None
    assert made.bias.grad.tolist() == [2] * 4


def test_backward_through_the_old_graph_puts_no_gradient_on_the_real_tensor():
    with record():
        made = nn.Linear(3, 4)
        loss = made(torch.ones(2, 3)).sum()
    materialize(made)
    with record():
        loss.backward()
    assert made.bias.grad is None or not made.bias.grad.is_meta


def test_a_weak_reference_goes_on_to_mean_the_parameter():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    weak = weakref.ref(made.weight)
    materialize(made)
    gc.collect()
    assert weak() is made.weight


def test_gradients_are_dropped_and_counted():
    with record():
        made = nn.Linear(3, 4)
        made(torch.ones(2, 3)).sum().backward()
    report = materialize(made)
    assert made.weight.grad is None
    assert report.notes == ("2 gradients were dropped",)


def test_the_training_mode_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4).eval())
    materialize(made)
    assert not made.training


def test_a_materialized_module_can_be_copied_deeply():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    assert_bit_equal(copy.deepcopy(made), real)


def test_inference_mode_in_the_cell_makes_no_difference_to_values():
    def build():
        with torch.inference_mode():
            return nn.Linear(3, 4)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made.weight, real.weight)


# dtype


def test_dtype_casts_what_is_floating():
    real, made, _, _ = build_twice(lambda: nn.BatchNorm1d(4))
    materialize(made, dtype=torch.float16)
    assert_bit_equal(made, real.to(torch.float16))


def test_dtype_leaves_integers():
    _, made, _, _ = build_twice(lambda: nn.BatchNorm1d(4))
    materialize(made, dtype=torch.bfloat16)
    assert made.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float32])
def test_dtype_gives_what_to_would_give(dtype):
    real, made, _, _ = build_twice(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    materialize(made, dtype=dtype)
    assert_bit_equal(made, real.to(dtype))


def test_dtype_keeps_ties_and_views():
    _, made, _, _ = build_twice(Shared)
    materialize(made, dtype=torch.float16)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_dtype_casts_without_a_replay(init):
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    report = materialize(made, init=init, dtype=torch.float16)
    assert made.weight.dtype == torch.float16
    assert report.nbytes == (12 + 4) * 2


# The report


def test_the_report_counts_the_bytes_of_storages_once():
    _, made, _, _ = build_twice(Tied)
    assert materialize(made).nbytes == 10 * 4 * 4


def test_the_report_names_kinds():
    _, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {t.name: t.kind for t in report.tensors} == {
        "linear.weight": "parameter",
        "linear.bias": "parameter",
        "mask": "buffer",
        "steps": "buffer",
        "scale": "attribute",
        "listed[0]": "attribute",
        "listed[1]": "attribute",
        "mapped[0]": "attribute",
    }


def test_the_report_reads_as_text():
    _, made, _, _ = build_twice(Tied)
    lines = str(materialize(made)).splitlines()
    assert lines[0].startswith("Tied on cpu: 2 tensors, 160 bytes, in ")
    assert lines[1:] == [
        "  replay: 2 (embed.weight, head.weight)",
        "  ties kept: 1 (head.weight)",
    ]


def test_the_report_shouts_what_is_uninitialized():
    _, made, _, _ = build_twice(Raw)
    assert "  UNINITIALIZED: 1 (weight)" in str(materialize(made)).splitlines()


def test_reports_of_two_equal_runs_are_equal():
    first, second = (
        materialize(build_twice(lambda: nn.Linear(3, 4))[1]) for _ in range(2)
    )
    assert first == second


def test_the_peak_of_a_linear_is_its_own_size():
    _, made, _, _ = build_twice(lambda: nn.Linear(100, 50))
    assert materialize(made).peak_nbytes == (100 * 50 + 50) * 4


def test_the_report_counts_tensors_of_a_real_module():
    report = materialize(nn.Linear(3, 4))
    assert (report.nbytes, report.n_operators) == (0, 0)


# Progress


@pytest.mark.parametrize("init", ["replay", "reset", "empty", "checkpoint"])
def test_progress_never_goes_back_and_ends_at_one(init):
    real, made, _, _ = build_twice(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    fractions = []
    source = dict(real.state_dict()) if init == "checkpoint" else init
    materialize(made, init=source, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] == 1


def test_progress_ends_at_one_if_nothing_was_to_be_done():
    fractions = []
    materialize(nn.Linear(3, 4), progress=fractions.append)
    assert fractions[-1:] == [1]


def test_progress_ends_at_one_for_two_recordings():
    _, first, _, _ = build_twice(lambda: nn.Linear(2, 3))
    _, second, _, _ = build_twice(lambda: nn.Linear(3, 2))
    fractions = []
    materialize(nn.Sequential(first, second), progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


# Torch's generator


def draws_on_like(state):
    """Tell whether torch's generator stands where a real run left it."""
    return torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["linear", "transformer", "legacy constructor"])
def test_the_generator_goes_on_as_after_real_construction(name):
    _, made, _, state = build_twice(BUILDS[name])
    materialize(made)
    assert draws_on_like(state)


def test_the_generator_is_left_alone_if_it_was_used_since():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    torch.rand(1)
    before = torch.get_rng_state()
    report = materialize(made)
    assert torch.equal(torch.get_rng_state(), before)
    assert "was left alone: what is drawn next" in report.notes[0]


def test_the_generator_is_left_alone_if_the_cell_drew_nothing():
    _, made, _, _ = build_twice(lambda: nn.BatchNorm1d(3))
    before = torch.get_rng_state()
    assert materialize(made).notes == ()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_generator_goes_on_after_submodules_one_by_one(order):
    _, made, _, state = build_twice(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    )
    for index in order:
        materialize(made[index])
    assert draws_on_like(state)


def test_what_is_drawn_and_thrown_away_in_construction_counts():
    class Wasteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 3)
            nn.init.normal_(self.first.weight)
            torch.rand(7)
            self.second = nn.Linear(3, 4)
            torch.rand(5)

    real, made, _, state = build_twice(Wasteful)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_seed_within_the_cell_counts():
    def build():
        first = nn.Linear(2, 3)
        torch.manual_seed(7)
        return nn.Sequential(first, nn.Linear(3, 4))

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_fork_within_the_cell_counts():
    def build():
        first = nn.Linear(2, 3)
        with torch.random.fork_rng(devices=[]):
            second = nn.Linear(3, 4)
            third = nn.Linear(3, 4)
        return nn.Sequential(first, second, third, nn.Linear(4, 5))

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_fork_with_a_seed_of_its_own_counts():
    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            first = nn.Linear(2, 3)
        return nn.Sequential(first, nn.Linear(4, 5))

    real, made, _, state = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)
    assert draws_on_like(state)


def test_a_state_taken_and_put_back_gives_the_same_numbers_again():
    def build():
        nn.Linear(2, 2)
        state = torch.get_rng_state()
        first = nn.Linear(2, 3)
        torch.set_rng_state(state)
        return nn.Sequential(first, nn.Linear(2, 3))

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made[0].weight, made[1].weight)
    assert_bit_equal(made, real)


def test_a_generator_of_ones_own_counts():
    def build():
        generator = torch.Generator().manual_seed(11)
        module = nn.Linear(2, 3)
        nn.init.normal_(module.weight, generator=generator)
        nn.init.trunc_normal_(module.bias, generator=generator)
        return module

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_generator_from_before_the_cell_counts_from_where_it_stood():
    def fresh():
        generator = torch.Generator().manual_seed(11)
        torch.rand(5, generator=generator)
        return generator

    generator = fresh()
    real = torch.rand(3, generator=generator)
    generator = fresh()
    with record():
        made = register(torch.rand(3, generator=generator, device="meta"))
    materialize(made)
    assert torch.equal(made.buffer, real)


def copied_state():
    nn.Linear(2, 2)
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return register(torch.empty(3).normal_(generator=generator))


def cloned_state():
    generator = torch.Generator().manual_seed(3)
    torch.empty(3).normal_(generator=generator)
    other = generator.clone_state()
    return register(torch.empty(3).normal_(generator=other))


def seed_of_the_default():
    nn.Linear(2, 2)
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return register(torch.empty(3).normal_(generator=generator))


def state_back_to_the_default():
    generator = torch.Generator().manual_seed(3)
    torch.empty(3).normal_(generator=generator)
    torch.set_rng_state(generator.get_state())
    return register(torch.empty(3).normal_())


@pytest.mark.parametrize(
    "build",
    [copied_state, cloned_state, seed_of_the_default, state_back_to_the_default],
)
def test_a_state_carried_to_another_generator_counts(build):
    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


# Two recordings


def test_a_change_in_place_in_a_second_recording_counts():
    def build():
        return nn.Linear(3, 4)

    _, made, _, _ = build_twice(build)
    with record():
        nn.init.zeros_(made.weight)
    materialize(made)
    assert made.weight.tolist() == [[0] * 3] * 4


def test_what_a_second_recording_does_not_change_is_as_the_first_made_it():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        nn.init.zeros_(made.weight)
        made(torch.ones(3))
    materialize(made)
    assert torch.equal(made.bias, real.bias)


def test_a_cast_in_a_second_recording_counts():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        made.half()
    materialize(made)
    assert_bit_equal(made, real.half())


def test_statistics_of_a_forward_in_a_second_recording_count():
    real, made, _, _ = build_twice(lambda: nn.BatchNorm1d(3))
    real(torch.arange(12.0).view(4, 3))
    with record():
        made(torch.arange(12.0).view(4, 3))
    materialize(made)
    assert_bit_equal(made, real)


def test_an_optimizer_step_in_a_second_recording_counts():
    def train(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(module(torch.ones(2, 3)), torch.zeros(2, 4)).backward()
            optimizer.step()

    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    train(real)
    with record():
        train(made)
    materialize(made)
    assert_bit_equal(made, real)


def test_three_recordings_follow_each_other():
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    for factor in (2, 3):
        with record(), torch.no_grad():
            made.weight.mul_(factor)
    with torch.no_grad():
        real.weight.mul_(2).mul_(3)
    materialize(made)
    assert_bit_equal(made, real)


def test_the_trace_of_the_first_recording_gives_the_values_at_its_end():
    real, made, trace, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        nn.init.zeros_(made.weight)
    materialize(made, trace=trace)
    assert_bit_equal(made, real)


def test_the_trace_of_the_last_recording_gives_what_no_trace_gives():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record() as trace:
        nn.init.ones_(made.weight)
    materialize(made, trace=trace)
    assert made.weight.tolist() == [[1] * 3] * 4


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_change_outside_of_any_recording_is_refused_by_name(name):
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.zeros_(getattr(made, name))
    with pytest.raises(MaterializeError, match=f"'{name}': it was changed in place"):
        materialize(made)


def test_a_change_between_two_recordings_is_refused_by_name():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.ones_(made.weight)
    with record(), torch.no_grad():
        made.weight.mul_(2)
    with pytest.raises(
        MaterializeError, match=r"'weight': .*mul_.* in line \d+, was changed in place"
    ):
        materialize(made)


def test_a_change_outside_to_what_a_second_recording_reads_is_refused():
    _, first, _, _ = build_twice(lambda: nn.Linear(3, 4))
    nn.init.ones_(first.weight)
    with record():
        second = register(first.weight.detach() * 2)
    with pytest.raises(MaterializeError, match="changed in place"):
        materialize(second)


def test_a_change_outside_to_a_tensor_in_a_list_is_refused_by_name():
    _, made, _, _ = build_twice(Masked)
    made.listed[1].fill_(3)
    with pytest.raises(MaterializeError, match=r"'listed\[1\]': it was changed"):
        materialize(made)


def test_a_change_outside_to_a_tensor_of_no_module_then_is_refused_by_name():
    with record():
        weight = torch.ones(3)
    weight.fill_(3)
    with pytest.raises(MaterializeError, match="'buffer': it was changed in place"):
        materialize(register(weight))


def test_a_change_within_another_tie_is_refused():
    _, made, _, _ = build_twice(Shared)
    with torch.no_grad():
        made.matrix.fill_(3)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(made)


def test_replacing_a_tensor_of_the_first_recording_takes_the_new_one():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    with record():
        made.weight = nn.Parameter(torch.full((4, 3), 6.0))
    materialize(made)
    assert made.weight.tolist() == [[6] * 3] * 4


# Constants


def test_a_real_tensor_read_in_the_cell_has_its_values():
    values = torch.arange(4.0)
    with record():
        made = register(torch.empty(4).copy_(values))
    materialize(made)
    assert made.buffer.tolist() == [0, 1, 2, 3]


def test_a_real_tensor_counts_as_it_was_when_recorded():
    values = torch.arange(4.0)
    with record():
        made = register(torch.empty(4).copy_(values))
    values.zero_()
    materialize(made)
    assert made.buffer.tolist() == [0, 1, 2, 3]


def test_a_numpy_array_counts_as_it_was_when_recorded():
    values = np.arange(4, dtype=np.float32)
    with record():
        made = nn.Sequential(
            register(torch.from_numpy(values).to("meta")),
            register(torch.tensor(values)),
            register(torch.as_tensor(values)),
        )
    values[:] = 0
    materialize(made)
    assert [m.buffer.tolist() for m in made] == [[0, 1, 2, 3]] * 3


VALUES = {
    "tensor": lambda: torch.tensor([[1.5, 2], [3, 4]]),
    "tensor of integers": lambda: torch.tensor([1, 2, 3]),
    "tensor of one number": lambda: torch.tensor(2.5),
    "tensor of booleans": lambda: torch.tensor([True, False]),
    "tensor of complex numbers": lambda: torch.tensor([1 + 2j]),
    "tensor with a dtype": lambda: torch.tensor([1, 2], dtype=torch.float16),
    "tensor by keyword": lambda: torch.tensor(data=[1.0, 2.0]),
    "tensor with grad": lambda: torch.tensor([1.0], requires_grad=True).detach(),
    "tensor of nothing": lambda: torch.tensor([]),
    "tensor of a nested tensor": lambda: (
        torch.tensor([[torch.tensor(3.0).tolist()]])
        if torch.get_default_device().type == "cpu"
        else torch.tensor([[3.0]])
    ),
    "as_tensor": lambda: torch.as_tensor([1.0, 2.0]),
    "asarray": lambda: torch.asarray([1.0, 2.0]),
    "asarray of a number": lambda: torch.asarray(4.0, dtype=torch.float64),
    "scalar_tensor": lambda: torch.scalar_tensor(3.5),
    "new_tensor": lambda: torch.ones(2, dtype=torch.float64).new_tensor([1, 2]),
    "new_tensor by keyword": lambda: torch.ones(2).new_tensor(data=[1, 2]),
    "new_full": lambda: torch.ones(2).new_full((3,), 4.0),
    "a legacy constructor": lambda: torch.FloatTensor([1.0, 2.0]) * 2,
    "from Python values, then changed": lambda: torch.tensor([1.0, 2.0]).mul_(3),
    "range": lambda: torch.tensor(range(3)),
    "numpy scalar": lambda: torch.tensor(np.float32(1.5)),
    "list of numpy scalars": lambda: torch.tensor([np.float32(1.5), np.float32(2)]),
    "list of arrays": lambda: torch.tensor(np.array([np.arange(2.0)])),
    "from_numpy": lambda: torch.from_numpy(np.arange(3.0)) * 2,
    "from a buffer": lambda: torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8),
    "bytes of a list of tensors": lambda: torch.stack([torch.ones(2), torch.zeros(2)]),
}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_python_values_are_kept(name, cache):
    real, made, _, _ = build_twice(lambda: register(VALUES[name]()), cache=cache)
    materialize(made)
    assert_bit_equal(made, real)


def test_python_values_in_a_list_count_as_they_were():
    values = [1.0, 2.0]
    with record():
        made = register(torch.tensor(values))
    values[0] = 9.0
    materialize(made)
    assert made.buffer.tolist() == [1, 2]


def test_item_assignment_of_python_values_is_kept():
    def build():
        mask = torch.zeros(3, 3)
        mask[1] = 2.0
        mask[:, 2] = torch.tensor([4.0, 5.0, 6.0])
        mask[torch.tensor([0, 2]), 0] = float("-inf")
        return register(mask)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_large_real_tensor_counts_as_long_as_it_is_unchanged():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    materialize(made)
    assert torch.equal(made.buffer, values)


def test_a_large_real_tensor_that_was_changed_since_is_refused():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    values[17] = -1
    with pytest.raises(
        MaterializeError, match=r"was changed since.*run the cell again"
    ):
        materialize(made)


def test_a_large_real_tensor_whose_entries_were_exchanged_is_refused():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    values.copy_(values.view(-1, 2, 2).flip(1).reshape(-1))  # whole words of 64 bits
    with pytest.raises(MaterializeError, match="was changed since"):
        materialize(made)


def test_a_large_real_tensor_of_a_checkpoint_loaded_in_the_cell_is_not_shared():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    materialize(made)
    values.zero_()
    assert made.buffer[1].item() == 1
