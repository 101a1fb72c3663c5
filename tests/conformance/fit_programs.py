"""Ten models, each with a step at a batch and a length: what ``fits`` compares."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

Step = Callable[[int, int], object]
"""A training step of a batch, and of a length or an image's side."""


class Program(NamedTuple):
    """A training step, and what it is asked at.

    Attributes:
        step: It.
        sizes: By name, sizes that are to be interpolated, all that are tried.
        length: At which it is recorded.
    """

    step: Step
    sizes: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    length: int = 128


def train(model: nn.Module, find_loss: Callable[[], Tensor]) -> None:
    """Make two steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        find_loss().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_text(make: Callable[[], nn.Module], vocabulary: int) -> Step:
    """Return a step of a language model."""

    def step(batch: int, length: int) -> None:
        model = make().train()
        ids = torch.randint(0, vocabulary, (batch, length))
        train(model, lambda: model(input_ids=ids, labels=ids).loss)

    return step


def decode_text(make: Callable[[], nn.Module]) -> Step:
    """Return a prompt of some length, and the token after it, by a cache."""

    @torch.no_grad()
    def step(batch: int, length: int) -> None:
        model = make().eval()
        ids = torch.zeros(batch, length, dtype=torch.long)
        out = model(ids, use_cache=True, logits_to_keep=1)
        token = out.logits.argmax(-1)
        model(token, past_key_values=out.past_key_values, use_cache=True)

    return step


def train_classifier(make: Callable[[], nn.Module], vocabulary: int) -> Step:
    """Return a step of a classifier of texts."""

    def step(batch: int, length: int) -> None:
        model = make().train()
        ids = torch.randint(0, vocabulary, (batch, length))
        labels = torch.randint(0, 2, (batch,))
        train(model, lambda: model(input_ids=ids, labels=labels).loss)

    return step


def train_images(make: Callable[[], nn.Module]) -> Step:
    """Return a step of a classifier of images."""

    def step(batch: int, length: int) -> None:
        model = make().train()
        images = torch.randn(batch, 3, length, length)
        labels = torch.randint(0, 2, (batch,))
        train(model, lambda: model(pixel_values=images, labels=labels).loss)

    return step


class Tagger(nn.Module):
    """A bidirectional LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 300)
        self.lstm = nn.LSTM(300, 256, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(512, 10_000)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """Return what has the loss of a tag for each word."""
        tags = self.tags(self.lstm(self.words(input_ids))[0])
        loss = nn.functional.cross_entropy(tags.flatten(0, 1), labels.flatten())
        return SimpleNamespace(loss=loss)


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.make(3, 32), self.make(32, 64)])
        self.middle = self.make(64, 128)
        self.up = nn.ModuleList([self.make(192, 64), self.make(96, 32)])
        self.head = nn.Conv2d(32, 2, 1)

    def make(self, n_in: int, n_out: int) -> nn.Module:
        """Return a convolution with its norm."""
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(n_out), nn.ReLU())

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        """Return what has the loss of a class for each image."""
        x, skips = pixel_values, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1))
        loss = nn.functional.cross_entropy(self.head(x).mean((2, 3)), labels)
        return SimpleNamespace(loss=loss)


SMALL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "use_cache": False,
    }
)
BATCHES: Final = ((16, 64, 100), range(1, 4097))
LENGTHS: Final = ((64, 100, 256, 509, 896), range(1, 1025))
SIDES: Final = ((96, 160, 224), range(32, 1025, 32))
TEXT: Final = {"batch": BATCHES, "length": LENGTHS}
IMAGES: Final = {"batch": BATCHES, "length": SIDES}

PROGRAMS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "GPT-2": Program(
            train_text(lambda: GPT2LMHeadModel(GPT2Config(use_cache=False)), 50_257),
            TEXT,
        ),
        "Llama, small": Program(
            train_text(lambda: LlamaForCausalLM(LlamaConfig(**SMALL)), 500), TEXT
        ),
        "Llama, small, decoding": Program(
            decode_text(lambda: LlamaForCausalLM(LlamaConfig(**SMALL))), TEXT
        ),
        "Mixtral, small": Program(
            train_text(
                lambda: MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4)),
                500,
            ),
            TEXT,
        ),
        "T5": Program(
            train_text(
                lambda: T5ForConditionalGeneration(
                    T5Config(use_cache=False, decoder_start_token_id=0)
                ),
                500,
            ),
            TEXT,
        ),
        "BERT": Program(
            train_classifier(
                lambda: BertForSequenceClassification(
                    BertConfig(max_position_embeddings=1024)
                ),
                500,
            ),
            TEXT,
        ),
        "ViT": Program(
            train_images(lambda: ViTForImageClassification(ViTConfig())),
            {"batch": BATCHES},
            224,
        ),
        "ResNet-50": Program(
            train_images(lambda: ResNetForImageClassification(ResNetConfig())),
            IMAGES,
            224,
        ),
        "U-Net": Program(train_images(UNet), IMAGES, 224),
        "LSTM": Program(
            train_text(Tagger, 10_000),
            {"batch": BATCHES, "length": ((16, 33), range(1, 129))},
            32,
        ),
        "Transformer": Program(
            lambda batch, length: train(
                model := nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(64, 4, batch_first=True), 3
                ),
                lambda: model(torch.ones(batch, length, 64)).sum(),
            ),
            TEXT,
        ),
    }
)
