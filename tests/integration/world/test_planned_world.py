"""A block recorded as one rank of a world: what it finds, what is left, what fails."""

import os
import sys
from io import BytesIO
from math import isnan
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from meta_magic import (
    MissingValueError,
    ValueLimits,
    WorldError,
    record,
    replay,
)
from meta_magic.errors import ValueLimitError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def begin(backend="gloo", **given):
    dist.init_process_group(backend, **given)


@pytest.mark.parametrize("backend", ["nccl", "gloo", None])
def test_a_block_finds_the_world_that_torchrun_would_give(backend):
    with record(world=16, rank=9, per_node=8) as trace:
        begin(backend)
        assert (dist.get_rank(), dist.get_world_size()) == (9, 16)
        assert dist.get_backend() == (backend or "gloo")
        assert os.environ["LOCAL_RANK"] == "1"
        assert os.environ["GROUP_RANK"] == "1"
    assert trace.world == (16, 9, 8)


def test_a_loss_that_takes_too_much_is_nan_with_a_note_on_its_line():
    with record(world=8, limits=ValueLimits(flops=10**6)) as trace:
        begin()
        x = torch.ones(4, 4)
        assert x.mean().item() == 1
        for _ in range(2):
            x = torch.ones(999, 999) @ torch.ones(999, 999)
            loss = x.mean()
            assert isnan(loss.item())
        assert f"{loss:.2f} {loss.tolist()}" == "nan nan"
        assert loss.numpy().shape == ()
    first, *others = [note for note in trace.notes if note.kind == "assumed"]
    assert "values=nan" in first.text
    assert "2 times" in first.text
    assert others
    with pytest.raises(ValueLimitError), record(limits=ValueLimits(flops=10**6)):
        (torch.ones(999, 999) @ torch.ones(999, 999)).mean().item()


def test_a_loss_of_what_another_rank_sends_is_nan_with_a_note():
    with record(world=2, rank=1) as trace:
        begin()
        received = torch.empty(4)
        dist.recv(received, 0)
        assert isnan(received.mean().item())
        assert isnan(received.tolist()[3])
        with pytest.raises(MissingValueError, match="takes what rank 0 sends"):
            bool(received.sum() > 3)
    notes = [note for note in trace.notes if note.kind == "assumed"]
    assert len(notes) == 2
    assert all("another rank sends it" in note.text for note in notes)


@pytest.mark.parametrize("is_static", [False, True])
def test_parameters_that_no_rank_uses_have_no_gradient(is_static):
    with record(world=2):
        begin()
        pair = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        pair.forward = lambda x: pair[0](x) * 2
        model = nn.parallel.DistributedDataParallel(
            pair, find_unused_parameters=True, static_graph=is_static
        )
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        assert pair[0].weight.grad is not None
        assert pair[1].weight.grad is None


def test_the_buckets_of_a_reducer_are_no_real_memory_of_the_code():
    with record(world=2) as trace:
        begin()
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    assert trace.nbytes_real == 0
    assert trace.notes == ()


def test_a_model_is_exported_in_a_world():
    with record(world=2):
        begin()
        exported = torch.export.export(nn.Linear(3, 4), (torch.ones(2, 3),))
    assert "torch.ops.aten.linear.default" in str(exported.graph)


def test_a_call_that_torch_deprecates_has_the_line_of_the_code():
    with record(world=2) as trace:
        begin()
        dist.all_gather_into_tensor(torch.empty(2), torch.ones(1))
    (sent,) = trace.sent
    assert trace.ops[sent.index].position.file == __file__


def test_rows_that_others_would_send_are_as_many_as_were_asked_for():
    with record(world=2):
        begin()
        got = torch.empty(7)
        dist.all_to_all_single(got, torch.arange(5.0), [2, 5], [2, 3])
        assert got.tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_condition_that_takes_too_much_is_refused_in_a_world():
    with pytest.raises(ValueLimitError), record(world=8, limits=ValueLimits(flops=10)):
        begin()
        if torch.ones(99, 99).sum() > 3:
            raise AssertionError


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_a_world(fails):
    before = dict(os.environ), sys.excepthook, dist.all_reduce
    try:
        with record(world=4):
            begin()
            if fails:
                torch.ones(2) @ torch.ones(3)
    except RuntimeError:
        assert fails
    assert not dist.is_initialized()
    assert (dict(os.environ), sys.excepthook, dist.all_reduce) == before


def test_a_group_names_the_ranks_in_it():
    with record(world=8, rank=2) as trace:
        begin()
        evens = dist.new_group([0, 2, 4, 6])
        odds = dist.new_group([1, 3])
        assert (dist.get_rank(evens), dist.get_rank(odds)) == (1, -1)
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX, group=evens)
        dist.broadcast(torch.ones(5, dtype=torch.int64), 2)
    first, second = trace.sent
    assert (first.kind, first.ranks, first.reduce) == (
        "all_reduce",
        (0, 2, 4, 6),
        "max",
    )
    assert (second.kind, second.nbytes, second.dtype) == ("broadcast", 40, "int64")
    table = trace.sent.to_pandas()
    assert list(table["nbytes"]) == [8, 40]


OPTIONS = {
    "is not in a world of 4": {"world": 4, "rank": 4},
    "is not in a world of 8": {"world": 8, "rank": -1},
    "at least one process": {"world": 0},
    "need a world": {"rank": 1},
    "runs at least one process": {"world": 4, "per_node": 0},
}


@pytest.mark.parametrize("text", OPTIONS)
def test_a_rank_that_is_not_in_the_world_is_refused(text):
    with pytest.raises(ValueError, match=text):
        record(**OPTIONS[text])


def test_the_environment_names_a_world(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with record() as trace:
        begin()
        assert dist.get_rank() == 3
    assert trace.world == (4, 3, 4)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a real run")
    with record() as trace:
        pass
    assert trace.world is None


def test_a_real_group_is_left_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(WorldError, match="in a process group already"):
            record(world=4).__enter__()
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_a_mesh_that_does_not_fit_fails_in_torchs_words():
    from torch.distributed.device_mesh import init_device_mesh

    with pytest.raises(RuntimeError, match="not be bigger"), record(world=4):
        begin()
        init_device_mesh("cpu", (3, 2))


def test_a_call_with_tensors_of_two_meshes_is_explained():
    with pytest.raises(RuntimeError, match="same mesh"), record(world=4) as trace:
        begin()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        one = distribute_tensor(torch.ones(4), mesh["dp"])
        torch.stack([one, distribute_tensor(torch.ones(4), mesh)])
    wanted = "some tensors are distributed over (dp=2, tp=2), others over (dp=2)"
    assert trace.explanation.rules[0].startswith(wanted)


def test_a_direct_call_of_nccl_is_refused_by_name():
    with pytest.raises(WorldError, match="all_reduce calls NCCL"), record(world=2):
        torch.cuda.nccl.all_reduce([torch.ones(2, device="cuda")])


def test_spawned_processes_are_the_one_that_is_recorded():
    ranks = []
    with record(world=2, rank=1) as trace:
        torch.multiprocessing.spawn(train, args=(ranks,), nprocs=2)
    assert ranks == [1]
    assert [sent.kind for sent in trace.sent].count("all_reduce") == 1
    with pytest.raises(WorldError, match="starts 3 processes"), record(world=2):
        torch.multiprocessing.spawn(train, args=(ranks,), nprocs=3)


def train(rank, ranks):
    ranks.append(rank)
    begin(rank=rank, world_size=2, init_method="tcp://localhost:1234")
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    model(torch.ones(4, 3)).sum().backward()


REDUCED = {"SUM": 8.0, "AVG": 2.0, "PRODUCT": 16.0, "MAX": 2.0, "MIN": 2.0}


@pytest.mark.parametrize("name", REDUCED)
def test_values_are_as_if_each_rank_held_what_this_one_has(name):
    with record(world=4) as trace:
        begin()
        x = torch.full((3,), 2.0)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        assert x.tolist() == [REDUCED[name]] * 3
    (note,) = (note for note in trace.notes if note.kind == "assumed")
    assert "what other ranks send in all_reduce" in note.text


def test_values_of_other_ranks_are_never_saved(tmp_path):
    (tmp_path / "sum.pt").write_bytes(b"earlier")
    with record(world=4) as trace:
        begin()
        mine, others = torch.ones(3), torch.ones(3)
        dist.all_reduce(others)
        torch.save({"mine": mine}, tmp_path / "mine.pt")
        torch.save({"sum": others * 2}, tmp_path / "sum.pt")
        with pytest.raises(MissingValueError, match="a checkpoint of them would be"):
            torch.save(others, BytesIO())
    assert torch.equal(torch.load(tmp_path / "mine.pt")["mine"], torch.ones(3))
    assert (tmp_path / "sum.pt").read_bytes() == b"earlier"
    notes = [note for note in trace.notes if note.kind == "save"]
    assert [note.line for note in notes if "no file is written" in note.text]


def test_a_world_goes_on_where_a_checkpoint_takes_too_much(tmp_path):
    with record(world=4, limits=ValueLimits(nbytes=1000)) as trace:
        begin()
        weight = torch.randn(1000)
        torch.save(weight, tmp_path / "weight.pt")
        after = weight + 1
    assert not [*tmp_path.iterdir()]
    assert after.shape == (1000,)
    assert any("no file is written" in note.text for note in trace.notes)


def test_a_loop_hides_no_values_of_other_ranks():
    with record(world=8) as trace:
        begin()
        mine, others = torch.zeros(3), torch.ones(())
        dist.all_reduce(others)
        for step in range(8):
            mine = mine + 1
            assert mine.sum().item() == 3 * (step + 1)
        assert (others * 1).item() == 8
        mine = mine + others
        assert mine.tolist() == [16, 16, 16]
        with pytest.raises(MissingValueError, match="a checkpoint of them would be"):
            torch.save(mine, BytesIO())
    notes = [note for note in trace.notes if note.kind == "assumed"]
    assert len({note.line for note in notes}) == 2
    assert all("what other ranks send in all_reduce" in note.text for note in notes)


def test_what_another_rank_alone_has_is_refused():
    with record(world=4):
        begin()
        x, sizes = torch.empty(3), torch.empty(3, dtype=torch.long)
        dist.recv(x, src=2)
        dist.recv(sizes, src=2)
        for read in (x.numpy, sizes.tolist):
            with pytest.raises(MissingValueError, match="what rank 2 sends"):
                read()


def test_a_model_is_counted_by_what_the_rank_holds():
    from torch.distributed.fsdp import fully_shard

    with record(world=4, rank=3) as trace:
        begin()
        model = nn.Linear(10, 8, bias=False)
        fully_shard(model)
        model(torch.ones(2, 10)).sum().backward()
        torch.optim.SGD(model.parameters()).step()
    (weight,) = trace.modules[0].tensors
    assert (weight.shape, weight.local_shape) == ((8, 10), (2, 10))
    assert (weight.numel, weight.nbytes, weight.sharding) == (80, 80, "Shard(0)")
    assert trace.memory.live_by_category["parameter"][-1] == 80
    assert trace.memory.live_by_category["gradient"][-1] == 80


class Wrapper(nn.Module):
    """A module around another, as ``torch.compile(model)`` is one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_shards_that_are_gathered_while_a_module_is_described_are_counted_as_shards():
    from torch.distributed.fsdp import fully_shard

    with record(world=4) as trace:
        begin()
        model = nn.Linear(10, 8, bias=False)
        fully_shard(model)  # gathered from its forward pass to its backward pass
        Wrapper(model)(torch.ones(2, 10))
    held = {s: t for m in trace.modules for n in m.walk() for t, s in each(n)}
    assert [(t.shape, t.local_shape) for t in held.values()] == [((8, 10), (2, 10))]
    assert len(trace.modules) == 2


def each(node):
    return zip(node.tensors, node.storages, strict=True)


def test_parameters_that_stay_on_meta_are_refused_as_on_a_real_rank():
    from torch.distributed.fsdp import fully_shard

    with pytest.raises(RuntimeError, match="should be materialized"), record(world=2):
        begin()
        with torch.device("meta"):
            model = nn.Linear(4, 4)
        fully_shard(model)
        model(torch.ones(2, 4))


def test_fully_shard_moves_a_model_for_which_no_device_is_named():
    from torch.distributed.fsdp import fully_shard

    with record(world=4, as_device="cuda:4") as trace:
        begin("nccl")
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in model:
            fully_shard(layer)
        model(torch.ones(2, 8, device="cuda")).sum().backward()
    places = [t.place for node in trace.modules[0].walk() for t in node.tensors]
    assert places == [torch.device("cuda", 0)] * 4
    assert trace.notes == ()


def test_a_barrier_of_devices_and_a_collective_that_fails():
    with record(world=4, as_device="cuda:4"):
        begin("nccl")
        dist.barrier(device_ids=[torch.cuda.current_device()])
        with pytest.raises(ValueError, match="must be specified"):
            dist.gather(torch.ones(2), None)


@pytest.mark.parametrize("name", ["trunc_normal_", "normal_", "kaiming_uniform_"])
def test_a_shard_has_the_values_of_its_initializer(name):
    from torch.distributed.fsdp import fully_shard

    with record(world=4) as trace:
        begin()
        with torch.device("meta"):
            model = nn.Linear(8, 8, bias=False)
        fully_shard(model)
        model.to_empty(device="cpu")
        getattr(nn.init, name)(model.weight)
        shard = model.weight.to_local()
        assert shard.abs().sum().item() > 0
    values = replay(trace, shard)
    assert values.shape == (2, 8)
    assert len(values.unique()) == 16


def test_fully_sharded_data_parallel_takes_a_model_of_the_cell_for_real():
    from torch.distributed.fsdp import FullyShardedDataParallel

    with record(world=4) as trace:
        begin()
        model = nn.Linear(8, 8)
        torch.manual_seed(3)
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        drawn = torch.rand(1)
        model(torch.ones(2, 8)).sum().backward()
    torch.manual_seed(3)  # nothing is drawn in between: the model is not made again
    assert replay(trace, drawn) == torch.rand(1)
    assert trace.notes == ()


def test_a_message_to_another_machine_takes_the_network_of_the_recorded_rank():
    with record(world=4, rank=2, per_node=2) as trace:
        begin()
        dist.send(torch.ones(10**6), 3)
        dist.send(torch.ones(10**6), 0)
    near, far = (8.4e-6 + 3.4e-6 + 4e6 / 450e9), (8.4e-6 + 14e-6 + 4e6 / 50e9)
    time = trace.step_time("h100-sxm", "nvlink4-ib400")
    assert time.communication == pytest.approx(near + far)


def test_the_time_of_a_step_overlaps_what_does_not_wait():
    with record(world=8) as trace:
        begin()
        x, metric = torch.ones(4096, 4096), torch.ones(10**8)
        dist.all_reduce(metric, async_op=True)
        y = x @ x
        z = y @ y
    time = trace.step_time("h100-sxm", "nvlink4-ib400")
    # Ring: 14 steps, 14/8 of 4e8 bytes at 450e9; or NCCL's start alone is missing.
    wanted = 8.4e-6 + 14 * 3.4e-6 + 14 / 8 * 4e8 / 450e9
    assert time.communication == pytest.approx(wanted)
    assert time.compute == pytest.approx(trace.cost.seconds("h100-sxm"), rel=0.4)
    assert time.seconds < time.compute + time.communication
    assert z.shape == (4096, 4096)


def test_each_rank_of_a_machine_has_a_gpu():
    with record(world=16, rank=5, per_node=4, as_device="cuda"):
        counts = torch.cuda.device_count(), torch.accelerator.device_count()
    assert counts == (4, 4)
    with record(world=2, as_device="cuda:3"):
        assert torch.cuda.device_count() == 3


def test_a_model_of_the_cpu_is_moved_to_the_gpus_of_its_mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    with record(world=4, as_device="cuda") as trace:
        begin("nccl")
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16, bias=False))
        plan = {"0": SequenceParallel(), "1": ColwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        fully_shard(model, mesh=mesh["dp"])
    held = [tensor for node in trace.modules[0].walk() for tensor in node.tensors]
    assert {tensor.place for tensor in held} == {torch.device("cuda", 0)}
    # The norm is whole on both ranks of tp, and divided among those of dp.
    assert [tensor.sharding for tensor in held] == [
        "Shard(0), Replicate()",
        "Shard(0), Replicate()",
        "Shard(0), Shard(0)",
    ]
    assert [tensor.nbytes for tensor in held] == [16, 16, 8 * 16]


def test_folders_that_were_there_or_hold_other_files_are_kept(tmp_path):
    (tmp_path / "before").mkdir()
    with record(world=4):
        begin()
        others = torch.ones(3)
        dist.all_reduce(others)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "log.txt").write_text("a line")
        for folder in tmp_path.iterdir():
            torch.save(others, folder / "model.pt")
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert kept == {"before", "new", "new/log.txt"}


def test_a_cast_to_the_type_of_a_dtensor_stays_on_its_device():
    with record(world=2, as_device="cuda") as trace:
        begin("nccl")
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)])
        halved = x.half().type_as(x).to_local() * torch.ones(4, device="cuda")
        assert halved.device == torch.device("cuda", 0)
    assert not [note for note in trace.notes if "without a named device" in note.text]


def test_folders_that_two_ranks_made_are_removed_in_any_order(tmp_path):
    from meta_magic.recording.intercept.world.checkpoints import Unwritten

    (tmp_path / "a" / "b").mkdir(parents=True)
    made = [tmp_path / "a" / "b", tmp_path / "a"]
    Unwritten(made, [], [tmp_path / "a/b/c.pt"]).remove()
    assert not [*tmp_path.iterdir()]


def test_what_is_no_longer_on_meta_is_on_the_cpu_in_a_world():
    with record(world=2, as_device="cuda"):
        torch.cuda.set_device(torch.device("cuda", 0))
        model = nn.Linear(3, 3, device="meta")
        assert model.weight.device == torch.device("meta")
        held = {"weight": torch.zeros(3, 3), "bias": torch.zeros(3)}
        model.load_state_dict(held, assign=True)
        assert model.weight.device == torch.device("cpu")
        assert model.to(torch.device("cuda", 0)).weight.device.type == "cuda"


def test_a_checkpoint_that_lightning_saves_to_memory_first_is_left_out(
    tmp_path, monkeypatch
):
    class TorchCheckpointIO:
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            memory = BytesIO()
            torch.save(checkpoint, memory)
            path.write_bytes(memory.getvalue())

    plugins = SimpleNamespace(TorchCheckpointIO=TorchCheckpointIO)
    monkeypatch.setitem(sys.modules, "lightning.fabric.plugins.io", plugins)
    with record(world=4) as trace:
        begin()
        others = torch.ones(3)
        dist.all_reduce(others)
        TorchCheckpointIO().save_checkpoint({"sum": others}, tmp_path / "last.ckpt")
    assert not [*tmp_path.iterdir()]
    assert any("no file is written" in note.text for note in trace.notes)
