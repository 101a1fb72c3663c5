"""DTensors that are multiplied, redistributed and gathered."""

import torch
import torch.distributed as dist
from tiny import begin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros

rank, world = begin()
mesh = init_device_mesh("cpu", (world,))
weight = distribute_tensor(torch.randn(20, 8), mesh, [Shard(0)])
x = distribute_tensor(torch.randn(6, 8), mesh, [Replicate()])
y = x @ weight.t()
whole = y.redistribute(placements=[Replicate()])
moved = weight.redistribute(placements=[Shard(1)])
made = zeros(8, 8, device_mesh=mesh, placements=[Shard(1)])
print(rank, y.to_local().shape, moved.to_local().shape, made.to_local().shape)
dist.destroy_process_group()
