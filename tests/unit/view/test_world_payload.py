"""What the World view is sent: the process, and each distinct collective once."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from meta_magic import record
from meta_magic.view.payload import build_payload, world_payload


def test_a_trace_without_a_world_sends_nothing_of_it():
    with record() as trace:
        torch.ones(2)
    assert world_payload(trace) == {}
    assert "world" not in build_payload(trace)


def test_collectives_that_are_alike_are_sent_once():
    with record(world=16, rank=9, per_node=8) as trace:
        dist.init_process_group("gloo")
        x = torch.ones(2, 3)
        dist.all_reduce(x)
        dist.send(x, 8)
        dist.send(x, 0)
        dist.all_reduce(x)
    world = world_payload(trace)["world"]
    assert (world["size"], world["rank"], world["per_node"]) == (16, 9, 8)
    assert world["calls"] == [0, 1, 2, 0]
    # Ranks 8 and 9 are on one machine, ranks 0 and 9 on two.
    assert world["sent"] == {
        "kind": ["all_reduce", "send", "send"],
        "ranks": ["0-15"] * 3,
        "n_ranks": [16] * 3,
        "n_nodes": [2, 1, 2],
        "peer": [-1, 8, 0],
        "nbytes": [24] * 3,
        "dtype": ["float32"] * 3,
        "reduce": ["sum", "", ""],
    }
    first, *steps = world["ops"]
    assert first == trace.sent[0].index
    assert first + sum(steps) == trace.sent[-1].index


def test_a_mesh_is_sent_with_what_lies_on_it():
    with record(world=8, rank=6, as_device="cuda") as trace:
        dist.init_process_group()
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.LayerNorm(16))
            norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)
            norm.register_buffer("scale", torch.ones(4))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        dist.destroy_process_group()
    assert norm.scale.is_meta
    weight, norms = 8 * 16 * 4, 2 * 16 * 4
    whole, divided, nowhere = world_payload(trace)["world"]["meshes"]
    # Rank 6 is at (1, 2) of rows 0-3 and 4-7.
    assert whole["dims"] == (("dp", (2, 6)), ("tp", (4, 5, 6, 7)))
    assert whole["rows"] == [["Shard(0) on dp, Shard(0) on tp", 1, weight // 8, weight]]
    assert divided["dims"] == (("dp", (2, 6)),)
    assert divided["rows"] == [["Shard(0) on dp", 2, norms // 2, norms]]
    assert nowhere == {"dims": (), "rows": [["whole on each rank", 1, 16, 16]]}


def test_without_a_mesh_none_is_sent():
    with record(world=2) as trace:
        model = nn.Linear(2, 2)
    assert model.weight.is_meta
    assert world_payload(trace)["world"]["meshes"] == []
