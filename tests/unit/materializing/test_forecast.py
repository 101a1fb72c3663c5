"""What is said of a materialization before it is done."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import record
from meta_magic.materializing.fills.inits import INITS
from meta_magic.materializing.forecast import Forecast, format_seconds
from meta_magic.materializing.materialize import prepare
from meta_magic.replaying.rates import Rates, estimate_seconds, measure_rates
from tests.unit.materializing.trainable import convolutions

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


def test_a_forward_may_be_needed_by_what_is_drawn_after_it():
    class Drawing(nn.Linear):
        def forward(self, x):
            return torch.poisson(super().forward(x).abs())

    with record():
        Drawing(2, 3)(torch.ones(1, 2))
        made = nn.Linear(2, 3)
    forecast = prepare(made).forecast
    assert forecast.uses == (("forward", 1),)
    assert forecast.needed_by == ()
    assert str(forecast).endswith("for random numbers that are drawn after it")


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


def test_a_recurrent_layer_is_counted_as_its_products():
    with record():
        model = nn.LSTM(8, 16)
        loss = model(torch.ones(5, 3, 8))[0].sum()
        loss.backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    # Forward: 5 steps of 3 sequences, two weights of 4 * 16 rows; backward twice that.
    weights = 4 * 16 * (8 + 16)
    assert prepare(model).forecast.flops == 3 * 2 * 5 * 3 * weights


def test_to_forecast_is_no_part_of_a_recording():
    prepared = prepare(record_uses())
    measure_rates.cache_clear()
    with record() as trace:
        assert prepared.forecast.n_operators
    assert len(trace.ops) == 0


def test_what_a_device_does_is_measured_once():
    rates = measure_rates(CPU)
    assert all(rate > 0 for rate in rates)
    assert measure_rates(CPU) is rates
