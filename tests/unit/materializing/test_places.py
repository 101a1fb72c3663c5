"""The devices that a cell names."""

from functools import partial

import pytest
import torch
from torch import nn

from meta_magic import materialize, record, replay
from meta_magic.materializing import materialize as materializing
from meta_magic.view.materialize_html import render_materialize_report
from tests.unit.eager import assert_bit_equal


def planned(*, device):
    """Two layers, the first of which is moved to a device."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[0].to(device)
    return model


def record_one(build, *, seed=0):
    torch.manual_seed(seed)
    with record() as trace:
        made = build()
    return made, trace


def test_what_was_drawn_on_the_cpu_and_moved_is_equal_to_the_bit():
    torch.manual_seed(0)
    real = planned(device="cpu")
    made, _ = record_one(lambda: planned(device="cuda"))
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.drawn_otherwise == ()


def test_what_was_trained_on_a_planned_device_is_equal_to_the_bit():
    def train(device):
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss = model(torch.randn(4, 3).to(device)).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    torch.manual_seed(0)
    real = train("cpu")
    made, _ = record_one(lambda: train("cuda"))
    materialize(made)
    assert_bit_equal(made, real)


def test_a_device_that_is_not_there_is_named_in_a_note():
    made, _ = record_one(lambda: planned(device="cuda:1"))
    report = materialize(made)
    (note,) = report.notes
    assert note.startswith("there is no cuda:1 here")
    assert "2 (0.weight, 0.bias)" in note
    assert report.places == "cpu"


def test_no_device_is_missed_where_one_is_given():
    made, _ = record_one(lambda: planned(device="cuda"))
    assert materialize(made, "cpu").notes == ()


def test_each_tensor_goes_to_the_device_that_the_cell_named(monkeypatch):
    made, _ = record_one(lambda: planned(device="cuda"))
    monkeypatch.setattr(materializing, "list_devices", lambda: ["cpu", "cuda:0"])
    prepared = materializing.prepare(made)
    places = {target.name: str(target.device) for target in prepared.targets}
    assert places == {
        "0.weight": "cuda:0",
        "0.bias": "cuda:0",
        "1.weight": "cpu",
        "1.bias": "cpu",
        "1.running_mean": "cpu",
        "1.running_var": "cpu",
        "1.num_batches_tracked": "cpu",
    }


def test_a_given_device_overrides_those_that_the_cell_named(monkeypatch):
    made, _ = record_one(lambda: planned(device="cuda"))
    monkeypatch.setattr(materializing, "list_devices", lambda: ["cpu", "cuda:0"])
    targets = materializing.prepare(made, "cpu").targets
    assert {target.device for target in targets} == {torch.device("cpu")}


def test_what_an_accelerator_is_to_draw_is_in_red():
    made, _ = record_one(lambda: nn.Linear(3, 2, device="cuda"))
    report = materialize(made)
    assert report.drawn_otherwise == ("weight", "bias")
    assert "DRAWN OTHERWISE: 2 (weight, bias)" in str(report)
    html = render_materialize_report(report)
    assert '<p class="mm-danger">DRAWN OTHERWISE: 2 tensors hold random' in html
    assert '<tr class="mm-danger"><th scope="row">weight' in html


def test_what_rests_on_it_is_in_red_too_and_nothing_else():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            drawn = torch.randn(3, device="cuda")
            self.register_buffer("moved", drawn.cpu() * 2)
            self.register_buffer("filled", drawn.clone().zero_())
            self.register_buffer("plain", torch.randn(3))

    made, _ = record_one(Model)
    assert materialize(made).drawn_otherwise == ("moved",)
    assert torch.equal(made.filled, torch.zeros(3))


def test_what_a_later_cell_makes_of_it_is_in_red_too():
    drawn, _ = record_one(lambda: torch.randn(3, device="cuda"))
    with record():
        made = nn.Module()
        made.register_buffer("scaled", drawn * 2)
    assert materialize(made).drawn_otherwise == ("scaled",)


@pytest.mark.parametrize("cache", [True, False])
def test_what_an_accelerator_draws_leaves_the_generator_of_the_cpu(cache):
    def build(device):
        layers = [nn.Linear(3, 3, device=device), nn.Dropout(0.5), nn.Linear(3, 3)]
        for _ in range(3):
            layers[1](torch.ones(4, device=device))
        return nn.Sequential(*layers), torch.rand(3)

    torch.manual_seed(0)
    wanted = nn.Linear(3, 3), torch.rand(3)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with record(cache=cache) as trace:
        model, _ = build("cuda")
    materialize(model)
    assert_bit_equal(model[2], wanted[0])
    assert torch.equal(replay(trace, trace.ops[-1].outputs)[0], wanted[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_two_equal_seeds_draw_equally_on_two_recordings():
    build = partial(nn.Linear, 3, 2, device="cuda")
    first, second = (record_one(build, seed=3)[0] for _ in range(2))
    materialize(first)
    materialize(second)
    assert_bit_equal(first, second)


def test_a_cached_recording_draws_as_one_without_a_cache():
    def build():
        torch.manual_seed(0)
        h = torch.ones(20, device="cuda")
        for _ in range(3):
            h = nn.functional.dropout(h, 0.5)
        return h, torch.rand(3)

    programs = []
    for cache in (True, True, False):
        with record(cache=cache) as trace:
            build()
        programs.append(trace.program)
    assert programs[0].randomness == programs[1].randomness == programs[2].randomness


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_other_fills_go_by_the_named_devices_too(init):
    made, _ = record_one(lambda: planned(device="cuda"))
    assert "there is no cuda:0 here" in materialize(made, init=init).notes[0]


def test_a_checkpoint_goes_by_the_named_devices_too():
    made, _ = record_one(lambda: nn.Linear(3, 2).to("cuda:0"))
    report = materialize(made, init=nn.Linear(3, 2).state_dict())
    assert "there is no cuda:0 here" in report.notes[0]
    assert report.names("checkpoint") == ("weight", "bias")


def test_steps_of_an_optimizer_on_the_cpu_are_seen_to_be_counted():
    with record(as_device="cuda"):
        model = nn.Linear(3, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 3).cuda()).sum().backward()
            optimizer.step()
    assert not [note for note in materialize(model, "cpu").notes if "unseen" in note]
