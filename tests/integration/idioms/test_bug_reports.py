"""Public bug reports of 2025 and 2026 about shapes on meta and about wrong counts.

Each is a program of our own. What a recording has is compared with the CPU, or with a
number that is counted by hand.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import materialize, record
from tests.integration.idioms.side_by_side import run, run_both

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
QUERY = 1, 2, 4, 8

REFUSED = {
    # https://github.com/pytorch/pytorch/issues/177451
    "a kernel that is larger than the padded input": lambda: functional.conv2d(
        torch.rand(1, 3, 4, 4), torch.rand(2, 3, 7, 7)
    ),
    "a kernel that its dilation makes larger": lambda: functional.conv1d(
        torch.rand(70_000, 3, 8), torch.rand(2, 3, 3), dilation=4
    ),
    # https://github.com/pytorch/pytorch/issues/178472
    "fewer filters than groups": lambda: functional.conv1d(
        torch.rand(2, 12, 30), torch.rand(3, 2, 3), groups=6
    ),
    # https://github.com/pytorch/pytorch/issues/195743
    "attention with dropout": lambda: flash_attention(*(torch.rand(QUERY),) * 3, 0.5),
    "attention of integers": lambda: flash_attention(
        *(torch.arange(64).view(QUERY),) * 3
    ),
    "attention of three dimensions": lambda: flash_attention(
        *(torch.rand(2, 4, 8),) * 3
    ),
    "attention of heads of two sizes": lambda: flash_attention(
        torch.rand(QUERY), *(torch.rand(1, 2, 4, 16),) * 2
    ),
    "attention of two dtypes": lambda: flash_attention(
        torch.rand(QUERY), *(torch.rand(QUERY).bfloat16(),) * 2
    ),
    # https://github.com/pytorch/pytorch/issues/178125
    "an output padding that is not smaller than stride or dilation": lambda: (
        functional.conv_transpose1d(
            torch.randn(2, 4, 5), torch.randn(4, 3, 5), stride=2, output_padding=2
        )
    ),
    # https://github.com/pytorch/pytorch/issues/178128
    "a bias of another size": lambda: functional.conv_transpose3d(
        torch.randn(1, 4, 3, 3, 3), torch.randn(4, 6, 2, 2, 2), torch.randn(5)
    ),
    "a bias of one group alone": lambda: functional.conv_transpose3d(
        torch.randn(1, 4, 3, 3, 3), torch.randn(4, 6, 2, 2, 2), torch.randn(6), groups=2
    ),
    # https://github.com/pytorch/pytorch/pull/183008
    "a product of two dtypes": lambda: torch.rand(2, 3).half() @ torch.rand(3, 4),
    "batches of two dtypes": lambda: torch.addbmm(
        torch.rand(2, 4), torch.rand(1, 2, 3).half(), torch.rand(1, 3, 4)
    ),
}
for mask in (torch.ones(4, 4) > 0, torch.ones(2, 4, 4), torch.ones(4, 3)):
    REFUSED[f"attention with a mask of {mask.dtype}, {tuple(mask.shape)}"] = (
        lambda mask=mask: flash_attention(*(torch.rand(QUERY),) * 3, attn_mask=mask)
    )


def describe(tensor):
    """Return shape, strides and dtype."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused_with_the_words_of_the_cpu(name):
    plain, recorded, _ = run_both(REFUSED[name])
    assert recorded.refusal == plain.refusal


# https://github.com/pytorch/pytorch/issues/192668
def test_a_batch_norm_of_a_transposed_input_has_the_strides_of_the_cpu():
    def program():
        x = torch.randn(2, 3, 4).transpose(1, 2)
        weight, bias, mean, var = (torch.ones(4) for _ in range(4))
        native = torch.ops.aten.native_batch_norm.default
        made = native(x, weight, bias, mean, var, True, 0.1, 1e-5)
        return [describe(tensor) for tensor in made]

    plain, recorded, _ = run_both(program)
    assert recorded.returned == plain.returned
    assert plain.returned[0][1] == (12, 3, 1)


# https://github.com/pytorch/pytorch/pull/192816
@pytest.mark.parametrize("shape", [(1, 0, 4, 4), (0, 3, 4, 4), (1, 2, 0, 4), (0, 4, 4)])
def test_pixels_of_nothing_are_unshuffled_as_on_the_cpu(shape):
    plain, recorded, _ = run_both(
        lambda: functional.pixel_unshuffle(torch.zeros(shape), 2).shape
    )
    assert recorded.returned == plain.returned


def divide(a, b):
    return torch.div(a, b, rounding_mode="floor")


def repeat_twice(image):
    """Return the pixels of an image at repeated positions of its rows and columns."""
    at = torch.tensor([0, 0, 1, 1, 2, 2])
    return torch.ops.aten._unsafe_index(image, [None, None, at[:, None], at])


def attend_in_rows(mask):
    """Return attention of heads that are not apart in memory, as one row a token."""
    query = torch.rand(2, 8, 4 * 6).view(2, 8, 4, 6).transpose(1, 2)
    made = functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    return made.transpose(1, 2).view(2, 8, 24)


def differentiate(function, *shape):
    """Return the gradient of a function of real numbers that are drawn."""
    x = torch.randn(shape, requires_grad=True)
    function(x).abs().sum().backward()
    return x.grad


WINDOW = torch.ones(32)

# https://github.com/pytorch/pytorch/issues/139312
# https://github.com/pytorch/pytorch/issues/141426
# https://github.com/pytorch/pytorch/issues/144187
# https://github.com/pytorch/pytorch/issues/152634
# https://github.com/pytorch/pytorch/issues/159660
# https://github.com/pytorch/pytorch/issues/172830
# https://github.com/pytorch/pytorch/issues/178039
# https://github.com/pytorch/pytorch/issues/182200
# https://github.com/pytorch/pytorch/issues/198364
STRIDED = {
    **{
        f"{function.__name__} of {n_rows} rows": lambda function=function, n=n_rows: (
            function(torch.rand(n, 5).mT, torch.rand(5, n) + 1)
        )
        for function in (torch.copysign, torch.floor_divide, torch.xlogy, divide)
        for n_rows in (6, 300_000)
    },
    "addr": lambda: torch.addr(torch.rand(6, 5).mT, torch.ones(5), torch.ones(6)),
    "put": lambda: torch.rand(6, 5).mT.put(torch.tensor([0, 7]), torch.ones(2)),
    "unsafe index": lambda: repeat_twice(
        torch.rand(2, 4, 3, 3).to(memory_format=torch.channels_last)
    ),
    "static nonzero": lambda: torch.nonzero_static(torch.eye(5), size=5),
    "conjugate of a transform": lambda: torch.conj_physical(
        torch.fft.fft(torch.zeros(5, 3, 6), dim=1)
    ),
    "upsampled channels last": lambda: functional.interpolate(
        torch.rand(1, 8, 1, 1).to(memory_format=torch.channels_last),
        scale_factor=2,
        mode="bilinear",
    ),
    "attention": lambda: attend_in_rows(None),
    "attention, masked": lambda: attend_in_rows(torch.ones(8, 8).tril() > 0),
    "gradient of stft": lambda: differentiate(
        lambda x: torch.stft(x, 32, window=WINDOW, return_complex=True), 128
    ),
    "gradient of rfftn": lambda: differentiate(torch.fft.rfftn, 4, 8, 8),
    "gradient of fftn": lambda: differentiate(torch.fft.fftn, 2, 4, 4, 4),
    "zero": lambda: torch.ops.aten.zero.default(torch.rand(23, 3).t()),
    "pad": lambda: functional.pad(torch.rand(2, 3, 4).permute(2, 0, 1), (1, 1, 0, 2)),
    "pad, channels last": lambda: functional.pad(
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), (1, 1)
    ),
}


@pytest.mark.parametrize("name", STRIDED)
def test_an_operator_keeps_strides_as_on_the_cpu(name):
    plain, recorded, _ = run_both(lambda: describe(STRIDED[name]()))
    assert recorded.returned == plain.returned


def pool_partly_outside(x):
    """Return the gradient of means whose last window reaches over the edge."""
    x.requires_grad_()
    functional.avg_pool2d(x, 3, 2, ceil_mode=True).sum().backward()
    return x.grad


# https://github.com/pytorch/pytorch/pull/176240
# https://github.com/pytorch/pytorch/issues/183249
# https://github.com/pytorch/pytorch/issues/198119
COMPUTED = {
    "a normal distribution cut off": lambda: nn.init.trunc_normal_(
        torch.empty(30, 40, dtype=torch.bfloat16), std=0.5, a=-0.1, b=0.3
    ),
    "pools at random positions": lambda: functional.fractional_max_pool2d(
        torch.rand(1, 2, 8, 8, dtype=torch.float64), 3, output_size=(4, 4)
    ),
    "a gradient of means": lambda: pool_partly_outside(
        torch.rand(1, 2, 6, 6, dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_values_and_later_draws_are_those_of_the_cpu(name):
    plain, recorded, _ = run_both(lambda: (COMPUTED[name](), torch.rand(3)))
    materialize(recorded.returned)
    assert all(map(torch.equal, recorded.returned, plain.returned))


# https://github.com/pytorch/pytorch/issues/188370
def test_sizes_that_depend_on_data_are_those_of_the_cpu():
    def program():
        x = torch.tensor([1, 4, 2, 4])
        found = torch.bincount(x), torch.unique(x), x.masked_select(x > 1), x.nonzero()
        return [describe(tensor) for tensor in found]

    plain, recorded, _ = run_both(program)
    assert recorded.returned == plain.returned


# https://github.com/pytorch/pytorch/issues/195460
# https://github.com/pytorch/pytorch/pull/177188
@pytest.mark.parametrize("n_key_heads", [12, 4])
def test_attention_on_the_cpu_counts_two_products_for_each_head_of_queries(n_key_heads):
    with record() as trace:
        query = torch.randn(1, 12, 64, 32)
        key = torch.randn(1, n_key_heads, 64, 32)
        functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    assert trace.flops == 2 * (2 * 12 * 64 * 64 * 32)


# https://github.com/deepspeedai/DeepSpeed/pull/8323
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_transposed_convolution_counts_each_weight_once_for_each_input(groups):
    with record() as trace:
        layer = nn.ConvTranspose2d(4, 8, 3, stride=2, groups=groups, bias=False)
        layer(torch.randn(2, 4, 5, 5))
    per_position = math.prod((4, 8 // groups, 3, 3))
    assert trace.flops == 2 * (2 * 5 * 5 * per_position)


# https://github.com/pytorch/pytorch/pull/183405
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "n_positions"), [(nn.Conv2d, 3 * 3), (nn.ConvTranspose2d, 7 * 7)]
)
def test_both_gradients_of_a_convolution_count_as_much_as_itself(
    kind, n_positions, groups
):
    with record() as trace:
        layer = kind(4, 8, 3, stride=2, groups=groups, bias=False)
        layer(torch.randn(2, 4, 7, 7, requires_grad=True)).sum().backward()
    per_position = math.prod((4, 8 // groups, 3, 3))
    assert trace.flops == 3 * (2 * 2 * n_positions * per_position)


# https://github.com/pytorch/pytorch/issues/178064
def test_flash_attention_below_the_public_function_has_its_heads_after_the_tokens():
    with record(as_device="cuda") as trace:
        query = torch.rand(2, 16, 3, 8, dtype=torch.bfloat16)
        given = query, query, query, None, None, 16, 16, 0.0, False, False
        torch.ops.aten._flash_attention_forward(*given)
    assert trace.flops == 2 * (2 * 2 * 3 * 16 * 16 * 8)


# https://github.com/deepspeedai/DeepSpeed/pull/8419
@pytest.mark.parametrize(
    ("a", "b", "n_products"),
    [
        ((8,), (8,), 8),
        ((4, 8), (8,), 4 * 8),
        ((2, 1, 4, 8), (3, 8, 5), 2 * 3 * 4 * 8 * 5),
    ],
)
def test_a_product_counts_each_element_of_its_result(a, b, n_products):
    with record() as trace:
        torch.rand(a) @ torch.rand(b)
    assert trace.flops == 2 * n_products


# https://github.com/allenai/olmoearth_pretrain/pull/605
# https://github.com/pytorch/pytorch/issues/126268
@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode]
)
def test_an_encoder_layer_counts_its_products_on_each_path(mode):
    with record() as trace, mode():
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
        layer(torch.rand(2, 5, 16))
    projections, attention = 4 * 16 * 16, 2 * 5 * 16  # of each of ten positions
    assert trace.flops == 2 * 10 * (projections + attention + 2 * 16 * 32)


class Inner(nn.Module):
    """A layer whose ``forward`` others call without its hooks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, x):
        return self.layer.forward(x)


class Reused(nn.Module):
    """A module under two names, a weight in two modules, a parameter of its own."""

    def __init__(self):
        super().__init__()
        act = nn.PReLU()
        self.inner, self.first, self.second = Inner(), nn.Linear(5, 5), nn.Linear(5, 5)
        self.blocks = nn.ModuleList([nn.Sequential(self.first, act), act])
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = self.inner.forward(x) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.second(x)


# https://github.com/TylerYep/torchinfo/issues/366
# https://github.com/TylerYep/torchinfo/issues/377
# https://github.com/TylerYep/torchinfo/pull/396
def test_parameters_that_are_shared_or_called_past_hooks_are_counted_once():
    with record() as trace:
        model = Reused()
        model(torch.rand(2, 3))
    sizes = [parameter.numel() for parameter in model.parameters()]
    (root,) = trace.modules
    assert root.n_parameters == sum(sizes) == (3 * 5 + 5) + (5 * 5 + 5) + 5 + 5 + 1
    assert root.parameter_nbytes == 4 * sum(sizes)


# https://github.com/pytorch/torchtitan/pull/3225
def test_a_tied_head_has_no_parameters_of_its_own_and_counts_its_product():
    with record() as trace:
        words, head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        head.weight = words.weight
        nn.Sequential(words, head)(torch.arange(10).view(2, 5))
    assert trace.modules[0].n_parameters == 11 * 6
    assert trace.flops == 2 * 10 * (11 * 6)


class DropPaths(nn.Module):
    """Layers whose constructor reads rates and sizes from tensors."""

    def __init__(self):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.1, 5, device="cpu")]
        self.drops = [nn.Dropout(rate) for rate in rates]
        self.layer = nn.Linear(*torch.tensor([2, 3]).cumsum(0).tolist())


# https://github.com/huggingface/transformers/issues/43957
def test_a_constructor_on_meta_reads_numbers_as_on_the_cpu():
    def program(device):
        with torch.device(device):
            model = DropPaths()
        return [drop.p for drop in model.drops], model.layer.weight.shape

    with record():
        recorded = run(lambda: program("meta")).returned
    assert recorded == program("cpu")
    assert "meta" in str(run(lambda: program("meta")).error)  # without a recording


class Rotary(nn.Module):
    """A weight, a table that is not saved, and a head that is tied to the weight."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight
        table = 1 / 10_000 ** (torch.arange(0, 4, 2) / 4)
        self.register_buffer("inv_freq", table, persistent=False)


# https://github.com/huggingface/transformers/issues/45902
# https://github.com/Modalities/modalities/issues/357
def test_a_model_built_on_meta_keeps_tables_and_ties_without_to_empty():
    def program(device):
        with torch.device(device):
            return Rotary()

    wanted = run(lambda: program("cpu")).returned
    emptied = program("meta").to_empty(device="cpu")
    assert emptied.head.weight is not emptied.words.weight
    with record():
        model = run(lambda: program("meta")).returned
    materialize(model)
    assert model.head.weight is model.words.weight
    assert torch.equal(model.words.weight, wanted.words.weight)
    assert torch.equal(model.inv_freq, wanted.inv_freq)


# https://github.com/huggingface/transformers/issues/48892
def test_a_table_that_is_made_on_the_cpu_keeps_its_values():
    def program():
        with torch.device("meta"):
            layer = nn.Linear(2, 2)
            layer.register_buffer("table", torch.arange(3, device="cpu") * 2, False)
        return layer

    with record():
        layer = program()
    materialize(layer)
    assert layer.table.tolist() == [0, 2, 4]


# https://github.com/huggingface/transformers/issues/45902
def test_what_to_empty_leaves_without_values_is_reported_by_name():
    with record():
        with torch.device("meta"):
            model = Rotary()
        model.to_empty(device="cpu")
        model.words.reset_parameters()
        model.head.weight = model.words.weight
    report = materialize(model)
    assert report.uninitialized == ("inv_freq",)
