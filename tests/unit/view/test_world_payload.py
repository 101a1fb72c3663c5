"""What the World view is sent: the process, and each distinct collective once."""

import torch
import torch.distributed as dist

from meta_magic import record
from meta_magic.view.payload import build_payload
from meta_magic.view.world_payload import world_payload


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
