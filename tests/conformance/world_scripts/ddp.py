"""DDP with a sampler, several buckets, a metric and an object that rank 0 sends."""

import torch
import torch.distributed as dist
from tiny import VOCABULARY, Tiny, begin
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world = begin()
model = DistributedDataParallel(Tiny(), bucket_cap_mb=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randint(0, VOCABULARY, (8 * world, 17), generator=generator))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (tokens,) in DataLoader(data, batch_size=4, sampler=sampler):
        scores = model(tokens[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(scores, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.barrier()
mean = loss.detach().clone()
dist.all_reduce(mean)
mean /= world
names = [{"run": "a"}] if rank == 0 else [None]
dist.broadcast_object_list(names, src=0)
if rank == 0:
    print("loss", mean.item(), names[0])
dist.destroy_process_group()
