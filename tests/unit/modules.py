"""Modules that the tests of several rooms record."""

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("angles", torch.zeros(2), persistent=False)

    def forward(self, tokens, *, scale=None):
        return {"logits": self.head(self.embed(tokens)), "extra": [scale]}
