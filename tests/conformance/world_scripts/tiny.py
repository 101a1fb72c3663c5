"""A small Llama-like model, and what each script of a world begins with."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY = 502


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight)

    def reset_parameters(self):
        nn.init.ones_(self.weight)


class Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.head = size // heads
        self.wq = nn.Linear(size, size, bias=False)
        self.wk = nn.Linear(size, size, bias=False)
        self.wv = nn.Linear(size, size, bias=False)
        self.wo = nn.Linear(size, size, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self.head).transpose(1, 2)
            for layer in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.w1 = nn.Linear(size, hidden, bias=False)
        self.w2 = nn.Linear(hidden, size, bias=False)
        self.w3 = nn.Linear(size, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, size, heads, hidden):
        super().__init__()
        self.attention_norm, self.attention = Norm(size), Attention(size, heads)
        self.ffn_norm, self.feed_forward = Norm(size), FeedForward(size, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Tiny(nn.Module):
    def __init__(self, size=64, heads=4, hidden=172, layers=3):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, size)
        self.layers = nn.ModuleList(Block(size, heads, hidden) for _ in range(layers))
        self.norm = Norm(size)
        self.output = nn.Linear(size, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def begin():
    """Start the default group; return the rank and the size of the world."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def make_batch(seed, n=4, length=16):
    """Return tokens and the next tokens, drawn by a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (n, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def find_loss(model, seed):
    """Return the loss of a model for a batch."""
    x, y = make_batch(seed)
    return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


def train(model, seeds, clip=None):
    """Take a step of AdamW for each seed; return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for seed in seeds:
        loss = find_loss(model, seed)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return loss


def variable(name, default):
    """Return an environment variable as a number."""
    return int(os.environ.get(name, default))
