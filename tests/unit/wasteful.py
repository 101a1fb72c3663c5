"""Programs that waste memory, for tests of advice and of what it saves."""

import torch
from torch import nn

WIDTH, BATCH = 64, 512


def train(make_optimizer):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def add_noise(dtype):
    model = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
    y = model(torch.ones(BATCH, WIDTH, dtype=torch.bfloat16))
    noise = torch.randn(BATCH, WIDTH, dtype=dtype)
    return (y + noise).exp().to(torch.bfloat16)


def train_head(is_frozen):
    body = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    head = nn.Linear(WIDTH, 10)
    body.requires_grad_(not is_frozen)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        head(body(torch.ones(BATCH, WIDTH))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return body


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())
