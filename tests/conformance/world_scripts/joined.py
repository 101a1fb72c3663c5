"""Uneven inputs joined; optimizer states, a checkpoint and a key from other ranks."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from tiny import begin
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

rank, world = begin()
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(10, 30), nn.Tanh(), nn.Linear(30, 2))
)
optimizer = ZeroRedundancyOptimizer(
    model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2
)
with Join([model, optimizer]):
    for _ in range(2 + rank):
        model(torch.randn(5, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
optimizer.consolidate_state_dict(to=0)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    assert len(optimizer.state_dict()["state"]) == 4
    folder = tempfile.mkdtemp()
    store.set("folder", folder)
    torch.save({"step": 2, "model": model.module.state_dict()}, f"{folder}/model.pt")
dist.barrier()
path = Path(store.get("folder").decode(), "model.pt")
loaded = torch.load(path, map_location="cpu")
model.module.load_state_dict(loaded["model"])
counts = torch.tensor([float(2 + rank), 1.0])
dist.all_reduce(counts)
print(rank, loaded["step"], counts.tolist())
dist.barrier()
dist.destroy_process_group()
