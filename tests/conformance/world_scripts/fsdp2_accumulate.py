"""``fully_shard`` that keeps its parameters whole, and accumulates gradients."""

import torch
import torch.distributed as dist
from tiny import Tiny, begin, find_loss
from torch.distributed.fsdp import fully_shard

rank, _ = begin()
model = Tiny()
for layer in model.layers:
    fully_shard(layer, reshard_after_forward=False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    model.set_requires_gradient_sync(step % 2 == 1)
    find_loss(model, 10 * step + rank).backward()
    if step % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
