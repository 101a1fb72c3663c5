"""The devices that a cell names."""

import pytest
import torch
from torch import nn

from meta_magic import materialize, record, replay
from meta_magic.materializing import materialize as materializing
from meta_magic.view.choices import render_materialize_report
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


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_other_fills_go_by_the_named_devices_too(init):
    made, _ = record_one(lambda: planned(device="cuda"))
    assert "there is no cuda:0 here" in materialize(made, init=init).notes[0]


def test_a_checkpoint_goes_by_the_named_devices_too():
    made, _ = record_one(lambda: nn.Linear(3, 2).to("cuda:0"))
    report = materialize(made, init=nn.Linear(3, 2).state_dict())
    assert "there is no cuda:0 here" in report.notes[0]
    assert report.names("checkpoint") == ("weight", "bias")
