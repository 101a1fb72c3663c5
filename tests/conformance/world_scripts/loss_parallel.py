"""Tensor parallelism whose loss is computed on split scores."""

import torch
import torch.distributed as dist
from tiny import Tiny, begin, find_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

_, world = begin()
mesh = init_device_mesh("cpu", (world,))
model = Tiny()
parallelize_module(
    model,
    mesh,
    {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    },
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for seed in range(2):
    with loss_parallel():
        find_loss(model, seed).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
