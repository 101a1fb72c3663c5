"""DDP with ``no_sync``, unused parameters, gradient views, a sharded optimizer."""

import torch
import torch.distributed as dist
from tiny import begin
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

begin()
net = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
)
model = DistributedDataParallel(
    net, gradient_as_bucket_view=True, find_unused_parameters=True
)
optimizer = ZeroRedundancyOptimizer(
    model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3
)
for step in range(4):
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    if step % 2 == 0:
        with model.no_sync():
            functional.cross_entropy(model(x), y).backward()
    else:
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
