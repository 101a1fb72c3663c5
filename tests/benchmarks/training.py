"""What a training loop costs that prints its losses, recorded and for real.

``python -m tests.benchmarks.training [NAME ...]`` prints the table: wall-clock seconds,
medians of interleaved runs after one of each, and whether the losses are equal.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Final, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

import meta_magic as mm

Losses: TypeAlias = Iterator[torch.Tensor]

SEED: Final = 0


def train(
    model: nn.Module, compute: Callable[[], torch.Tensor], n_steps: int, rate: float
) -> Losses:
    """Take steps of Adam, and yield the loss of each."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = compute()
        loss.backward()
        optimizer.step()
        yield loss


def train_perceptron() -> Losses:
    """Three layers for images of 28 by 28: the loss of each 50th of 200 steps."""
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(512, 10))

    def compute() -> torch.Tensor:
        x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))
        return functional.cross_entropy(model(x), y)

    yield from list(train(model, compute, 200, 1e-3))[::50]


def train_convolutions() -> Losses:
    """Two convolutions on images of 64 by 64, 10 steps."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16 * 16, 10)),
    )

    def compute() -> torch.Tensor:
        x, y = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
        return functional.cross_entropy(model(x), y)

    return train(model, compute, 10, 1e-3)


def train_lstm() -> Losses:
    """A classifier of packed sequences, 3 steps."""
    embedding = nn.Embedding(10_000, 128)
    lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
    head = nn.Linear(512, 2)

    def compute() -> torch.Tensor:
        lengths = torch.randint(10, 51, (32,)).sort(descending=True).values
        x, y = torch.randint(0, 10_000, (32, 50)), torch.randint(0, 2, (32,))
        packed = pack_padded_sequence(embedding(x), lengths, batch_first=True)
        _, (hidden, _) = lstm(packed)
        return functional.cross_entropy(head(torch.cat([*hidden[-2:]], 1)), y)

    return train(nn.ModuleList([embedding, lstm, head]), compute, 3, 1e-3)


def train_transformer() -> Losses:
    """An encoder and decoder of six layers each, 10 steps on one batch."""
    model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    head, embedding = nn.Linear(512, 100), nn.Embedding(100, 512)
    source, target = torch.randint(100, (2, 2, 10))

    def compute() -> torch.Tensor:
        out = head(model(embedding(source), embedding(target)))
        return functional.cross_entropy(out.flatten(0, 1), target.flatten())

    return train(nn.ModuleList([model, head, embedding]), compute, 10, 1e-4)


def train_bert() -> Losses:
    """BERT of 4 layers of width 512 on 8 sequences of 128 tokens, 5 steps."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
        vocab_size=10_000,
    )
    model = BertForMaskedLM(config)

    def compute() -> torch.Tensor:
        tokens = torch.randint(0, 10_000, (8, 128))
        return model(tokens, labels=tokens).loss

    return train(model, compute, 5, 1e-4)


def train_language_model() -> Losses:
    """A decoder of 4 layers of width 256 on 8 sequences of 64 tokens, 20 steps."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    embedding, head = nn.Embedding(1000, 256), nn.Linear(256, 1000)
    mask = nn.Transformer.generate_square_subsequent_mask(64)

    def compute() -> torch.Tensor:
        tokens = torch.randint(0, 1000, (8, 65))
        hidden = blocks(embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        logits = head(hidden)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return train(nn.ModuleList([blocks, embedding, head]), compute, 20, 3e-4)


def train_autoencoder() -> Losses:
    """A variational autoencoder on images of 28 by 28, 50 steps."""
    encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
    decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def compute() -> torch.Tensor:
        x = torch.rand(128, 784)
        mean, deviation = encoder(x).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (0.5 * deviation).exp()
        made = functional.binary_cross_entropy_with_logits(decoder(drawn), x)
        return made - 0.5 * (1 + deviation - mean.square() - deviation.exp()).mean()

    return train(nn.ModuleList([encoder, decoder]), compute, 50, 1e-3)


def train_generator() -> Losses:
    """A generator and a discriminator, in turn, 30 steps: the losses of both."""
    generator = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(), nn.Linear(256, 784))
    critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(), nn.Linear(256, 1))
    right, wrong = torch.ones(64, 1), torch.zeros(64, 1)
    judge = functional.binary_cross_entropy_with_logits

    def judge_both() -> torch.Tensor:
        made = generator(torch.randn(64, 64)).detach()
        return judge(critic(torch.rand(64, 784)), right) + judge(critic(made), wrong)

    both = (
        train(critic, judge_both, 30, 2e-4),
        train(generator, lambda: judge(critic(generator(torch.randn(64, 64))), right),
              30, 2e-4),
    )  # fmt: skip
    for losses in zip(*both, strict=True):
        yield from losses


class Residual(nn.Module):
    """Two convolutions with batch norm, and what they are added to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(hidden))).relu()


def train_residual_network() -> Losses:
    """Six blocks of width 32 on images of 32 by 32, 10 steps."""
    blocks = (Residual(32) for _ in range(6))
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks, *ends)

    def compute() -> torch.Tensor:
        x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
        return functional.cross_entropy(model(x), y)

    return train(model, compute, 10, 1e-3)


def train_unet() -> Losses:
    """Two levels down and up, on images of 64 by 64, 5 steps."""
    down = nn.ModuleList([nn.Conv2d(1, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)])
    middle, up = nn.Conv2d(32, 64, 3, 1, 1), nn.ConvTranspose2d(64, 32, 2, 2)
    merge = nn.Conv2d(64, 16, 3, 1, 1)
    last = nn.Sequential(nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(16, 1, 1))

    def compute() -> torch.Tensor:
        x = torch.randn(8, 1, 64, 64)
        first = functional.max_pool2d(down[0](x).relu(), 2)
        second = down[1](first).relu()
        deep = middle(functional.max_pool2d(second, 2)).relu()
        merged = merge(torch.cat([up(deep), second], 1)).relu()
        return functional.mse_loss(last(merged), x)

    return train(nn.ModuleList([down, middle, up, merge, last]), compute, 5, 1e-3)


def train_word_vectors() -> Losses:
    """Skip-grams with sampled negatives, 100 steps."""
    inner, outer = nn.Embedding(5000, 100), nn.Embedding(5000, 100)

    def compute() -> torch.Tensor:
        center, context = torch.randint(0, 5000, (2, 256))
        others = torch.randint(0, 5000, (256, 5))
        right = (inner(center) * outer(context)).sum(-1)
        wrong = (outer(others) @ inner(center)[..., None]).squeeze(-1)
        right, wrong = functional.logsigmoid(right), functional.logsigmoid(-wrong)
        return -(right + wrong.sum(1)).mean()

    return train(nn.ModuleList([inner, outer]), compute, 100, 1e-2)


def train_recurrent_regression() -> Losses:
    """A GRU that predicts a wave, 30 steps."""
    gru, head = nn.GRU(1, 64, batch_first=True), nn.Linear(64, 1)
    times = torch.linspace(0, 20, 201)

    def compute() -> torch.Tensor:
        wave = torch.sin(times + torch.rand(32, 1)).unsqueeze(-1)
        return functional.mse_loss(head(gru(wave[:, :-1])[0]), wave[:, 1:])

    return train(nn.ModuleList([gru, head]), compute, 30, 1e-3)


PROGRAMS: Final = {
    run.__name__.removeprefix("train_"): run
    for run in (
        *(train_perceptron, train_convolutions, train_lstm, train_transformer),
        *(train_bert, train_language_model, train_autoencoder, train_generator),
        *(train_residual_network, train_unet, train_word_vectors),
        train_recurrent_regression,
    )
}


def measure(run: Callable[[], Losses], *, is_recorded: bool) -> tuple[float, list[str]]:
    """Return the seconds of a run, and the losses that it printed."""
    torch.manual_seed(SEED)
    started = time.perf_counter()
    with mm.record() if is_recorded else nullcontext():
        losses = [f"{loss.item():.6f}" for loss in run()]
    return time.perf_counter() - started, losses


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| program | real, s | recorded, s | ratio | losses |")
    print("| --- | --: | --: | --: | --- |")
    for name in options.names:
        run = PROGRAMS[name]
        measure(run, is_recorded=False)
        pairs = [
            [measure(run, is_recorded=is_recorded) for is_recorded in (False, True)]
            for _ in range(options.rounds)
        ]
        real, recorded = (statistics.median(p[i][0] for p in pairs) for i in (0, 1))
        is_equal = all(p[0][1] == p[1][1] for p in pairs)
        print(
            f"| {name.replace('_', ' ')} | {real:.2f} | {recorded:.2f} "
            f"| {recorded / real:.2f} | {'equal' if is_equal else 'differ'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
