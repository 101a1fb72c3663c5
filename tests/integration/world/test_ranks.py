"""A script recorded as several ranks: what they hand each other, and what hangs."""

from itertools import chain
from textwrap import dedent

import pytest
import torch
from torch import nn

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


def test_a_hang_that_ends_a_rank_is_an_error_of_the_check(script, capsys):
    text = f"{BEGIN}\nfor _ in range(2 - rank):\n    dist.all_reduce(torch.ones(1))"
    path = script(text)
    assert main(["check", str(path), "--world", "2", "--ranks", "all"]) == 1
    said = capsys.readouterr().out
    assert "waits in all_reduce for rank 1, which has ended: this hangs" in said
    assert "hang: ranks 0,1, collective 2: rank 0 calls all_reduce in line 7" in said


def test_ranks_that_reduce_tensors_of_other_sizes_hang(script):
    text = f"{BEGIN}\ndist.all_reduce(torch.ones(3 + 4 * rank))"
    ranks = record_ranks(script(text), 2, "all")
    assert "expects 3 numbers of rank 1 in all_reduce, which sends 7" in ranks[0].error
    assert "rank 1 calls all_reduce in line 6 (28 bytes" in str(ranks.mismatches[0])


def test_repairs_of_a_script_are_tried_without_the_other_ranks(script, capsys):
    path = script(f"{BEGIN}\ntorch.ones(2, 3) @ torch.ones(4, 2)")
    assert main(["check", str(path), "--world", "2", "--ranks", "all"]) == 1
    assert "torch.ones(3, 2)" in capsys.readouterr().out


def test_a_rank_that_another_waits_for_is_recorded_too(script):
    ranks = record_ranks(script(CHAIN), 4, [3])
    assert list(ranks) == [0, 1, 2, 3]
    assert [trace.error for trace in ranks.values()] == [None] * 4
    assert ranks[3].ops[-1].outputs[0].shape == (10,)
    assert list(ranks.to_pandas()["n_sent"]) == [1, 2, 2, 1]


def test_what_pipelining_imports_is_imported_once_for_all_ranks(script):
    text = "import sys\nloaded = 'torch._dynamo' in sys.modules\n"
    text += "import torch.distributed.pipelining\nassert loaded"
    assert [t.error for t in record_ranks(script(text), 2, "all").values()] == [
        None
    ] * 2


def test_recorded_ranks_hand_each_other_objects(script):
    ranks = record_ranks(script(OBJECTS), 3, "all")
    assert [trace.error for trace in ranks.values()] == [None] * 3
    assert ranks.mismatches == ()


def test_a_rank_that_waits_for_ever_is_told_what_hangs(script):
    text = f"{BEGIN}\nif rank == 1:\n    dist.recv(torch.zeros(1, dtype=torch.long), 0)"
    ranks = record_ranks(script(text), 2, "all")
    assert "waits in recv for rank 0, which has ended: this hangs" in ranks[1].error


def test_ranks_that_wait_for_each_other_are_found_at_once(script):
    text = f"{BEGIN}\nif rank:\n    dist.all_reduce(torch.ones(1))\ndist.barrier()"
    ranks = record_ranks(script(text), 3, "all")
    assert "rank 1 waits in all_reduce for rank 0" in ranks[1].error
    (found,) = ranks.mismatches
    assert (found.second_sent or found.first_sent).line == 7


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


REDUCED = """
total = torch.tensor([rank + 0.5, 1.0])
dist.all_reduce(total)
assert total.tolist() == [2.0, 2.0]
most = torch.tensor(rank + 1)
dist.reduce(most, 0, op=dist.ReduceOp.MAX)
assert rank == 1 or most.item() == 2
part = torch.empty(1)
dist.reduce_scatter_tensor(part, torch.tensor([1.0, 2.0]) * (rank + 1))
assert part.item() == [3.0, 6.0][rank]
both = torch.empty(2, 1)
dist.all_gather_into_tensor(both, part)
assert both.tolist() == [[3.0], [6.0]]
"""


def test_ranks_hand_each_other_a_few_numbers_that_they_reduce(script):
    ranks = record_ranks(script(BEGIN + REDUCED), 2, "all")
    assert [trace.error for trace in ranks.values()] == [None, None]
    assert not any(note.kind == "assumed" for t in ranks.values() for note in t.notes)


EARLY = """
mine, got = torch.tensor([10 * rank, rank]), torch.empty(2, dtype=torch.long)
awaited = dist.irecv(got, (rank - 1) % world)
dist.send(mine, (rank + 1) % world)
while not awaited.is_completed():
    pass
assert got.tolist() == [10 * ((rank - 1) % world), (rank - 1) % world]
late = torch.empty(3)
if rank == 0:
    awaited = dist.irecv(late, 1)
total = torch.ones(4)
dist.all_reduce(total)
if rank == 1:
    dist.send(torch.arange(3.0) + total[:3], 0)
if rank == 0:
    awaited.wait()
    assert late.tolist() == [3.0, 4.0, 5.0]
"""


def test_a_rank_waits_for_a_message_where_the_script_does(script):
    ranks = record_ranks(script(BEGIN + EARLY), 3, "all")
    assert [trace.error for trace in ranks.values()] == [None] * 3
    assert ranks.mismatches == ()


TRAINED = """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import *

def train(model, losses):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in rows.view(2, 3, 4):
        loss = model(x + rank * is_parallel).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

torch.manual_seed(0)
rows, losses = torch.randn(6, 4), []
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
"""
TRAINED_BY = {
    "DistributedDataParallel": """
is_parallel = True
train(nn.parallel.DistributedDataParallel(model), losses)
""",
    "fully_shard": """
is_parallel = True
train(fully_shard(model), losses)
""",
    "tensor parallelism": """
is_parallel = False
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
train(parallelize_module(model, init_device_mesh("cpu", (2,)), plan), losses)
""",
    "a pipeline": """
layers = [model[:1], model[1:]]
stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
schedule = Schedule1F1B(stage, 2, loss_fn=lambda y, _: y.square().mean())
optimizer = torch.optim.SGD(layers[rank].parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    each = []
    schedule.step(*[rows] * (rank == 0), target=rows, losses=each)
    optimizer.step()
    losses += [one.item() for one in each]
""",
}


def train_alone(name):
    """Return the losses of each rank, of one process that trains on all rows."""
    torch.manual_seed(0)
    rows = torch.randn(6, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    is_pipeline, is_parallel = name == "a pipeline", not name.startswith("tensor")
    for step in range(2):
        batch = rows.view(2, 3, 4)[step]
        parts = [batch, batch + is_parallel]
        parts = [*rows.split(3)] if is_pipeline else parts
        each = [model(part).square().mean() for part in parts]
        optimizer.zero_grad()
        (sum(each) / 2).backward()
        optimizer.step()
        losses.append([loss.item() for loss in each])
    return [[], [*chain(*losses)]] if is_pipeline else [*zip(*losses, strict=True)]


@pytest.mark.parametrize("name", TRAINED_BY)
def test_losses_of_a_small_model_are_those_of_one_process(name, script):
    wanted = [*map(list, train_alone(name))]
    check = f"torch.testing.assert_close(losses, {wanted}[rank])"
    ranks = record_ranks(script(BEGIN + TRAINED + TRAINED_BY[name] + check), 2, "all")
    assert [trace.error for trace in ranks.values()] == [None, None]
    kinds = {note.kind for trace in ranks.values() for note in trace.notes}
    assert kinds.isdisjoint(("assumed", "fails"))


def test_what_ranks_hand_each_other_takes_no_memory(script):
    text = "dist.all_gather_into_tensor(torch.empty(4 * world), torch.ones(4))"
    ranks = record_ranks(script(f"{BEGIN}\n{text}"), 3, "all")
    assert [trace.memory.peak_nbytes for trace in ranks.values()] == [4 * 16] * 3


def test_a_number_that_rests_on_ranks_that_are_not_recorded_is_noted(script):
    text = """
    total = torch.ones(10**5)
    dist.all_reduce(total)
    mean = total.mean()
    dist.all_reduce(mean)
    assert mean.item() == 4.0
    """
    ranks = record_ranks(script(BEGIN + dedent(text)), 2, "all")
    assert [trace.error for trace in ranks.values()] == [None, None]
    noted = [[n.line for n in t.notes if n.kind == "assumed"] for t in ranks.values()]
    assert noted == [[10], [10]]


STORES = """
server = dist.TCPStore("127.0.0.1", 29500, world, is_master=rank == 0)
own = dist.distributed_c10d._get_default_store()
if rank == 0:
    server.set("key", "of the server")
else:
    own.set("key", "of the group")
"""
READ_STORES = """
assert server.get("key") == b"of the server"
assert own.get("key") == b"of the group"
"""


def test_recorded_ranks_share_their_stores(script):
    ranks = record_ranks(script(BEGIN + STORES + READ_STORES), 2, "all")
    assert [trace.error for trace in ranks.values()] == [None, None]


def test_a_key_that_no_recorded_rank_sets_is_not_waited_for(script):
    ranks = record_ranks(script(BEGIN + STORES + "own.get('key')"), 2, [0])
    assert "timeout" in ranks[0].error.lower()


LOADED = """
import sys
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

model = nn.Linear(3, 4)
for parameter in model.parameters():
    dist.all_reduce(parameter.data)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
optimizer.consolidate_state_dict(0)
if rank == 0:
    assert len(optimizer.state_dict()["state"]) == 2
big = torch.ones(10**6)
dist.all_reduce(big)
if rank == 0:
    torch.save({"step": 3, "big": big}, sys.argv[1])
dist.barrier()
loaded = torch.load(sys.argv[1])
assert loaded["step"] == 3 and loaded["big"].shape == (10**6,)
"""


def test_a_checkpoint_that_is_left_out_is_loaded_without_values(script, tmp_path):
    path = tmp_path / "model.pt"
    ranks = record_ranks(script(BEGIN + LOADED), 2, "all", args=[str(path)])
    assert [trace.error for trace in ranks.values()] == [None, None]
    assert [any(n.kind == "load" for n in t.notes) for t in ranks.values()] == [1, 1]
    assert not path.exists()
    read = script(f"{BEGIN}{LOADED}loaded['big'].sum().item()")
    assert "was written" in record_ranks(read, 2, "all", args=[str(path)])[1].error


HOOKED = """
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

model = nn.parallel.DistributedDataParallel(nn.Linear(3, 4))
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch refuses it without")
def test_torch_refuses_the_hook_for_bfloat16_where_it_has_no_cuda(script):
    ranks = record_ranks(script(BEGIN + HOOKED), 2, "all")
    assert ranks[0].error.startswith("TypeError: BF16 all reduce communication hook")


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
model = torch.nn.Linear(3, int(sys.argv[2]))
fully_shard(model)
if sys.argv[3:]:
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
dcp.save({{"model": model.state_dict()}}, checkpoint_id=sys.argv[1])
"""


def build(n_out, *, is_stepped):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, n_out)
    if is_stepped:
        model(torch.ones(2, 3)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    return model


@pytest.mark.parametrize("step", [[], ["step"]])
def test_ranks_that_are_all_recorded_save_a_checkpoint(script, tmp_path, step):
    folder, path = tmp_path / "saved", script(SAVES)
    ranks = record_ranks(path, 2, "all", args=[str(folder), "5", *step])
    assert [trace.error for trace in ranks.values()] == [None, None]
    with record():
        made = torch.nn.Linear(3, 5)
    materialize(made, init=folder)
    assert torch.equal(made.weight, build(5, is_stepped=bool(step)).weight)


def test_a_checkpoint_of_what_other_ranks_send_is_left_out(script, tmp_path):
    folder, path = tmp_path / "saved", script(SAVES)
    size = "20000"  # its gradients are not handed over
    record_ranks(path, 2, "all", args=[str(folder), size])
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    ranks = record_ranks(path, 2, "all", args=[str(folder), size, "step"])
    for trace in ranks.values():
        assert trace.error is None
        assert any(
            "no file is written: torch.distributed.checkpoint.save holds values that "
            "rest on what other ranks send in reduce_scatter" in note.text
            for note in trace.notes
        )
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


RESUMES = f"""{BEGIN}
import sys, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
shard = torch.ones(200, 100)
if sys.argv[2:]:
    dist.all_reduce(shard)
mesh = init_device_mesh("cpu", (world,))
state = {{"weight": DTensor.from_local(shard, mesh, [Shard(0)]), "step": 3}}
dcp.save(state, checkpoint_id=sys.argv[1])
state["step"] = 0
dcp.load(state, checkpoint_id=sys.argv[1])
assert state["step"] == 3
"""


@pytest.mark.parametrize("ranks", ["all", "0,2"])
def test_a_checkpoint_that_is_left_out_sends_what_a_written_one_does(
    script, tmp_path, ranks
):
    path, folders = script(RESUMES), (tmp_path / "saved", tmp_path / "left_out")
    written = record_ranks(path, 3, "all", args=[str(folders[0])])
    left_out = record_ranks(path, 3, ranks, args=[str(folders[1]), "sum"])
    assert folders[0].exists()
    assert not folders[1].exists()
    for rank, trace in left_out.items():
        assert trace.error is None
        own = [(one.kind, one.root) for one in written[rank].sent]
        assert [(one.kind, one.root) for one in trace.sent[1:]] == own
    assert len(own) > 10


def test_a_checkpoint_that_is_left_out_keeps_no_tensor_alive(script, tmp_path):
    text = RESUMES.replace("shard, mesh", "shard.clone(), mesh")
    path = script(f"{text}\ndel state; torch.ones(1)")
    traces = [
        record_ranks(path, 2, "all", args=[str(tmp_path / name), *option])[0]
        for name, option in (("saved", []), ("left out", ["sum"]))
    ]
    assert [trace.error for trace in traces] == [None, None]
    written, left_out = (trace.memory.live_nbytes[-1] for trace in traces)
    assert written == left_out


def test_a_rank_that_no_other_sends_the_plan_of_a_checkpoint_goes_on(tmp_path):
    text = RESUMES.replace("sys.argv", repr(["", str(tmp_path / "saved"), "sum"]))
    with record(world=3, rank=2) as trace:
        exec(text.partition("state[")[0], {"__name__": "__main__"})
    assert any("no file is written" in note.text for note in trace.notes)


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
