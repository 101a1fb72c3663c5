"""The idioms of torch's own page on the meta device.

docs.pytorch.org/docs/stable/meta.html

Each runs as plain torch has it, and recorded. What is refused there has a value here.
"""

import io

import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, materialize, record
from tests.integration.idioms.side_by_side import run, run_both

CANNOT_COPY = "NotImplementedError", "Cannot copy out of meta tensor"
NO_ITEM = "RuntimeError", "Tensor.item() cannot be called on meta tensors"


@pytest.fixture
def saved(tmp_path):
    """A file with a tensor of two elements."""
    path = tmp_path / "foo.pt"
    torch.save(torch.tensor([3.0, 4.0]), path)
    return path


def test_an_object_is_loaded_onto_meta(saved):
    plain, recorded, _ = run_both(lambda: torch.load(saved, map_location="meta"))
    for loaded in (plain.returned, recorded.returned):
        assert (loaded.device.type, loaded.shape) == ("meta", (2,))


def test_what_was_loaded_onto_meta_has_no_value_and_the_error_says_why(saved):
    def program():
        return torch.load(saved, map_location="meta")[0].item()

    plain, recorded, _ = run_both(program)
    assert plain.refusal == NO_ITEM
    assert isinstance(recorded.error, MissingValueError)
    assert "loaded from a file onto meta" in str(recorded.error)


def test_a_file_loaded_without_map_location_keeps_its_values_in_a_recording(saved):
    def program():
        loaded = torch.load(saved)
        return loaded.is_meta, loaded.sum().item()

    plain, recorded, _ = run_both(program)
    assert plain.returned == (False, 7.0)
    assert recorded.returned == (True, 7.0)


def test_factories_and_modules_under_the_device_context_are_on_meta():
    def program():
        with torch.device("meta"):
            x, layer = torch.randn(30, 30), nn.Linear(20, 30)
        return str(x.device), x.shape, str(layer), layer.weight.is_meta

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned
    assert [call.op for call in trace.ops][:1] == ["aten.randn.default"]


def test_what_the_context_put_on_meta_has_the_values_of_the_cpu():
    def program(device):
        with torch.device(device):
            return nn.Linear(20, 30)(torch.ones(2, 20))

    wanted = run(lambda: program("cpu")).returned
    with record():
        values = run(lambda: program("meta")).returned.tolist()
    assert values == wanted.tolist()


@pytest.mark.parametrize("move", [lambda x: x.to("cpu"), lambda x: x.cpu()])
def test_to_cpu_raises_and_in_a_recording_is_a_copy_with_values(move):
    def program():
        return move(torch.ones(5, device="meta"))

    plain, recorded, _ = run_both(program)
    assert plain.refusal == CANNOT_COPY
    assert recorded.returned.is_meta  # until it is made real, it takes no memory
    with record():
        assert program().tolist() == [1, 1, 1, 1, 1]


def test_a_module_moved_to_the_cpu_raises_and_in_a_recording_materializes():
    def program():
        with torch.device("meta"):
            layer = nn.Linear(2, 3)
        return layer.to("cpu")

    plain, recorded, _ = run_both(program)
    assert plain.refusal == CANNOT_COPY
    assert "to_empty" in str(plain.error)
    materialize(recorded.returned)
    wanted = run(lambda: nn.Linear(2, 3)).returned
    assert torch.equal(recorded.returned.weight, wanted.weight)


def test_empty_like_gives_a_tensor_of_the_same_shape_on_the_cpu():
    def program():
        x = torch.empty_like(torch.ones(5, device="meta"), device="cpu")
        return str(x.device), x.shape

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned == ("cpu", (5,))


def test_to_empty_moves_a_module_and_a_note_says_what_it_holds():
    def program():
        layer = nn.Linear(2, 3, device="meta").to_empty(device="cpu")
        return str(layer.weight.device), layer.weight.shape

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == ("cpu", (3, 2))
    assert any("would be uninitialized" in n.text for n in trace.notes)


def test_to_empty_and_reset_parameters_are_materialized_as_the_cpu_has_it():
    def program():
        layer = nn.Linear(2, 3, device="meta").to_empty(device="cpu")
        layer.reset_parameters()
        return layer

    plain, recorded, _ = run_both(program)
    materialize(recorded.returned)
    assert torch.equal(plain.returned.weight, recorded.returned.weight)
    assert torch.equal(plain.returned.bias, recorded.returned.bias)


def test_nonzero_raises_and_in_a_recording_has_its_size():
    def program():
        with torch.device("meta"):
            return torch.tensor([1, 0, 2]).nonzero().shape

    plain, recorded, trace = run_both(program)
    assert plain.refusal[0] == "NotImplementedError"
    assert recorded.returned == (2, 1)
    assert any("what follows depends on data" in note.text for note in trace.notes)


def test_item_raises_and_in_a_recording_is_the_value():
    def program():
        return torch.ones(5, device="meta").sum().item()

    plain, recorded, _ = run_both(program)
    assert plain.refusal == NO_ITEM
    assert recorded.returned == 5


def test_a_state_dict_is_saved_without_data_and_in_a_recording_with_it():
    def program():
        with torch.device("meta"):
            layer = nn.Linear(2, 3)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        return file

    plain, recorded, _ = run_both(program)
    plain.returned.seek(0)
    recorded.returned.seek(0)
    assert torch.load(plain.returned)["weight"].is_meta
    wanted = run(lambda: nn.Linear(2, 3)).returned.weight
    assert torch.equal(torch.load(recorded.returned)["weight"], wanted)


def test_a_state_dict_saved_after_materializing_is_that_of_the_cpu(tmp_path):
    with record():
        layer = run(lambda: nn.Linear(2, 3)).returned
    materialize(layer)
    torch.save(layer.state_dict(), tmp_path / "real.pt")
    wanted = run(lambda: nn.Linear(2, 3)).returned.weight
    assert torch.equal(torch.load(tmp_path / "real.pt")["weight"], wanted)
