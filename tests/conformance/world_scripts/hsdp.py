"""``fully_shard`` in groups, replicated between them."""

import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world = begin()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
model = Tiny()
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model, (rank, 10 + rank))
dist.destroy_process_group()
