"""``fully_shard`` over one dimension of a mesh, tensor parallelism over the other."""

import torch.distributed as dist
from plans import split_sequences
from tiny import Tiny, begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

_, world = begin()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
model = Tiny()
split_sequences(model, mesh["tp"])
for layer in model.layers:
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
seed = mesh["dp"].get_local_rank()
train(model, (seed, 10 + seed))
dist.destroy_process_group()
