"""``fully_shard`` of a model that is built on meta, in mixed precision."""

import torch
import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

rank, _ = begin()
with torch.device("meta"):
    model = Tiny()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cpu")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
train(model, (rank, 10 + rank))
dist.destroy_process_group()
