"""FLOPs and bytes added up by phase, module and operator."""

import pytest
import torch
from torch import nn

import meta_magic as mm
from meta_magic.cost.costs import name_roots
from meta_magic.trace.modules import ModuleNode


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def train():
    model = nn.Sequential(Block(), nn.Linear(4, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(5, 4)).sum().backward()
    optimizer.step()
    return model


@pytest.fixture(scope="module")
def trace():
    with mm.record(as_device="cpu") as trace:
        model = train()  # noqa: F841  a root is called by its variable
    return trace


SQUARE = 2 * 5 * 4 * 4
LAST = 2 * 5 * 4 * 3
FLOPS = {"forward": 2 * SQUARE + LAST, "backward": 3 * SQUARE + 2 * LAST}
"""Backward has no gradient of the first layer's input, and two of the others."""


def test_phases_add_up_to_the_total(trace):
    cost = trace.cost
    assert {p: work.flops for p, work in cost.by_phase.items() if work.flops} == FLOPS
    assert set(cost.by_phase) == {"init", "forward", "backward", "optimizer", "other"}
    for name in ("n_calls", "flops", "n_elementwise", "nbytes_read", "nbytes_written"):
        parts = sum(getattr(work, name) for work in cost.by_phase.values())
        assert parts == getattr(cost.total, name)
    assert cost.total.n_calls == len(trace.ops)
    assert cost.flops == trace.flops == sum(call.flops or 0 for call in trace.ops)


def test_a_module_has_what_is_in_it_and_its_backward(trace):
    by_module = {m: work.flops for m, work in trace.cost.by_module.items()}
    assert by_module == {
        "model": sum(FLOPS.values()),
        "model.0": 5 * SQUARE,
        "model.0.layers": 5 * SQUARE,
        "model.0.layers.0": 2 * SQUARE,  # its input needs no gradient
        "model.0.layers.1": 3 * SQUARE,
        "model.1": 3 * LAST,
    }


def test_operators_are_ranked_by_flops(trace):
    by_op = trace.cost.by_op
    assert next(iter(by_op)) == "aten.mm.default"
    assert by_op["aten.mm.default"].flops == trace.cost.flops
    assert sum(work.n_calls for work in by_op.values()) == len(trace.ops)


def test_a_call_outside_of_modules_belongs_to_that_of_the_first_that_it_writes():
    with mm.record() as trace:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        with torch.no_grad():
            torch._foreach_zero_([second.bias, first.bias])
    assert trace.cost.to_pandas()["module"].iloc[-1] == "second"


def test_masked_products_are_named():
    with mm.record(as_device="cpu") as trace:
        heads = [torch.randn(1, 1, 4, 8) for _ in range(3)]
        nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    total = trace.cost.total
    # Of 16 pairs the causal mask leaves 4 + 3 + 2 + 1.
    assert (total.flops, total.flops_needed) == (4 * 16 * 8, 4 * 10 * 8)
    assert "192 FLOPs of them masked" in str(trace.cost)


def test_nothing_costs_nothing():
    with mm.record() as trace:
        pass
    cost = trace.cost
    assert (cost.flops, cost.total.n_calls, cost.by_phase, cost.unknown) == (
        0,
        0,
        {},
        (),
    )
    assert cost.seconds() == 0
    assert len(cost.to_pandas()) == 0
    assert cost.total.intensity is None


def test_a_block_that_failed_half_way_has_the_cost_of_what_ran():
    with pytest.raises(RuntimeError), mm.record() as trace:
        torch.ones(2, 3) @ torch.ones(3, 4)
        torch.ones(2, 3) @ torch.ones(2, 4)
    assert trace.cost.flops == 2 * 2 * 3 * 4
    assert trace.cost.total.n_calls == trace.program.n_calls == len(trace.ops) - 1
    assert trace.cost.unknown == ()


def test_print_says_what_costs_and_what_is_not_known():
    with mm.record() as trace:
        torch.linalg.matrix_exp(torch.ones(4, 4) @ torch.ones(4, 4))
    lines = str(trace.cost).splitlines()
    assert lines[0].startswith("128 FLOPs · 0 operations element by element · ")
    assert lines[-1].startswith("no formula: aten.linalg_matrix_exp.default, 1 call, ")


def node(name, class_name="Linear"):
    return ModuleNode(name=name, fqn="", class_name=class_name, tensors=(), children=())


def test_roots_of_one_name_are_numbered_and_those_without_go_by_their_class():
    roots = [node("model"), node(""), node("model"), node("", "GRU"), node("model")]
    names = ["model", "Linear", "model (2)", "GRU", "model (3)"]
    assert [*name_roots(roots)] == names


# A roofline's time: the longer of computing and moving


SLOW = mm.Device(
    name="slow",
    title="Slow",
    peaks=(("float32", 1e9), ("tfloat32", 4e9), ("bfloat16", 8e9)),
    bandwidth=1e7,
    nbytes=0,
    source="made up",
)
F32 = 4


def roof(run, **settings):
    with mm.record(as_device="cpu") as trace:
        run()
    return trace.cost.roofline(SLOW, **settings)


def test_what_is_bound_by_memory_takes_as_long_as_its_bytes():
    line = roof(lambda: torch.mm(torch.empty(4, 3), torch.empty(3, 5)))
    # 120 FLOPs take 0.12 microseconds; 47 elements 19.
    assert line.seconds == pytest.approx((12 + 15 + 20) * F32 / 1e7)
    assert line.memory_share == 1


@pytest.mark.parametrize(
    ("settings", "dtype", "rate"),
    [
        ({}, torch.float32, 1e9),
        ({"tf32": True}, torch.float32, 4e9),
        ({}, torch.bfloat16, 8e9),
        ({"tf32": True}, torch.bfloat16, 8e9),
    ],
)
def test_products_take_the_peak_of_their_dtype(settings, dtype, rate):
    n = 40_000  # a product needs n FLOPs for each 6 bytes
    line = roof(
        lambda: torch.mm(*[torch.empty(n, n, dtype=dtype) for _ in range(2)]),
        **settings,
    )
    assert line.seconds == pytest.approx(2 * n**3 / rate)
    assert line.memory_share == 0


def test_phases_modules_and_operators_add_up():
    with mm.record(as_device="cpu") as trace:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
        model(torch.ones(2, 3)).sum().backward()
    line = trace.cost.roofline(SLOW)
    assert sum(line.by_phase.values()) == pytest.approx(line.seconds)
    assert sum(line.by_op.values()) == pytest.approx(line.seconds)
    parts = line.by_module["model.0"] + line.by_module["model.1"]
    assert parts == pytest.approx(line.by_module["model"])
    assert [*line.by_op.values()] == sorted(line.by_op.values(), reverse=True)
    table = line.to_pandas()
    assert table["seconds"].sum() == pytest.approx(line.seconds)
    assert len(table) == len(trace.ops)
    assert {*table["bound"]} <= {"memory", "compute"}
    assert trace.cost.seconds(SLOW) == line.seconds


def test_print_says_how_long_and_what_is_waited_for():
    line = roof(lambda: torch.mm(torch.empty(4, 3), torch.empty(3, 5)))
    assert str(line).splitlines() == [
        "about 1.88e-05 s on Slow, by its peaks",
        "other: 1.88e-05 s",
        "bound by its memory: 100% of the time",
    ]
