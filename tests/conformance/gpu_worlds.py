"""What each rank holds and sends on GPUs, beside its plan: run by torchrun.

``torchrun --nproc-per-node 2 -m tests.conformance.gpu_worlds gloo``: ranks take turns
on the GPUs that there are. ``nccl`` needs a GPU for each.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import meta_magic as mm

N_STEPS = 2


def make_model() -> nn.Module:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def shard(model: nn.Module) -> nn.Module:
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


WAYS = {"ddp": DistributedDataParallel, "fsdp": shard}


def train(way: str, backend: str) -> None:
    """Train a model as one rank of a group."""
    torch.manual_seed(0)
    dist.init_process_group(backend)
    device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    model = WAYS[way](make_model().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 256, 1024, device="cuda")
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def main() -> None:
    """Print for each way the peaks of this rank: planned, and on the GPU."""
    backend = sys.argv[1]
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    for way in WAYS:
        with mm.record(world=world, rank=rank, as_device="cuda") as trace:
            train(way, backend)
        major, _ = torch.cuda.get_device_capability()
        planned = trace.memory.as_allocated(major=major).peak_nbytes
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            train(way, backend)
            torch.cuda.synchronize()
            real = torch.cuda.max_memory_allocated() - before
            text = f"{planned:,} of {real:,} bytes, {planned / real:.4f}"
        except RuntimeError as error:
            text = f"{type(error).__name__}: {error}"
        print(json.dumps([f"{backend} {way}, rank {rank} of {world}", text]))
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
