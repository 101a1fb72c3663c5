"""Tensor parallelism."""

import torch.distributed as dist
from plans import split_tensors
from tiny import Tiny, begin, train
from torch.distributed.device_mesh import init_device_mesh

_, world = begin()
model = Tiny()
split_tensors(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)))
train(model, (0, 1))
dist.destroy_process_group()
