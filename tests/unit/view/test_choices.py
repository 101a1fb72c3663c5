"""What is chosen in the Materialize panel, and what it says of that."""

import re
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.view.widgets import close_reports
from tests.unit.view.panels import record_model, run, send


@pytest.fixture(autouse=True)
def no_panel_is_left():
    yield
    close_reports()


def test_a_choice_says_what_it_needs():
    # 4 * 8 + 8 + 8 * 2 + 2 = 58 parameters.
    _model, panel = record_model()
    send(panel, "choose", init="empty")
    assert panel.needed == "232 bytes"
    send(panel, "choose", init="empty", dtype="bfloat16")
    assert panel.needed == "116 bytes"
    assert panel.is_enough
    assert re.fullmatch(r"[\d.,]+ [KMGT]iB", panel.free)


def test_more_bytes_than_there_are_do_not_fit():
    model, panel = record_model(lambda: nn.Linear(2**20, 2**24, bias=False))
    send(panel, "choose", init="empty")
    assert (panel.needed, panel.is_enough) == ("64.0 TiB", False)
    run(panel, init="empty")
    assert panel.state == "failed"
    assert "it takes 64.0 TiB at its peak" in panel.message
    assert model.weight.is_meta


def test_what_does_not_fit_is_said_with_what_would():
    free = psutil.virtual_memory().available
    n_rows = free // 4 // 1024 * 5 // 4  # 1.25 times what is there, in float32
    model, panel = record_model(
        lambda: nn.Sequential(
            nn.Linear(1024, 8), nn.ModuleList([nn.Linear(1024, n_rows, bias=False)])
        )
    )
    send(panel, "choose", init="empty")
    assert not panel.is_enough
    assert re.fullmatch(
        r"bfloat16 \([\d.]+ GiB\) or model\[0\] \(32.0 KiB\)", panel.fitting
    )
    send(panel, "choose", init="empty", dtype="bfloat16")
    assert (panel.is_enough, panel.fitting) == (True, "")
    assert model[0].weight.is_meta


def test_what_is_replayed_is_said_with_what_it_is_for():
    def build():
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        model(torch.ones(3, 4))
        return model

    model, panel = record_model(build)
    send(panel, "choose")
    # 2 * 3 * 4 * 8 FLOPs.
    assert panel.forecast == (
        "replays 1 forward (192 FLOPs, less than a second), for 3 buffers of "
        "BatchNorm1d (1.running_mean, 1.running_var, 1.num_batches_tracked)"
    )
    send(panel, "choose", values="as constructed")
    assert re.fullmatch(r"\d+ operators, less than a second", panel.forecast)
    run(panel, values="as constructed")
    assert panel.forecast == ""
    assert model[1].num_batches_tracked == 0


def test_where_nothing_is_replayed_the_values_are_no_choice():
    model, panel = record_model()
    run(panel, init="empty", values="as constructed")
    assert panel.state == "done"
    assert not model[0].weight.is_meta


def test_a_dtype_is_what_the_module_is_cast_to():
    model, panel = record_model()
    run(panel, dtype="bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_checkpoint_wants_a_path(tmp_path):
    model, panel = record_model()
    send(panel, "choose", init="checkpoint")
    assert panel.message == (
        "type the path of a checkpoint: a file, an index or a directory"
    )
    send(panel, "choose", init="checkpoint", checkpoint="nowhere.safetensors")
    assert panel.message.startswith("there is no checkpoint 'nowhere.safetensors'")
    assert panel.state == "idle"
    saved = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).state_dict()
    torch.save(saved, tmp_path / "saved.pt")
    run(panel, init="checkpoint", checkpoint=f" {tmp_path / 'saved.pt'}")
    assert panel.state == "done"
    assert all(torch.equal(v, saved[k]) for k, v in model.state_dict().items())


def test_a_checkpoint_may_be_called_like_another_choice():
    _model, panel = record_model()
    run(panel, init="checkpoint", checkpoint="empty")
    assert panel.state == "failed"
    assert panel.message.startswith("there is no checkpoint 'empty'")


def test_the_devices_that_the_cell_names_can_be_chosen():
    model, panel = record_model(lambda: nn.Linear(4, 8).to("cuda:1"))
    assert panel.devices == ["as planned", "cpu"]
    assert panel.choice["device"] == "as planned"
    run(panel, device="as planned")
    assert panel.state == "done"
    assert panel.message.startswith("`model` is now real, on cpu")
    assert "there is no cuda:1 here" in panel.report
    assert model.weight.device == torch.device("cpu")


def test_where_the_cell_names_none_there_is_nothing_planned():
    _model, panel = record_model()
    assert panel.devices == ["cpu"]
    assert panel.choice["device"] == "cpu"


def test_a_block_below_a_root_is_chosen_by_its_path():
    model, panel = record_model()
    send(panel, "choose", path="1", init="empty")
    assert (panel.needed, panel.choice["path"]) == ("72 bytes", "1")
    run(panel, path="1")
    assert panel.message.startswith("`model[1]` is now real, on cpu")
    assert [p.is_meta for p in model.parameters()] == [True, True, False, False]


def test_a_block_that_is_gone_is_said_to_be():
    model, panel = record_model()
    model.pop(1)
    send(panel, "choose", path="1")
    assert panel.message.startswith("the module is gone")


def test_the_last_choice_is_all_that_variables_hold(monkeypatch):
    model, panel = record_model()
    with record():
        batch = torch.ones(2)
    main = {"model": model, "deep": {"batch": batch}}
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**main))
    run(panel, root=1)
    assert panel.message == "what your variables hold is now real, on cpu"
    assert batch.tolist() == [1, 1]
    assert not any(parameter.is_meta for parameter in model.parameters())
