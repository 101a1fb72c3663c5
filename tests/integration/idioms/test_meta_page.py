"""What pages on the meta device say, right or wrong, by plain torch and recorded.

docs.pytorch.org/docs/stable/meta.html, interviewbite.in/meta-device and
runebook.dev/en/docs/pytorch/meta. What plain torch refuses has a value in a recording.
"""

import io

import pytest
import torch
from torch import nn
from torch._subclasses.meta_utils import MetaConverter

from meta_magic import MissingValueError, materialize, meta_like, record
from tests.integration.idioms.side_by_side import run, run_both

CANNOT_COPY = "NotImplementedError", "Cannot copy out of meta tensor"
NO_ITEM = "RuntimeError", "Tensor.item() cannot be called on meta tensors"
REAL = torch.arange(6.0).reshape(2, 3).t()


def ones(*shape):
    return torch.ones(shape, device="meta")


def make_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def make_under_the_device():
    with torch.device("meta"):
        x, layer = torch.randn(30, 30), nn.Linear(20, 30)
    return str(x.device), x.shape, str(layer), layer.weight.is_meta


def describe(tensor):
    return str(tensor.device), tuple(tensor.shape)


def convert():
    like = MetaConverter()(REAL)
    return like.is_meta, like.shape, like.stride(), (like @ ones(2, 4)).shape


def validate(*shape):
    try:
        make_model().to("meta")(torch.randn(shape, device="meta"))
    except RuntimeError:
        return False
    return True


LINEAR = "Linear(in_features=20, out_features=30, bias=True)"
SAME = {
    "the device context": (
        make_under_the_device,
        ("meta", (30, 30), LINEAR, True),
    ),
    "empty_like": (
        lambda: describe(torch.empty_like(ones(5), device="cpu")),
        ("cpu", (5,)),
    ),
    "to_empty": (
        lambda: describe(nn.Linear(2, 3, device="meta").to_empty(device="cpu").weight),
        ("cpu", (3, 2)),
    ),
    # interviewbite and runebook say that it raises.
    "x + y": (lambda: (ones(2, 3) + ones(3)).shape, (2, 3)),
    # interviewbite says 0.
    "a storage": (lambda: ones(10, 10).untyped_storage().nbytes(), 400),
    "is_meta": (
        lambda: (ones(2).is_meta, ones(2).device == torch.device("meta")),
        (True, True),
    ),
    'to("meta")': (
        lambda: [describe(p) for p in nn.Linear(9, 5).to("meta").parameters()],
        [("meta", (5, 9)), ("meta", (5,))],
    ),
    "the meta converter": (convert, (True, (3, 2), (1, 3), (3, 4))),
    "a shape validation": (lambda: (validate(3, 4), validate(3, 5)), (True, False)),
    "an assertion of sizes": (
        lambda: torch._assert(len(ones(2)) == 2, ""),
        None,
    ),
}
VALUES = {
    "item": (lambda: ones(5).sum().item(), *NO_ITEM, 5),
    "numpy": (lambda: ones(2).numpy().tolist(), "TypeError", "", [1, 1]),
    "nonzero": (lambda: ones(2, 2).nonzero().shape, "NotImplementedError", "", (4, 2)),
    'to("cpu")': (lambda: ones(5).to("cpu").tolist(), *CANNOT_COPY, [1] * 5),
    "cpu": (lambda: ones(5).cpu().tolist(), *CANNOT_COPY, [1] * 5),
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_same_in_a_recording(name):
    program, wanted = SAME[name]
    plain, recorded, _ = run_both(program)
    assert (plain.error, plain.returned) == (None, wanted)
    assert (recorded.error, recorded.returned) == (None, wanted)


@pytest.mark.parametrize("name", VALUES)
def test_what_plain_torch_refuses_has_a_value_in_a_recording(name):
    program, kind, text, value = VALUES[name]
    plain, recorded, _ = run_both(program)
    assert (plain.refusal[0], text in plain.refusal[1]) == (kind, True)
    assert recorded.returned == value


NOTES = {
    "to_empty": (SAME["to_empty"][0], "would be uninitialized"),
    "a shape validation": (SAME["a shape validation"][0], "failed on meta"),
    "nonzero": (VALUES["nonzero"][0], "what follows depends on data"),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_note_says_what_is_lost(name):
    program, text = NOTES[name]
    _, _, trace = run_both(program)
    assert any(text in note.text for note in trace.notes)


def test_a_memory_estimate_is_the_sum_of_the_bytes_that_the_trace_has():
    def program():
        layer = nn.TransformerEncoderLayer(512, 8, device="meta")
        return layer, sum(p.numel() * p.element_size() for p in layer.parameters())

    plain, recorded, trace = run_both(program)
    assert plain.returned[1] == recorded.returned[1]
    assert sum(root.parameter_nbytes for root in trace.modules) == plain.returned[1]


@pytest.mark.parametrize("names_a_device", [False, True])
def test_a_real_tensor_moved_to_meta_is_there_and_keeps_its_values(names_a_device):
    real = torch.arange(6.0)
    with record():
        if names_a_device:  # anywhere in the cell, and placements are known
            torch.ones(2, device="cpu")
        x = real.to("meta")
        assert (str(x.device), x.is_meta, x.sum().item()) == ("meta", True, 15)
    assert not real.is_meta


def test_the_likeness_of_a_real_tensor_has_its_strides():
    assert meta_like(REAL).stride() == (1, 3)


def load_into_meta(state, *, assign):
    with torch.device("meta"):
        model = make_model()
    model.load_state_dict(state, assign=assign)
    return model


def test_weights_are_loaded_into_a_model_on_meta_by_assigning_them():
    """Runebook: a state dict is said to have no place to go."""
    state = run(make_model).returned.state_dict()
    plain, recorded, _ = run_both(
        lambda: load_into_meta(state, assign=True)(torch.ones(3, 4)).tolist()
    )
    assert plain.returned == recorded.returned


def test_weights_copied_into_a_model_on_meta_are_lost_but_in_a_recording():
    state = run(make_model).returned.state_dict()
    with pytest.warns(UserWarning, match="which is a no-op"):
        plain = load_into_meta(state, assign=False)
    with record():
        model = load_into_meta(state, assign=False)
    assert plain[0].weight.is_meta
    materialize(model)
    assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.parametrize(
    ("is_true", "error"),
    [
        (lambda: ones(2, 3).shape[1] == 4, "more than six"),
        (lambda: ones(2, 3).sum() > 6, NO_ITEM[1]),
    ],
)
def test_an_assertion_that_fails_for_real_fails_in_a_recording(is_true, error):
    plain, recorded, _ = run_both(lambda: torch._assert(is_true(), "more than six"))
    assert plain.refusal[1] == error
    assert recorded.refusal == ("AssertionError", "more than six")


def test_a_shape_that_does_not_fit_is_refused_in_the_words_of_the_cpu():
    def program(device):
        return make_model().to(device)(torch.randn(3, 5, device=device))

    on_cpu = run(lambda: program("cpu"))
    plain, recorded, _ = run_both(lambda: program("meta"))
    assert str(recorded.error) == str(on_cpu.error) != str(plain.error)


@pytest.fixture
def saved(tmp_path):
    """A file with a tensor of two elements."""
    path = tmp_path / "foo.pt"
    torch.save(torch.tensor([3.0, 4.0]), path)
    return path


def test_what_was_loaded_onto_meta_has_no_value_and_the_error_says_why(saved):
    def program():
        loaded = torch.load(saved, map_location="meta")
        assert (loaded.device.type, loaded.shape) == ("meta", (2,))
        return loaded[0].item()

    plain, recorded, _ = run_both(program)
    assert plain.refusal == NO_ITEM
    assert isinstance(recorded.error, MissingValueError)
    assert "loaded from a file onto meta" in str(recorded.error)


def test_a_file_loaded_without_map_location_keeps_its_values_in_a_recording(saved):
    def program():
        loaded = torch.load(saved)
        return loaded.is_meta, loaded.sum().item()

    plain, recorded, _ = run_both(program)
    assert (plain.returned, recorded.returned) == ((False, 7.0), (True, 7.0))


def test_a_copy_to_the_cpu_is_on_meta_until_it_is_made_real():
    with record():
        assert ones(5).to("cpu").is_meta


def test_to_empty_and_reset_parameters_are_materialized_as_the_cpu_has_it():
    def program():
        layer = nn.Linear(2, 3, device="meta").to_empty(device="cpu")
        layer.reset_parameters()
        return layer

    plain, recorded, _ = run_both(program)
    materialize(recorded.returned)
    assert torch.equal(plain.returned.weight, recorded.returned.weight)
    assert torch.equal(plain.returned.bias, recorded.returned.bias)


def test_a_state_dict_is_saved_without_data_and_in_a_recording_with_it():
    def program():
        with torch.device("meta"):
            layer = nn.Linear(2, 3)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        return file

    plain, recorded, _ = run_both(program)
    assert torch.load(plain.returned)["weight"].is_meta
    wanted = run(lambda: nn.Linear(2, 3)).returned.weight
    assert torch.equal(torch.load(recorded.returned)["weight"], wanted)
