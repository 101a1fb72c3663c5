"""``fully_shard`` of layers whose activations are recomputed."""

import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard

rank, _ = begin()
model = Tiny()
for i, layer in enumerate(model.layers):
    model.layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
train(model, (rank, 10 + rank))
dist.destroy_process_group()
