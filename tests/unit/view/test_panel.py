"""The Python side of the Materialize panel: no browser, no kernel."""

import gc
import json
import re
import sys
import threading
import weakref
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.view import choices
from meta_magic.view.choices import TimeLeft
from meta_magic.view.widgets import close_reports, show_report
from tests.unit.view.panels import SCRIPT, TIMEOUT, record_model, run, send


@pytest.fixture(autouse=True)
def no_panel_is_left():
    yield
    close_reports()


def on_start(panel, action):
    """Do something when the panel says that it works, before it does."""
    panel.observe(lambda change: change.new == "running" and action(), "state")


def build_eagerly():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


class Gate(nn.Module):
    """Stops in its initialization until it is let through."""

    def __init__(self, error=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.reached, self.opened = threading.Event(), threading.Event()
        self.error = error

    def reset_parameters(self):
        self.reached.set()
        assert self.opened.wait(TIMEOUT)
        if self.error is not None:
            raise self.error
        nn.init.ones_(self.weight)


def test_a_click_makes_the_module_what_an_eager_run_makes():
    model, panel = record_model()
    weight = model[0].weight
    run(panel)
    assert panel.state == "done"
    assert panel.progress == 1.0
    assert model[0].weight is weight
    eager = build_eagerly().state_dict()
    assert all(torch.equal(v, eager[k]) for k, v in model.state_dict().items())


def test_the_end_says_what_is_real_now():
    model, panel = record_model()
    run(panel)
    assert panel.message == (
        "`model` is now real, on cpu: call `model(…)` in the next cell"
    )
    assert "Sequential on cpu · 4 tensors, 232 bytes" in panel.report
    assert panel.is_real
    assert panel.needed == "nothing: all of it is real already"
    assert not model[0].weight.is_meta


def test_cancel_leaves_the_module_on_meta():
    model, panel = record_model()
    on_start(panel, lambda: send(panel, "cancel"))
    run(panel)
    assert panel.state == "cancelled"
    assert panel.message == "cancelled: the module is as it was"
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert panel.report == ""


def test_a_module_that_is_gone_is_said_to_be():
    model, panel = record_model()
    del model
    gc.collect()
    run(panel)
    assert panel.state == "failed"
    assert panel.message == (
        "the module is gone: it was deleted or built anew; run the cell again for a "
        "new Materialize button"
    )


def test_the_panel_keeps_no_module_alive():
    model, panel = record_model()
    run(panel)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_click_while_another_panel_works_is_refused():
    gate, panel = record_model(Gate)
    _model, other = record_model()
    send(panel, "start", init="reset")
    assert gate.reached.wait(TIMEOUT)
    run(other)
    assert other.state == "failed"
    assert other.message == (
        "another module is being materialized: wait until that is done"
    )
    gate.opened.set()
    panel.wait(TIMEOUT)
    assert panel.state == "done"


def test_a_second_click_and_a_choice_change_nothing_while_it_works():
    gate, panel = record_model(Gate)
    send(panel, "start", init="reset")
    assert gate.reached.wait(TIMEOUT)
    thread = panel._thread
    send(panel, "start", init="empty")
    send(panel, "choose", init="empty")
    assert panel._thread is thread
    assert (panel.state, panel.choice["init"]) == ("running", "reset")
    assert panel.message == "materializing model: Gate on cpu"
    gate.opened.set()
    panel.wait(TIMEOUT)
    assert panel.state == "done"
    assert gate.weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ValueError("no luck"),
            "cannot reset: reset_parameters of a Gate raised ValueError: no luck",
        ),
        (SystemExit("no luck"), "SystemExit: no luck"),
    ],
)
def test_an_error_of_the_modules_own_code_is_shown(error, message):
    gate, panel = record_model(lambda: Gate(error))
    gate.opened.set()
    run(panel, init="reset")
    assert panel.state == "failed"
    assert panel.message == message
    assert gate.weight.is_meta


def test_without_anything_on_meta_there_is_no_panel():
    with record() as trace:
        torch.ones(3)
    assert show_report(trace).roots == []
    with record() as trace:
        nn.Linear(2, 3)
    gc.collect()
    assert show_report(trace).roots == []


def test_what_crosses_the_wire_is_json():
    model, panel = record_model(lambda: nn.ModuleDict({SCRIPT: nn.Linear(2, 2)}))
    run(panel)
    state = panel.get_state()
    assert json.loads(json.dumps({**state, "payload": ""}))["roots"] == [
        "model: ModuleDict",
        "all that your variables hold",
    ]
    assert model is not None


def test_closing_cancels_what_runs():
    model, panel = record_model()
    on_start(panel, panel.close)
    run(panel)
    assert model[0].weight.is_meta


def test_without_a_kernel_a_line_of_text_is_left():
    _model, panel = record_model()
    assert repr(panel) == "Materialize: run the cell again"


def test_the_script_sets_html_in_one_place_and_asks_for_nothing_from_elsewhere():
    _model, panel = record_model()
    # What was materialized: Python made it, and escaped each name.
    assert panel._esm.count("innerHTML") == 1
    script = panel._esm.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    code = re.sub(r"/\*.*?\*/", "", script, flags=re.DOTALL)
    asking = r"https?:|^import |eval\(|outerHTML|insertAdjacent|fetch\(|XMLHttp"
    assert not re.search(asking, code, re.MULTILINE)
    assert not re.search(r"https?:|@import|url\(", panel._css)


def test_a_choice_says_what_it_needs():
    # 4 * 8 + 8 + 8 * 2 + 2 = 58 parameters.
    _model, panel = record_model()
    send(panel, "choose", init="empty")
    assert panel.needed == "232 bytes"
    send(panel, "choose", init="empty", dtype="bfloat16")
    assert panel.needed == "116 bytes"
    assert panel.is_enough
    assert re.fullmatch(r"[\d.,]+ [KMGT]iB", panel.free)


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


def test_the_devices_that_the_cell_names_can_be_chosen():
    model, panel = record_model(lambda: nn.Linear(4, 8).to("cuda:1"))
    assert panel.devices == ["as planned", "cpu"]
    assert panel.choice["device"] == "as planned"
    run(panel, device="as planned")
    assert panel.state == "done"
    assert panel.message.startswith("`model` is now real, on cpu")
    assert "there is no cuda:1 here" in panel.report
    assert model.weight.device == torch.device("cpu")


def test_a_block_below_a_root_is_chosen_by_its_path():
    model, panel = record_model()
    send(panel, "choose", path="1", init="empty")
    assert (panel.needed, panel.choice["path"]) == ("72 bytes", "1")
    run(panel, path="1")
    assert panel.message.startswith("`model[1]` is now real, on cpu")
    assert [p.is_meta for p in model.parameters()] == [True, True, False, False]


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


class Unreadable(torch.Tensor):
    """Cannot be asked where it is while a module is as ``while_on_meta`` says."""

    @property
    def is_meta(self):
        if self.module.weight.is_meta is self.while_on_meta:
            raise ValueError("no luck")
        return False


def make_unreadable(module, *, while_on_meta):
    """Return a tensor that cannot be read while a module is on meta, or is real."""
    tensor = torch.ones(2).as_subclass(Unreadable)
    tensor.module, tensor.while_on_meta = module, while_on_meta
    return tensor


def test_a_choice_that_cannot_be_looked_into_is_answered():
    model, panel = record_model(lambda: nn.Linear(2, 3))
    model.odd, answers = make_unreadable(model, while_on_meta=True), []
    panel.send = lambda content, *_: answers.append(content)
    send(panel, "choose")
    assert panel.message == "ValueError: no luck"
    assert answers == [{"kind": "answer"}]


@pytest.fixture
def clock(monkeypatch):
    """A time that a test sets."""
    now = [100.0]
    monkeypatch.setattr(choices.time, "monotonic", lambda: now[0])
    return now


def test_the_time_that_is_left_is_that_of_the_rest(clock):
    left = TimeLeft()
    clock[0] += 10
    assert left.describe(0.25) == "about 30 s left"
