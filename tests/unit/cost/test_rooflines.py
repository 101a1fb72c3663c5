"""A roofline's time: the longer of computing and moving."""

import pytest
import torch
from torch import nn

import meta_magic as mm

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


def test_what_is_bound_by_computing_takes_as_long_as_its_flops():
    n = 40_000  # a product needs n FLOPs for each 6 bytes
    line = roof(lambda: torch.mm(torch.empty(n, n), torch.empty(n, n)))
    assert line.seconds == pytest.approx(2 * n**3 / 1e9)
    assert line.memory_share == 0


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
    n = 40_000
    line = roof(
        lambda: torch.mm(*[torch.empty(n, n, dtype=dtype) for _ in range(2)]),
        **settings,
    )
    assert line.seconds == pytest.approx(2 * n**3 / rate)


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


def test_an_unknown_device_is_refused():
    with mm.record() as trace:
        torch.ones(2)
    with pytest.raises(mm.UnknownDeviceError, match="Known are"):
        trace.cost.seconds(device="abacus")
