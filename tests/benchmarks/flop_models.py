"""Models whose FLOPs of one forward are known by a formula on paper: 2 a multiply-add.

In the formulas T is the number of tokens or positions, D the width, F the width of a
hidden layer, L the number of layers, V the vocabulary. Products count, nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopModel:
    """One row of the table.

    Attributes:
        name: How the row is called.
        build: Makes the model and its input, for a forward without gradients.
        flops: Of one forward, by hand.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Tensor]]
    flops: int


class FirstOutput(nn.Module):
    """A model of transformers that takes one tensor and returns one."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model.eval(), names

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.model(**dict.fromkeys(self.names, x))[0]
        return result


def tokens(n: int) -> Tensor:
    """Return a sequence of different tokens."""
    return torch.arange(n).view(1, n)


def build_gpt2() -> tuple[nn.Module, Tensor]:
    """GPT-2 of 124 million parameters, 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    return FirstOutput(model, "input_ids"), tokens(256)


def count_gpt2(t: int = 256, d: int = 768, n: int = 12, v: int = 50257) -> int:
    """Four projections 8 T D D, two of a hidden layer 16 T D D, attention 4 T T D."""
    return n * (24 * t * d * d + 4 * t * t * d) + 2 * t * d * v


def build_llama() -> tuple[nn.Module, Tensor]:
    """A small Llama whose query heads share key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        use_cache=False,
    )
    return FirstOutput(LlamaForCausalLM(config), "input_ids"), tokens(128)


def count_llama(t: int = 128, d: int = 256, f: int = 688, n: int = 4) -> int:
    """Queries and result D wide, keys and values a quarter; a gated hidden layer."""
    projected = 2 * t * d * (2 * d + 2 * d // 4)
    rotated = 2 * (d // 8 // 2) * t  # angles are a product of positions and rates
    return n * (projected + 4 * t * t * d + 6 * t * d * f) + 2 * t * d * 1000 + rotated


def build_mixtral() -> tuple[nn.Module, Tensor]:
    """A small mixture of experts, of which each token takes two of four."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=500,
        use_cache=False,
    )
    return FirstOutput(MixtralForCausalLM(config), "input_ids"), tokens(64)


def count_mixtral(t: int = 64, d: int = 64, f: int = 128, n: int = 2) -> int:
    """As Llama's, the hidden layer twice, and the choice of one of four experts."""
    projected = 2 * t * d * (2 * d + 2 * d // 2)
    experts = 2 * 6 * t * d * f + 2 * t * d * 4
    rotated = 2 * (d // 4 // 2) * t
    return n * (projected + 4 * t * t * d + experts) + 2 * t * d * 500 + rotated


def build_bert() -> tuple[nn.Module, Tensor]:
    """BERT's base encoder, 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False)
    return FirstOutput(model, "input_ids"), tokens(128)


def count_encoder(t: int, d: int, f: int, n: int) -> int:
    """Four projections, attention, two of a hidden layer."""
    return n * (8 * t * d * d + 4 * t * t * d + 4 * t * d * f)


def build_vit() -> tuple[nn.Module, Tensor]:
    """A vision transformer: 196 patches of 16 x 16, and a class token."""
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(), add_pooling_layer=False)
    return FirstOutput(model, "pixel_values"), torch.randn(1, 3, 224, 224)


def build_t5() -> tuple[nn.Module, Tensor]:
    """T5 small, 64 tokens in and 64 out."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    return FirstOutput(model, "input_ids", "decoder_input_ids"), tokens(64)


def count_t5(t: int = 64, d: int = 512, f: int = 2048, n: int = 6) -> int:
    """An encoder, and a decoder that attends to it, too; 32,128 tokens."""
    attention = 8 * t * d * d + 4 * t * t * d
    return n * (3 * attention + 2 * 4 * t * d * f) + 2 * t * d * 32128


def build_resnet() -> tuple[nn.Module, Tensor]:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)
    model = ResNetForImageClassification(config)
    return FirstOutput(model, "pixel_values"), torch.randn(1, 3, 224, 224)


def count_convolution(n_in: int, n_out: int, size: int, side: int) -> int:
    """Size x size weights for each channel in and out, at side x side positions."""
    return 2 * n_in * n_out * size * size * side * side


def count_resnet() -> int:
    """A first layer, then blocks of 1, 3 and 1, the stride in the middle one."""
    total, width, side = count_convolution(3, 64, 7, 112), 64, 56
    for out, depth in ((256, 3), (512, 4), (1024, 6), (2048, 3)):
        inner = out // 4
        before, side = side, side if out == 256 else side // 2
        total += count_convolution(width, out, 1, side)  # the shortcut
        total += count_convolution(width, inner, 1, before)
        total += (depth - 1) * count_convolution(out, inner, 1, side)
        total += depth * count_convolution(inner, inner, 3, side)
        total += depth * count_convolution(inner, out, 1, side)
        width = out
    return total + 2 * 2048 * 1000


def build_mobile() -> tuple[nn.Module, Tensor]:
    """Convolutions of single channels, then of all at one position, twice."""

    def unit(n_in: int, n_out: int) -> list[nn.Module]:
        apart = nn.Conv2d(n_in, n_in, 3, padding=1, groups=n_in)
        return [apart, nn.ReLU(), nn.Conv2d(n_in, n_out, 1), nn.ReLU()]

    return nn.Sequential(*unit(32, 64), *unit(64, 128)), torch.randn(1, 32, 56, 56)


class UNet(nn.Module):
    """One step down and up again, with a way around."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 32, 3, padding=1)
        self.below = nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.leave = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        around = self.enter(x).relu()
        below = self.below(nn.functional.max_pool2d(around, 2)).relu()
        result: Tensor = self.leave(torch.cat([self.up(below), around], 1))
        return result


def count_unet(side: int = 64) -> int:
    """Of the transposed one each position below meets 2 x 2 weights."""
    half = side // 2
    return (
        count_convolution(3, 32, 3, side)
        + count_convolution(32, 64, 3, half)
        + count_convolution(64, 32, 2, half)
        + count_convolution(64, 3, 3, side)
    )


def build_encoder(*, trains: bool) -> tuple[nn.Module, Tensor]:
    """Four layers of torch's own encoder, 256 wide."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return model.train(trains), torch.randn(2, 128, 256)


class Recurrent(nn.Module):
    """Two layers in both directions, and a class of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.layers = nn.LSTM(128, 128, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.layers(self.embed(x))
        result: Tensor = self.head(steps[:, -1])
        return result


def count_recurrent(n: int = 4 * 30, d: int = 128) -> int:
    """Four gates, both directions; the second layer reads both of the first."""
    return 2 * n * 2 * 4 * d * ((d + d) + (2 * d + d)) + 2 * 4 * 2 * d * 5


MODELS = (
    FlopModel(name="GPT-2", build=build_gpt2, flops=count_gpt2()),
    FlopModel(name="Llama, shared heads", build=build_llama, flops=count_llama()),
    FlopModel(name="Mixtral", build=build_mixtral, flops=count_mixtral()),
    FlopModel(name="BERT", build=build_bert, flops=count_encoder(128, 768, 3072, 12)),
    FlopModel(
        name="ViT",
        build=build_vit,
        flops=count_encoder(197, 768, 3072, 12) + 2 * 196 * 768 * 768,
    ),
    FlopModel(name="T5", build=build_t5, flops=count_t5()),
    FlopModel(name="ResNet-50", build=build_resnet, flops=count_resnet()),
    FlopModel(
        name="depthwise convolutions",
        build=build_mobile,
        flops=2 * 56 * 56 * (9 * 32 + 32 * 64 + 9 * 64 + 64 * 128),
    ),
    FlopModel(
        name="U-Net",
        build=lambda: (UNet(), torch.randn(1, 3, 64, 64)),
        flops=count_unet(),
    ),
    FlopModel(
        name="nn.TransformerEncoder",
        build=lambda: build_encoder(trains=True),
        flops=2 * count_encoder(128, 256, 1024, 4),
    ),
    FlopModel(
        name="the same, eval",
        build=lambda: build_encoder(trains=False),
        flops=2 * count_encoder(128, 256, 1024, 4),
    ),
    FlopModel(
        name="LSTM",
        build=lambda: (Recurrent(), torch.randint(0, 1000, (4, 30))),
        flops=count_recurrent(),
    ),
)
