"""DDP whose gradients are sent in half precision, by a hook."""

import torch.distributed as dist
from tiny import Tiny, begin, train
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

rank, _ = begin()
model = DistributedDataParallel(Tiny())
model.register_comm_hook(None, fp16_compress_hook)
train(model, (rank, 10 + rank))
dist.destroy_process_group()
