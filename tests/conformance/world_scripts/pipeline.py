"""A pipeline with a stage on each rank (1F1B)."""

import torch
import torch.distributed as dist
from tiny import Tiny, begin, make_batch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

rank, world = begin()
model = Tiny(layers=4)
n_layers = len(model.layers) // world


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = model.tok_embeddings if rank == 0 else None
        self.layers = model.layers[rank * n_layers : (rank + 1) * n_layers]
        is_last = rank == world - 1
        self.norm, self.output = (model.norm, model.output) if is_last else (None, None)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.output is None else self.output(self.norm(x))


def find_loss(scores, y):
    return functional.cross_entropy(scores.flatten(0, 1), y.flatten())


part = Stage()
stage = PipelineStage(part, rank, world, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=find_loss)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
for seed in range(2):
    x, y = make_batch(seed, n=8)
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=y, losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
