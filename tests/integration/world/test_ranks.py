"""A script recorded as several ranks: what they hand each other, and what hangs."""

from textwrap import dedent

import pytest
import torch

from meta_magic import WorldError, materialize, record, record_ranks
from meta_magic.check.commands import main

BEGIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
HANG = f"""{BEGIN}
dist.all_reduce(torch.ones(8))
if rank == 0:
    dist.all_reduce(torch.zeros(1))
dist.broadcast(torch.ones(4, 4), 0)
"""
CHAIN = f"""{BEGIN}
size = torch.tensor([10 + rank])
if rank > 0:
    dist.recv(size, rank - 1)
x = torch.ones(size.item())
if rank + 1 < world:
    dist.send(size, rank + 1)
"""
OBJECTS = f"""{BEGIN}
seen = [None] * world
dist.all_gather_object(seen, "x" * rank)
assert seen == ["x" * i for i in range(world)], seen
box = [rank, "text"] if rank == 0 else [None, None]
dist.broadcast_object_list(box, 0)
assert box == [0, "text"]
"""


def test_a_collective_of_one_rank_alone_is_found(script, capsys):
    path = script(HANG)
    ranks = record_ranks(path, 4, "0,1")
    (found,) = ranks.mismatches
    assert (found.call, found.first_sent.line, found.second_sent.line) == (2, 8, 9)
    assert "rank 0 calls all_reduce in line 8" in str(ranks)
    assert main(["check", str(path), "--world", "4", "--ranks", "0,1"]) == 1
    assert "hang: ranks 0-3, collective 2" in capsys.readouterr().out


def test_a_rank_that_another_waits_for_is_recorded_too(script):
    ranks = record_ranks(script(CHAIN), 4, [3])
    assert list(ranks) == [0, 1, 2, 3]
    assert [trace.error for trace in ranks.values()] == [None] * 4
    assert ranks[3].ops[-1].outputs[0].shape == (10,)
    assert list(ranks.to_pandas()["n_sent"]) == [1, 2, 2, 1]


def test_recorded_ranks_hand_each_other_objects(script):
    ranks = record_ranks(script(OBJECTS), 3, "all")
    assert [trace.error for trace in ranks.values()] == [None] * 3
    assert ranks.mismatches == ()


def test_a_rank_that_waits_for_ever_is_told_what_hangs(script):
    text = f"{BEGIN}\nif rank == 1:\n    dist.recv(torch.zeros(1, dtype=torch.long), 0)"
    ranks = record_ranks(script(text), 2, "all")
    assert "waits in send for rank 0, which has ended: this hangs" in ranks[1].error


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("dist.broadcast(torch.ones(2), rank)", "(8 bytes of float32, root 1)"),
        ("dist.send(torch.ones(2), 1) if rank == 0 else None", "ranks 0,1, message 1"),
        ("dist.recv(torch.ones(2), 0) if rank == 1 else None", "rank 0 calls no more"),
    ],
)
def test_roots_that_differ_and_messages_without_a_receiver_hang(script, line, told):
    (found,) = record_ranks(script(f"{BEGIN}\n{line}"), 2, "all").mismatches
    assert told in str(found)


def test_ranks_hand_each_other_the_numbers_of_rows_that_they_exchange(script):
    text = """
    sent = torch.tensor([1 + rank, 2])
    rows = torch.empty_like(sent)
    dist.all_to_all_single(rows, sent)
    assert rows.tolist() == [[1, 2], [2, 2]][rank]
    got = torch.empty(sum(rows.tolist()))
    dist.all_to_all_single(got, torch.ones(3 + rank), rows.tolist(), sent.tolist())
    parts = [torch.empty(1, dtype=torch.long) for _ in sent]
    dist.all_to_all(parts, [torch.tensor([10 * rank]), torch.tensor([10 * rank + 1])])
    assert [part.item() for part in parts] == [rank, 10 + rank]
    """
    ranks = record_ranks(script(BEGIN + dedent(text)), 2, "all")
    assert [trace.error for trace in ranks.values()] == [None, None]
    assert ranks.mismatches == ()
    assert [trace.sent[1].nbytes for trace in ranks.values()] == [12, 16]


def test_an_error_of_one_rank_is_in_its_trace(script):
    text = f"{BEGIN}\ntorch.ones(2) @ torch.ones(2 + rank)"
    ranks = record_ranks(script(text), 2, "all")
    assert ranks[0].error is None
    assert ranks[1].error.startswith("RuntimeError")


@pytest.mark.parametrize("ranks", ["5", "x", [-1]])
def test_ranks_that_are_not_in_the_world_are_refused(ranks, script):
    with pytest.raises(ValueError, match="rank"):
        record_ranks(script(BEGIN), 4, ranks)


def test_a_script_that_ends_its_process_or_is_not_there_is_reported(script):
    with pytest.raises(WorldError, match="rank 0 ended without a result"):
        record_ranks(script(f"{BEGIN}\nimport os; os._exit(3)"), 2, "0")
    with pytest.raises(WorldError, match="there is no script"):
        record_ranks("none.py", 2)


SAVES = f"""{BEGIN}
import sys, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Linear(3, 5)
fully_shard(model)
if sys.argv[2:]:
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
dcp.save({{"model": model.state_dict()}}, checkpoint_id=sys.argv[1])
"""


def test_ranks_that_are_all_recorded_save_a_checkpoint(script, tmp_path):
    folder, path = tmp_path / "saved", script(SAVES)
    ranks = record_ranks(path, 2, "all", args=[str(folder)])
    assert [trace.error for trace in ranks.values()] == [None, None]
    torch.manual_seed(0)
    wanted = torch.nn.Linear(3, 5)
    with record():
        made = torch.nn.Linear(3, 5)
    materialize(made, init=folder)
    assert torch.equal(made.weight, wanted.weight)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    ranks = record_ranks(path, 2, "all", args=[str(folder), "step"])
    for trace in ranks.values():
        assert trace.error is None
        assert any(
            "no file is written: torch.distributed.checkpoint.save holds values that "
            "rest on what other ranks send in reduce_scatter" in note.text
            for note in trace.notes
        )
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


CHECKPOINTS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
others = torch.ones(3)
dist.all_reduce(others)
(folder / "single").mkdir(parents=True, exist_ok=True)
torch.save(others, folder / "single" / "model.pt")
torch.save({"step": 3}, folder / "single" / "step.pt")
save_file({"others": others}, folder / "single" / "model.safetensors")
with open(folder / "single" / "opened.pt", "wb") as file:
    torch.save(others, file)
dcp.save({"others": others}, checkpoint_id=folder / "sharded")
torch.save({"step": 3}, folder / "sharded" / "step.pt")
dcp.load({"others": others}, checkpoint_id=folder / "sharded")
assert others.shape == (3,)
"""


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_folders_for_what_was_left_out_are_not_found_by_the_next_plan(
    script, tmp_path, ranks
):
    folder = tmp_path / "checkpoints"
    for _ in range(2):
        traces = record_ranks(script(CHECKPOINTS), 4, ranks, args=[str(folder)])
        assert traces[0].error is None
        assert not folder.exists()
