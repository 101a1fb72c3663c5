"""Experts on different ranks: tokens are sent to them and back (all-to-all)."""

import torch
import torch.distributed as dist
from tiny import begin
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

rank, world = begin()
torch.manual_seed(rank)
expert = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(expert.parameters(), lr=1e-3)
for _ in range(2):
    tokens = torch.randn(8 * world, 16)
    here = all_to_all_single(torch.empty_like(tokens), tokens)
    back = all_to_all_single(torch.empty_like(tokens), expert(here))
    (back * tokens).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
