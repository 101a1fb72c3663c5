"""What each process of torchrun holds of a model that it materialized in shards.

``torchrun --nproc_per_node=4 sharded_models.py fsdp`` prints a line for each process: a
JSON of what differs from the same model made for real, and how the losses of three
steps differ. ``PLANS`` has the ways of sharding. With a folder after it the model comes
from checkpoints that the processes write there first.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import meta_magic as mm

N_STEPS: Final = 3
WIDTH: Final = 37  # not a multiple of the number of processes
FIRST: Final = None  # each process takes its part of what it has itself


class Block(nn.Module):
    """A layer with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        nn.init.trunc_normal_(self.up.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the next layer gets."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Some layers between an embedding and a product with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.out = nn.Linear(WIDTH, 101, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next words."""
        x = self.embed(ids) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def shard_fully(model: nn.Module) -> None:
    """Shard over all processes."""
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)


def shard_in_pairs(model: nn.Module) -> None:
    """Shard over two processes each, and replicate over the pairs."""
    shape = (distributed.get_world_size() // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def split_products(model: nn.Module, mesh: object = None) -> None:
    """Split the matrix products (tensor parallelism)."""
    mesh = mesh or init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan, src_data_rank=FIRST)


def shard_and_split(model: nn.Module) -> None:
    """Split the products over two processes each, and shard over the pairs."""
    shape = (distributed.get_world_size() // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    split_products(model, mesh["tp"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])


PLANS: Final[Mapping[str, Callable[[nn.Module], None]]] = {
    "fsdp": shard_fully,
    "hsdp": shard_in_pairs,
    "tp": split_products,
    "fsdp and tp": shard_and_split,
}


def build(shard: Callable[[nn.Module], None]) -> Model:
    """Return the sharded model."""
    torch.manual_seed(0)
    model = Model()
    shard(model)
    return model


def gather(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole parameters and buffers."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in state.items()
    }


def train(model: nn.Module) -> Iterator[float]:
    """Yield the losses of some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(N_STEPS):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(101, (2, 9), generator=generator)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def compare(shard: Callable[[nn.Module], None]) -> dict[str, object]:
    """Return what differs between a materialized model and a real one."""
    with mm.record():
        model = build(shard)
    report = mm.materialize(model)
    draws = torch.rand(3)
    torch.manual_seed(0)
    whole = Model().state_dict()
    is_same_stream = torch.equal(draws, torch.rand(3))
    made = gather(model)
    real = build(shard)
    return {
        "differ": [n for n, value in made.items() if not torch.equal(value, whole[n])],
        "is_same_stream": is_same_stream,
        "losses": max(
            abs(one - other)
            for one, other in zip(train(model), train(real), strict=True)
        ),
        "peak": report.peak_nbytes,
        "held": report.nbytes,
        "largest": max(value.nbytes for value in whole.values()),
    }


def write_checkpoints(folder: Path) -> Model:
    """Write a model with other values, whole and in shards; return it."""
    torch.manual_seed(1)
    model = Model()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if distributed.get_rank() == 0:
        for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2])):
            tensors = {name: state[name] for name in names}
            save_file(tensors, folder / f"part{number}.safetensors")
        parts = {n: f"part{i % 2}.safetensors" for i, n in enumerate(sorted(state))}
        index = json.dumps({"weight_map": parts})
        (folder / "model.safetensors.index.json").write_text(index)
    torch.manual_seed(1)
    sharded = Model()
    shard_fully(sharded)
    optimizer = torch.optim.SGD(sharded.parameters())
    saved = {"model": sharded.state_dict(), "optimizer": optimizer.state_dict()}
    checkpoint.save(saved, checkpoint_id=folder / "sharded")
    distributed.barrier()
    return model


def read_checkpoints(
    shard: Callable[[nn.Module], None], folder: Path
) -> dict[str, object]:
    """Return what differs between what was saved and what is read into shards."""
    whole = write_checkpoints(folder).state_dict()
    differ, filled = [], set()
    for source in (folder, folder / "sharded", whole):
        with mm.record():
            model = build(shard)
        report = mm.materialize(model, init=source)
        filled |= {tensor.filled_by for tensor in report.tensors}
        made = gather(model)
        differ += [n for n, value in made.items() if not torch.equal(value, whole[n])]
    return {"differ": differ, "filled": sorted(filled), "n": len(made)}


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    if sys.argv[2:]:
        found = read_checkpoints(PLANS[sys.argv[1]], Path(sys.argv[2]))
    else:
        found = compare(PLANS[sys.argv[1]])
    for rank in range(distributed.get_world_size()):
        if rank == distributed.get_rank():
            print(json.dumps(found), flush=True)
        distributed.barrier()
    distributed.destroy_process_group()
