"""Advice on ranks: found where it was planted, silent on the mended program."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from meta_magic import record, record_ranks
from meta_magic.cost.advice.advisors import find_advice

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

TRAIN = """%%meta -q --world 8
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as Zero
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = {optimizer}
model(torch.ones(2, 64)).sum().backward()
optimizer.step()"""
WHOLE = "Adam(model.parameters(), 1e-3)"
DIVIDED = "Zero(model.parameters(), optimizer_class=torch.optim.Adam)"


def kinds_of(trace):
    return [advice.kind for advice in find_advice(trace)]


def test_an_optimizer_state_on_each_rank_is_proven_by_one_that_is_divided(shell):
    shell.run_cell("from torch.optim import Adam")  # under a name of its own
    shell.run_cell(TRAIN.format(optimizer=WHOLE))
    trace = shell.user_ns["_meta"]
    (advice,) = [a for a in trace.advice if a.kind == "replicated"]
    state = 8 * (2 * 4 * 64 * 64 + 4)  # two moments and a step for each weight
    assert advice.nbytes == state - state // 8
    assert advice.lines == (10,)
    shell.run_cell(TRAIN.format(optimizer=DIVIDED))
    divided = shell.user_ns["_meta"]
    assert "replicated" not in kinds_of(divided)
    assert advice.proof.before_nbytes == trace.memory.peak_nbytes
    assert advice.proof.after_nbytes == divided.memory.peak_nbytes


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 1000)

    def forward(self, x):
        return self.out(self.first(x))


def train_sharded(*names):
    with record(world=4) as trace:
        dist.init_process_group("gloo")
        model = TwoLayers()
        for name in names:
            fully_shard(model.get_submodule(name))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return trace


@pytest.mark.parametrize("names", [(), ("first",), ("first", "out"), ("first", "")])
def test_a_large_parameter_that_is_not_sharded_where_others_are(names):
    found = [a for a in find_advice(train_sharded(*names)) if a.kind == "unsharded"]
    assert len(found) == (names == ("first",))
    for advice in found:
        assert "model.out.weight and model.out.bias" in advice.text
        assert advice.nbytes == 4 * (4 * 1000 + 1000)


def test_a_model_that_is_sharded_in_part_is_proven_by_one_that_is_sharded():
    (advice,) = [a for a in train_sharded("first").advice if a.kind == "unsharded"]
    whole = train_sharded("first", "")
    assert advice.proof.choice == "sharded root"
    assert advice.proof.after_nbytes == whole.memory.peak_nbytes


def train_layers(*, is_fine):
    with record(world=16) as trace:
        dist.init_process_group("gloo")
        blocks = [nn.Sequential(*[nn.Linear(64, 64)] * 8) for _ in range(4)]
        model = nn.Sequential(*blocks)
        layers = [*model.modules()][::-1]
        for module in layers:
            if is_fine or not isinstance(module, nn.Linear):
                fully_shard(module)
        model(torch.ones(2, 64)).sum().backward()
    return trace


def test_shards_that_are_too_fine_are_proven_by_coarser_ones():
    coarse, fine = train_layers(is_fine=False), train_layers(is_fine=True)
    small = [advice for advice in fine.advice if advice.kind == "small messages"]
    assert small
    assert "small messages" not in kinds_of(coarse)
    for advice in small:
        assert advice.proof.choice == "coarser shards"
        assert advice.proof.after_nbytes == coarse.memory.peak_nbytes
        assert advice.proof.after_seconds < advice.proof.before_seconds / 2


def gather_twice(between):
    with record(world=4) as trace:
        dist.init_process_group("gloo")
        x = torch.ones(1000)
        first = torch.empty(4000)
        dist.all_gather_single(first, x)
        if between == "is written":
            x.add_(1)
        if between == "is freed":
            del first
        second = torch.empty(4000)
        dist.all_gather_single(second, x)
        second.sum()
    return trace


@pytest.mark.parametrize("between", ["", "is written", "is freed"])
def test_a_tensor_that_is_gathered_while_it_is_there(between):
    assert ("gathered" in kinds_of(gather_twice(between))) == (not between)


def test_a_second_gather_is_proven_by_sharing_the_first_result():
    (advice,) = gather_twice("").advice
    assert advice.proof.choice == "one gather"
    assert advice.proof.after_seconds == advice.proof.before_seconds / 2


def test_many_messages_that_are_latency():
    with record(world=16) as trace:
        dist.init_process_group("gloo")
        many = [torch.ones(1) for _ in range(100)]
        for one in many:
            dist.all_reduce(one)
            one.div_(16)
        dist.all_reduce(torch.ones(100))
    (advice,) = [a for a in find_advice(trace) if a.kind == "small messages"]
    assert advice.text.startswith("100 all_reduce of at most 4 bytes among ranks 0-15")
    with record(world=16) as trace:
        dist.init_process_group("gloo")
        for _ in range(100):
            dist.all_reduce(torch.ones(10**8))
    assert kinds_of(trace) == []


def reduce_two(between="", n=1, **given):
    """Reduce two tensors, with a line between them; return the trace."""
    with record(world=8) as trace:
        dist.init_process_group("gloo")
        evens = dist.new_group([0, 2, 4, 6])
        loss, count = torch.ones(n), torch.ones(n)
        dist.all_reduce(loss)
        exec(between)
        group = evens if given.get("group") == "evens" else None
        op = given.get("op", dist.ReduceOp.SUM)
        dist.all_reduce(count.to(given.get("dtype", torch.float32)), op, group)
        loss.sum() / count
    return trace


@pytest.mark.parametrize("between", ["", "count = count + 1", "loss.view(-1)"])
def test_two_reductions_in_a_row(between):
    (advice,) = reduce_two(between).advice
    assert advice.kind == "separate reductions"
    assert advice.text.startswith("2 all_reduce in a row among ranks 0-7, 8 bytes")
    assert advice.proof.choice == "one all_reduce"
    assert advice.proof.after_seconds == pytest.approx(advice.proof.before_seconds / 2)


@pytest.mark.parametrize(
    "given",
    [
        {"between": "print(loss.item())"},
        {"between": "count += loss"},
        {"between": "loss /= 8"},
        {"between": "dist.barrier()"},
        {"between": "dist.broadcast(count, 0)"},
        {"op": dist.ReduceOp.MAX},
        {"dtype": torch.float64},
        {"group": "evens"},
        {"n": 10**8},  # bytes take the time, not latency
    ],
)
def test_two_reductions_that_are_not_one(given):
    assert "separate reductions" not in kinds_of(reduce_two(**given))


def test_gradients_that_are_reduced_each_on_its_own():
    with record(world=8) as trace:
        dist.init_process_group("gloo")
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        for parameter in model.parameters():
            parameter.grad /= 8
    (advice,) = trace.advice
    assert (advice.kind, advice.nbytes) == ("separate reductions", 0)
    assert advice.text.startswith("4 all_reduce in a row among ranks 0-7, 160 bytes")
    assert advice.proof.after_seconds == pytest.approx(
        advice.proof.before_seconds / 4, rel=1e-3
    )


def test_buckets_of_ddp_overlap_with_backward():
    with record(world=8) as trace:
        dist.init_process_group("gloo")
        layers = [nn.Linear(64, 64) for _ in range(4)]
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=0.01
        )
        for _ in range(2):
            model(torch.ones(2, 64)).sum().backward()
    assert sum(sent.phase == "backward" for sent in trace.sent) > 4
    assert "separate reductions" not in kinds_of(trace)


PARALLEL = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.Dropout({p}), nn.Linear(16, 4))
model = DistributedDataParallel(model)
torch.manual_seed({seed})
own = torch.Generator().manual_seed(dist.get_rank())  # for the data
model(torch.rand({rows}, 16, generator=own)).sum().backward()
"""


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({"p": 0.1, "seed": "0", "rows": "8"}, ["dropout"]),
        ({"p": 0.1, "seed": "dist.get_rank()", "rows": "8"}, []),
        ({"p": 0.0, "seed": "0", "rows": "8"}, []),
        (
            {"p": 0.1, "seed": "dist.get_rank()", "rows": "8 - dist.get_rank()"},
            ["batch"],
        ),
    ],
)
def test_ranks_beside_each_other(given, kinds, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PARALLEL.format(**given), "utf-8")
    ranks = record_ranks(path, 4, [0, 3])
    assert [advice.kind for advice in ranks.advice] == kinds
    assert [advice.lines for advice in ranks.advice] == [(11,)] * len(kinds)
    assert all(str(advice) in str(ranks) for advice in ranks.advice)
    proven = [advice.kind for advice in ranks.advice if advice.proof is not None]
    assert proven == [kind for kind in kinds if kind == "dropout"]


DIVIDED_STATES = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as Zero
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(9, 9)] * 4))
optimizer = Zero(model.parameters(), torch.optim.Adam)
model(torch.ones(2, 9)).sum().backward()
optimizer.step()
part, kept = torch.ones(2, 9), [torch.empty(4, 9) for _ in range(2)]
for whole in kept:
    dist.all_gather_into_tensor(whole, part)
"""


def test_what_ranks_hand_each_other_is_no_work_of_their_own(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(DIVIDED_STATES, "utf-8")
    ranks = record_ranks(path, 2, "all")
    kinds = [kinds_of(trace) for trace in ranks.values()]
    assert kinds == [["gathered"], ["gathered"]]


BY_HAND = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
{seed}
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
{sync}
torch.manual_seed(dist.get_rank())
model(torch.randn(8, 16)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
"""
BROADCAST = "for p in model.parameters(): dist.broadcast(p.data, 0)"


@pytest.mark.parametrize(
    ("seed", "sync", "kinds"),
    [
        ("torch.manual_seed(dist.get_rank())", "", ["initial values"]),
        ("", "", ["initial values"]),
        ("torch.manual_seed(7)", "", []),
        ("torch.manual_seed(7)", "[p.data.zero_() for p in model.parameters()]", []),
        ("torch.manual_seed(dist.get_rank())", BROADCAST, []),
    ],
)
def test_ranks_that_begin_with_other_parameters(seed, sync, kinds, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BY_HAND.format(seed=seed, sync=sync), "utf-8")
    ranks = record_ranks(path, 2, "all")
    assert [advice.kind for advice in ranks.advice] == kinds
    assert [advice.lines for advice in ranks.advice] == [(6,)] * len(kinds)
    for advice in ranks.advice:
        assert advice.proof.choice == "parameters broadcast from rank 0"


def test_ranks_that_hold_a_part_of_each_layer_draw_the_same(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, torch.distributed as dist\nfrom torch import nn\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor.parallel import *\n"
        "dist.init_process_group('gloo')\nmesh = init_device_mesh('cpu', (4,))\n"
        "model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(), nn.Linear(16, 4))\n"
        "plan = {'0': ColwiseParallel(), '2': RowwiseParallel()}\n"
        "parallelize_module(model, mesh, plan)\n"
        "model(torch.ones(8, 16)).sum().backward()",
        "utf-8",
    )
    assert record_ranks(path, 4, [0, 3]).advice == ()
