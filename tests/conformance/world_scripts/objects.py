"""Objects, subgroups and messages between ranks."""

import torch
import torch.distributed as dist
from tiny import begin

rank, world = begin()
seen = [None] * world
dist.all_gather_object(seen, {"rank": rank, "text": "x" * (rank + 1)})
gathered = [None] * world if rank == 0 else None
dist.gather_object(rank, gathered)
mine = [None]
dist.scatter_object_list(
    mine, [f"part {i}" for i in range(world)] if rank == 0 else None
)
evens = dist.new_group(list(range(0, world, 2)))
if rank % 2 == 0:
    dist.all_reduce(torch.full((3,), float(rank)), group=evens)
count = torch.tensor([rank + 7])
if rank == 0:
    dist.send(count, 1)
elif rank == 1:
    dist.recv(count, 0)
print(rank, [one["rank"] for one in seen], mine, count.item(), gathered)
dist.barrier()
dist.destroy_process_group()
