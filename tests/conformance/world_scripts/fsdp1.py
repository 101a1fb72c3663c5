"""``FullyShardedDataParallel``: flat parameters, wrapped by size, a clipped norm."""

from functools import partial

import torch
import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

rank, _ = begin()
model = FullyShardedDataParallel(
    Tiny(),
    auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=20_000),
    device_id=torch.device("cpu"),
)
train(model, (rank, 10 + rank))
dist.destroy_process_group()
