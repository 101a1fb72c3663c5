"""``fully_shard`` with clipped gradients."""

import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.fsdp import fully_shard

rank, _ = begin()
model = Tiny()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
loss = train(model, (rank, 10 + rank), clip=1.0)
if rank == 0:
    print("loss", loss.item())
dist.destroy_process_group()
