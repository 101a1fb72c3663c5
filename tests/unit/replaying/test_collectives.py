"""Values after collectives: in torch's fake group, and in a group of one process."""

from functools import partial

import pytest
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

from meta_magic import record
from meta_magic.errors import MissingValueError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def begin_fake():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)


def begin_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@pytest.fixture(params=[begin_fake, begin_alone], ids=["fake", "gloo"])
def group(request):
    request.param()
    yield dist.group.WORLD
    dist.destroy_process_group()


def parts(make):
    return [make(2) for _ in range(dist.get_world_size())]


def rows(n=2):
    return torch.arange(float(n * dist.get_world_size()))


WRITING = {
    "all_reduce": lambda y: dist.all_reduce(y[0]),
    "all_reduce of a maximum": lambda y: dist.all_reduce(y[0], op=dist.ReduceOp.MAX),
    "reduce": lambda y: dist.reduce(y[0], 0),
    "broadcast": lambda y: dist.broadcast(y[0], 0),
    "all_gather": lambda y: dist.all_gather(y, torch.ones(2)),
    "all_gather_into_tensor": lambda y: dist.all_gather_into_tensor(
        torch.stack(y, out=y[0].new_zeros(len(y), 2)), torch.ones(1, 2)
    ),
    "gather": lambda y: dist.gather(torch.ones(2), y),
    "scatter": lambda y: dist.scatter(y[0], parts(torch.ones)),
    "reduce_scatter": lambda y: dist.reduce_scatter(y[0], parts(torch.ones)),
    "reduce_scatter_tensor": lambda y: dist.reduce_scatter_tensor(y[0], rows()),
    "all_to_all": lambda y: dist.all_to_all(y, parts(torch.ones)),
    "not at once": lambda y: dist.all_gather(y, rows()[:2], async_op=True).wait(),
}

RETURNING = {
    "all_reduce": lambda g: functional.all_reduce(torch.ones(2), "sum", g),
    "all_gather": lambda g: functional.all_gather_tensor(rows(), 0, g),
    "reduce_scatter": lambda g: functional.reduce_scatter_tensor(rows(), "sum", 0, g),
    "broadcast": lambda g: functional.broadcast(rows(), 0, g),
    "all_to_all": lambda g: functional.all_to_all_single(rows(), None, None, g),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", WRITING)
def test_a_collective_writes_the_values_of_the_cpu(name):
    def program():
        y = parts(torch.zeros)
        WRITING[name](y)
        return [part.tolist() for part in y]

    wanted = program()
    with record() as trace:
        made = program()
    assert made == wanted
    assert any(call.writes for call in trace.ops if call.op.startswith("c10d."))


@pytest.mark.parametrize("as_device", ["cpu", "meta"])
@pytest.mark.parametrize("name", RETURNING)
def test_a_collective_returns_the_values_of_the_cpu(name, as_device, group):
    wanted = (RETURNING[name](group) + 1).tolist()
    with record(as_device=as_device):
        assert (RETURNING[name](group) + 1).tolist() == wanted


@pytest.mark.usefixtures("group")
def test_a_whole_tensor_of_shards_has_its_values():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def program():
        shards = DTensor.from_local(torch.ones(5, 8), mesh, [Shard(1)])
        return shards.full_tensor().sum().item()

    wanted = program()
    with record():
        assert program() == wanted


def test_a_value_from_other_processes_is_refused(tmp_path):
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=ask, args=(rank, str(tmp_path / "store"), answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    told = [answers.get(timeout=120) for _ in (*ranks, *ranks)]
    for rank in ranks:
        rank.join(60)
    for text in told:
        assert "takes what 1 other processes of the group 0 send" in text
        assert ("with src_data_rank=None" in text) == ("broadcast" in text)


def ask(rank, path, answers):
    """Ask for what two processes reduce, and send, as one of them."""
    store = dist.FileStore(path, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for send in (dist.all_reduce, partial(dist.broadcast, src=0)):
        try:
            with record():
                x = torch.ones(2)
                send(x)
                x.tolist()
        except MissingValueError as error:
            answers.put(str(error))
        else:
            answers.put("answered")
    dist.barrier()
    dist.destroy_process_group()
