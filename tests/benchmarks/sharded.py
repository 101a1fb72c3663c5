"""What ``materialize()`` of a sharded model costs, beside the least that a rank can do.

``torchrun --nproc-per-node=4 -m tests.benchmarks.sharded`` prints a row of a Markdown
table: processor time of rank 0, medians of rounds in which both take turns. Without
this package a rank that has its shards alone makes them by ``to_empty``, and draws as
many numbers as they have: they are not those of the model in one process.
"""

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import meta_magic as mm


def build(width: int, n_layers: int) -> nn.Sequential:
    """Return a model whose layers are sharded."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer
    model = nn.Sequential(*[layer(width, 8, 4 * width) for _ in range(n_layers)])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def draw_shards(model: nn.Module) -> None:
    """Allocate the shards of a model on meta, and draw as many numbers."""
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        own = parameter.detach()
        local = own.to_local() if isinstance(own, DTensor) else own
        # Matrices are drawn; biases and norms are constants, but for a layer's.
        local.uniform_(-1, 1) if local.ndim > 1 else local.zero_()


def time_cpu(run: Callable[[], object]) -> float:
    """Return the processor time of a call in this process."""
    gc.collect()
    distributed.barrier()
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    distributed.init_process_group("gloo")
    rows = []
    nbytes = 0
    for _ in range(given.rounds):
        with torch.device("meta"):
            plain = build(given.width, given.layers)
        nbytes = sum(p.nbytes for p in plain.parameters())
        least = time_cpu(partial(draw_shards, plain))
        with mm.record():
            model = build(given.width, given.layers)
        ours = time_cpu(partial(mm.materialize, model))
        rows.append((least, ours, ours / least))
    if distributed.get_rank() == 0:
        least, ours, ratio = (median(column) for column in zip(*rows, strict=True))
        n = distributed.get_world_size()
        cells = f"{nbytes / 2**20:,.0f} | {least:.2f} | {ours:.2f} | {ratio:.2f}"
        print(f"| {n} | {given.layers} | {cells} |", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
