"""Data that comes into a cell: files, arrays, tokenizers."""

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, materialize, record
from tests.unit.eager import assert_bit_equal
from tests.unit.recording.intercept.data_of_cells import describe, line_in, notes_of

safetensors = pytest.importorskip("safetensors")
from safetensors import torch as safetensors_torch  # noqa: E402


def save(state, folder):
    torch.save(state, folder / "state.pt")
    safetensors_torch.save_file(state, folder / "state.safetensors")


def open_all(path):
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def load_under_the_cpu(path):
    with torch.device("cpu"):
        return torch.load(path)


LOADERS = {
    "torch.load": ("state.pt", lambda p: torch.load(p, map_location="cpu")),
    "mapped": ("state.pt", lambda p: torch.load(p, map_location="cpu", mmap=True)),
    "not only weights": (
        "state.pt",
        lambda p: torch.load(p, "cpu", weights_only=False),
    ),
    "with torch.device": ("state.pt", load_under_the_cpu),
    "load_file": ("state.safetensors", safetensors_torch.load_file),
    "safe_open": ("state.safetensors", open_all),
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_loaded_onto_the_cpu_fills_a_module_of_the_cell(name, tmp_path):
    state = nn.Linear(4, 3).state_dict()
    save(state, tmp_path)
    file, load = LOADERS[name]
    with record() as trace:
        model = nn.Linear(4, 3)
        model.load_state_dict(load(tmp_path / file))
        met = model.weight.sum().item()
    assert met == state["weight"].sum().item()
    assert notes_of(trace).keys() == {"evaluated"}
    assert not [call for call in trace.ops if "set_" in call.op]  # prints all bytes
    materialize(model)
    assert torch.equal(model.bias, state["bias"])


def test_a_slice_of_a_file_is_on_meta_and_has_values(tmp_path):
    save({"weight": torch.arange(6.0)}, tmp_path)
    with (
        record(),
        safetensors.safe_open(tmp_path / "state.safetensors", framework="pt") as file,
    ):
        met = file.get_slice("weight")[2:4]
        assert met.is_meta
        assert met.tolist() == [2, 3]


@pytest.mark.parametrize("where", [None, "cpu", "cuda:1", {"cpu": "cuda:1"}])
def test_a_module_of_a_file_is_trained_and_materialized(where, tmp_path):
    def train(model):
        x = torch.ones(2, 4, device=model[0].weight.device)
        optimizer = torch.optim.Adam(model.parameters())
        model(x).sum().backward()
        optimizer.step()
        return model

    first = nn.Linear(4, 4)
    torch.save(nn.Sequential(first, first, nn.BatchNorm1d(4)), tmp_path / "model.pt")
    wanted = train(torch.load(tmp_path / "model.pt", weights_only=False))
    with record():
        model = train(torch.load(tmp_path / "model.pt", where, weights_only=False))
        place = {"None": "meta", "cpu": "cpu"}.get(str(where), "cuda:1")
        assert str(model[2].running_mean.device) == place
    materialize(model, "cpu")
    assert model[0] is model[1]
    assert_bit_equal(model, wanted)


def test_tensors_of_a_file_that_share_memory_do_so_on_meta(tmp_path):
    whole = torch.arange(6.0)
    torch.save([whole, whole[2:4]], tmp_path / "views.pt")
    with record():
        whole, part = torch.load(tmp_path / "views.pt")
        part.zero_()
        assert whole.tolist() == [0, 1, 0, 0, 4, 5]


def test_a_file_that_does_not_fit_is_loaded_without_data_and_noted(
    tmp_path, monkeypatch
):
    class Memory:
        available = 100

    save({"weight": torch.ones(1000)}, tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    with record() as trace:
        loaded = torch.load(tmp_path / "state.pt")
    assert loaded["weight"].is_meta
    note = notes_of(trace)["load"]
    line = line_in(test_a_file_that_does_not_fit_is_loaded_without_data_and_noted, 9)
    assert (note.line, "init= of" in note.text) == (line, True)


def test_a_value_of_a_file_on_meta_is_refused_in_words(tmp_path):
    save({"weight": torch.ones(3)}, tmp_path)
    with pytest.raises(MissingValueError, match="came from outside"), record():
        torch.load(tmp_path / "state.pt", "meta")["weight"].sum().item()


@pytest.mark.parametrize(
    "value", [{"epoch": 3}, {"where": "meta", "weight": torch.ones(2)}]
)
def test_torch_load_that_loses_nothing_is_not_noted(value, tmp_path):
    torch.save(value, tmp_path / "x.pt")
    with record() as trace:
        torch.load(tmp_path / "x.pt", map_location=value.get("where"))
    assert trace.notes == ()


def test_torch_save_of_a_module_on_meta_is_noted(tmp_path):
    with record() as trace:
        model = nn.Linear(4, 3)
        torch.save({"epoch": 1, "model": model.state_dict()}, tmp_path / "a.pt")
        torch.save(model, tmp_path / "b.pt")
        torch.save({"epoch": 1}, tmp_path / "c.pt")
    first = line_in(test_torch_save_of_a_module_on_meta_is_noted, 3)
    lines = [note.line for note in trace.notes if note.kind == "save"]
    assert lines == [first, first + 1]


def test_a_state_on_meta_into_a_real_module_is_noted():
    real = nn.Linear(4, 3)
    text = "would change your real `real.weight`"
    with pytest.raises(RuntimeError, match=text), record() as trace:
        real.load_state_dict(nn.Linear(4, 3).state_dict())
    assert "into a real module" in notes_of(trace)["load"].text


ARRAYS = {
    "from_numpy": lambda: torch.from_numpy(np.arange(6.0).reshape(2, 3).T),
    "frombuffer": lambda: torch.frombuffer(bytearray(range(8)), dtype=torch.uint8),
    "from_dlpack": lambda: torch.from_dlpack(np.arange(4)),
    "as_tensor": lambda: torch.as_tensor(np.arange(4)),
    "tensor": lambda: torch.tensor(np.arange(4)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_on_meta_and_has_values(name):
    wanted = ARRAYS[name]()
    with record() as trace:
        met = ARRAYS[name]()
        assert met.is_meta
        assert met.tolist() == wanted.tolist()
        with torch.device("cpu"):
            assert not ARRAYS[name]().is_meta
    assert describe(met) == describe(wanted)
    assert notes_of(trace).keys() == {"evaluated"}


@pytest.mark.parametrize("make", ["from_numpy", "from_dlpack", "as_tensor"])
def test_an_array_is_where_the_code_names_no_device_in_every_cell(make):
    placements = []
    for _ in range(2):
        with record(as_device="cuda") as trace:
            getattr(torch, make)(np.arange(3.0))
            torch.zeros(1, device="cpu")  # from now on placements are looked up
        placements.append(trace.ops[0].outputs[0].place)
    assert placements == [None, None]
