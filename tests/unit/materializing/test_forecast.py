"""What a materialization takes, and what would fit; what its report says."""

import re
from collections import OrderedDict

import psutil
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from meta_magic.materializing.materialize import list_fitting, prepare
from meta_magic.materializing.report import Forecast, format_seconds
from meta_magic.replaying.value_budget import Rates, estimate_seconds
from tests.unit.eager import build_twice, is_untouched, tensors_of
from tests.unit.materializing.modules import (
    Masked,
    Raw,
    Tied,
    convolutions,
    holding_odd,
)

CPU = torch.device("cpu")
IMAGES = (2, 1, 4, 4)


def record_uses(n_forwards=0, n_steps=0, build=convolutions):
    with record():
        model = build()
        for _ in range(n_forwards):
            model(torch.ones(IMAGES))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(n_steps):
            model(torch.ones(IMAGES)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def test_a_construction_alone_is_operators_and_a_time():
    forecast = prepare(record_uses()).forecast
    assert forecast.uses == ()
    assert forecast.needed_by == ()
    assert str(forecast) == f"{forecast.n_operators} operators, less than a second"


def test_forwards_that_statistics_need_are_counted_with_their_flops():
    forecast = prepare(record_uses(n_forwards=3)).forecast
    with FlopCounterMode(display=False) as counter:
        convolutions()[0](
            torch.ones(IMAGES)
        )  # of what follows the norm nothing is needed
    assert forecast.uses == (("forward", 3),)
    assert forecast.flops == 3 * counter.get_total_flops()
    (needing,) = forecast.needed_by
    names = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert needing == ("buffers of BatchNorm2d", names, 3)


def test_training_steps_are_counted_by_what_they_consist_of():
    forecast = prepare(record_uses(n_steps=2)).forecast
    assert forecast.uses == (("forward", 2), ("backward", 2), ("optimizer", 2))
    assert [(kind, n) for kind, _, n in forecast.needed_by] == [
        ("parameters", 6),
        ("buffers of BatchNorm2d", 3),
    ]
    assert str(forecast).startswith(
        "replays 2 forwards, 2 backward passes and 2 optimizer steps ("
    )
    assert "for 6 parameters (0.weight, 0.bias, 1.weight, …); 3 buffers" in str(
        forecast
    )


def test_a_forward_that_nothing_needs_is_not_in_it():
    with record():
        model = nn.Linear(2, 3)
        model(torch.ones(1, 2))
    assert prepare(model).forecast.uses == ()


def test_as_constructed_nothing_is_used():
    model = record_uses(n_forwards=1, n_steps=2)
    assert prepare(model, state="constructed").forecast.uses == ()


@pytest.mark.parametrize("init", INITS[1:])
def test_where_nothing_is_replayed_there_is_nothing_to_say(init):
    forecast = prepare(record_uses(n_forwards=1), init=init).forecast
    assert forecast == Forecast()
    assert str(forecast) == ""


def test_for_a_checkpoint_it_is_what_the_rest_takes():
    model = record_uses(n_forwards=1)
    saved = convolutions().state_dict()
    assert prepare(model, init=saved).forecast.uses == ()
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        del saved[name]
    assert prepare(model, init=saved).forecast.uses == (("forward", 1),)


def test_it_is_said_what_all_is_for_and_how_long_it_takes():
    forecast = Forecast(
        n_operators=800,
        uses=(("forward", 1),),
        needed_by=(("buffers of BatchNorm2d", ("bn.running_mean",), 106),),
        flops=262_000_000_000,
        seconds=8.2,
    )
    assert str(forecast) == (
        "replays 1 forward (262.0 GFLOPs, about 8 s), for 106 buffers of BatchNorm2d "
        "(bn.running_mean, …)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (1.4, "about 1 s"),
        (89, "about 89 s"),
        (100, "about 2 min"),
        (5399, "about 90 min"),
        (3 * 3600, "about 3 h"),
    ],
)
def test_a_time_is_rough(seconds, text):
    assert format_seconds(seconds) == text


def test_a_step_takes_its_flops_its_bytes_and_a_moment():
    with record():
        model = nn.BatchNorm1d(256)
        model(torch.ones(512, 512) @ torch.ones(512, 256))
    steps = prepare(model).fill._shares[0].replay.steps
    rates = Rates(large=2**27, small=1, nbytes=2**20, drawn=1, steps=1)
    (product,) = [s for s in steps if s.call.signature.op == "aten.mm.default"]
    # 2 * 512 * 512 * 256 FLOPs; float32: 1 MiB, half a MiB, and half a MiB returned.
    assert estimate_seconds(product, rates, CPU) == 1 + 1 + 2


def test_a_draw_takes_what_its_numbers_take():
    with record():
        model = nn.Embedding(4, 5)
    steps = prepare(model).fill._shares[0].replay.steps
    rates = Rates(large=1, small=1, nbytes=1, drawn=10, steps=1)
    (draw,) = [s for s in steps if s.draw is not None]
    assert estimate_seconds(draw, rates, CPU) == 1 + 2


# Too little memory: an error with numbers, before anything is made.


def huge():
    """A hundred terabytes, and six smaller ones."""
    with record():
        return nn.ModuleDict(
            {
                "middle": nn.Linear(1_000, 1_000, bias=False),
                "huge": nn.Linear(5_000_000, 5_000_000, bias=False),
                **{f"n{i}": nn.Linear(100, i, bias=False) for i in range(10, 15)},
            }
        )


@pytest.mark.parametrize("init", INITS)
def test_too_little_memory_is_an_error_before_anything_is_made(init):
    made = huge()
    before = tensors_of(made)
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init=init)
    # 25e12 elements of 4 bytes are 90.9 TiB.
    assert re.search(
        r"takes 90\.9 TiB .* and [\d.,]+ [GMK]iB is free", str(caught.value)
    )
    assert is_untouched(made, before)


def test_too_little_memory_names_the_five_largest_tensors():
    with pytest.raises(MaterializeError, match="Materialize a submodule") as caught:
        materialize(huge())
    names = re.findall(r"(?:huge|middle|n\d+)\.weight", str(caught.value))
    assert names == [
        "huge.weight",
        "middle.weight",
        "n14.weight",
        "n13.weight",
        "n12.weight",
    ]


def test_memory_that_is_used_on_the_way_counts():
    with record():
        made = holding_odd(torch.ones(5_000_000, 5_000_000).sum(0))
    with pytest.raises(MaterializeError, match="takes 90"):
        materialize(made)


# What would fit, where a module as it was asked for does not.


EMPTY = {"init": "empty", "device": "cpu"}


class Encoder(nn.Module):
    """Takes some times the memory that there is, mostly in its last layer."""

    def __init__(self, n_times):
        super().__init__()
        n_rows = int(psutil.virtual_memory().available * n_times) // 4096
        self.layers = nn.ModuleList([nn.Linear(1024, n) for n in (8, 16, n_rows)])


def list_for(n_times, **arguments):
    with record():
        model = Encoder(n_times)
    given = {**EMPTY, **arguments}
    whole = prepare(model, **given)
    assert not whole.fits
    return [*list_fitting(whole, "model", given)]


def test_half_as_many_bytes_may_fit():
    dtype, submodule = list_for(1.3)
    assert dtype.startswith("bfloat16 (")
    # 16 * 1024 weights and 16 biases of 4 bytes each.
    assert submodule == "model.layers[1] (64.1 KiB)"


def test_a_dtype_that_was_chosen_is_not_offered_another_for():
    assert list_for(2.6, dtype=torch.bfloat16) == ["model.layers[1] (32.0 KiB)"]


def test_a_submodule_is_named_as_one_writes_it():
    wide, small = int(psutil.virtual_memory().available) // 4096 * 2, 8
    with record():
        blocks = OrderedDict(narrow=nn.Linear(1024, small), wide=nn.Linear(1024, wide))
        model = nn.Sequential(nn.ModuleDict({"a b": nn.Sequential(blocks)}))
    given = {**EMPTY, "dtype": torch.bfloat16}
    (found,) = list_fitting(prepare(model, **given), "model", given)
    path = found.removesuffix(" (16.0 KiB)")  # 8 rows of 1024, and 8, of 2 bytes
    assert eval(path, {"model": model}) is blocks["narrow"]


# What the report of materialize() counts, names and says.


def test_the_report_names_kinds():
    _, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {t.name: t.kind for t in report.tensors} == {
        "linear.weight": "parameter",
        "linear.bias": "parameter",
        "mask": "buffer",
        "steps": "buffer",
        "scale": "attribute",
        "listed[0]": "attribute",
        "listed[1]": "attribute",
        "mapped['deep'][0]": "attribute",
    }


def test_the_report_reads_as_text():
    _, made, _, _ = build_twice(Tied)
    lines = str(materialize(made)).splitlines()
    assert lines[0].startswith("Tied on cpu: 2 tensors, 160 bytes, in ")
    assert lines[1:] == [
        "  replay: 2 (embed.weight, head.weight)",
        "  ties kept: 1 (head.weight)",
    ]


def test_the_report_shouts_what_is_uninitialized():
    _, made, _, _ = build_twice(Raw)
    assert "  UNINITIALIZED: 1 (weight)" in str(materialize(made)).splitlines()


def test_the_peak_of_a_linear_is_its_own_size():
    _, made, _, _ = build_twice(lambda: nn.Linear(100, 50))
    assert materialize(made).peak_nbytes == (100 * 50 + 50) * 4
