"""What pages on the meta device recommend and claim, right and wrong, as it runs.

interviewbite.in/meta-device and runebook.dev/en/docs/pytorch/meta.
"""

import pytest
import torch
from torch import nn
from torch._subclasses.meta_utils import MetaConverter

from meta_magic import materialize, meta_like, record
from tests.integration.idioms.side_by_side import run, run_both


def make_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_x_plus_y_does_work_on_meta():
    """Both pages say that it raises."""

    def program():
        x, y = torch.ones(2, 3, device="meta"), torch.ones(3, device="meta")
        return (x + y).shape

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == (2, 3)
    assert trace.ops[-1].op == "aten.add.Tensor"


def test_the_storage_of_a_meta_tensor_says_the_size_that_it_would_have():
    """interviewbite: ``x.storage().size()`` is said to be 0."""

    def program():
        return torch.randn(10, 10, device="meta").untyped_storage().nbytes()

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == 400
    assert trace.memory.peak_nbytes == 0  # on meta, which takes none


def test_weights_are_loaded_into_a_model_on_meta_by_assigning_them():
    """runebook: a state dict is said to have no place to go."""
    state = run(make_model).returned.state_dict()

    def program():
        with torch.device("meta"):
            model = make_model()
        model.load_state_dict(state, assign=True)
        return model(torch.ones(3, 4)).tolist()

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned


def test_weights_copied_into_a_model_on_meta_are_lost_but_in_a_recording():
    state = run(make_model).returned.state_dict()

    def program():
        with torch.device("meta"):
            model = make_model()
        model.load_state_dict(state)
        return model

    with pytest.warns(UserWarning, match="which is a no-op"):
        plain = run(program).returned
    with record():
        model = program()
    assert plain[0].weight.is_meta
    materialize(model)
    assert torch.equal(model[0].weight, state["0.weight"])


def test_numpy_of_a_meta_tensor_raises_and_in_a_recording_has_values():
    """interviewbite: "materialize first"."""

    def program():
        return torch.ones(2, device="meta").numpy().tolist()

    plain, recorded, _ = run_both(program)
    assert plain.refusal[0] == "TypeError"
    assert recorded.returned == [1, 1]


def test_is_meta_tells_the_truth_in_a_recording():
    def program():
        x = torch.ones(2, device="meta")
        return x.is_meta, x.device.type, x.device == torch.device("meta")

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned == (True, "meta", True)


@pytest.mark.parametrize("n_columns", [3, 4])
def test_an_assertion_of_sizes_holds_or_fails_as_for_real(n_columns):
    def program():
        x = torch.ones(2, 3, device="meta")
        torch._assert(x.shape[1] == n_columns, "columns")

    plain, recorded, trace = run_both(program)
    assert type(plain.error) is type(recorded.error)
    assert str(plain.error) == str(recorded.error)
    assert len(trace.ops) == 1


def test_an_assertion_of_values_raises_and_in_a_recording_is_evaluated():
    def program():
        torch._assert(torch.ones(2, 3, device="meta").sum() > 6, "more than six")

    plain, recorded, _ = run_both(program)
    assert plain.refusal == (
        "RuntimeError",
        "Tensor.item() cannot be called on meta tensors",
    )
    assert recorded.refusal == ("AssertionError", "more than six")


def test_a_module_is_moved_to_meta():
    """interviewbite: ``.to('meta')``; the real one was built first, in vain."""

    def program():
        model = nn.Linear(1000, 500).to("meta")
        return [(tuple(p.shape), str(p.device)) for p in model.parameters()]

    plain, recorded, _ = run_both(program)
    wanted = [((500, 1000), "meta"), ((500,), "meta")]
    assert plain.returned == recorded.returned == wanted


@pytest.mark.parametrize("names_a_device", [False, True])
def test_a_real_tensor_moved_to_meta_is_there_and_keeps_its_values(names_a_device):
    real = torch.arange(6.0)

    with record():
        if names_a_device:  # anywhere in the cell, and places are known
            torch.ones(2, device="cpu")
        x = real.to("meta")
        assert (str(x.device), x.is_meta, x.sum().item()) == ("meta", True, 15)
    plain = real.to("meta")
    assert (str(plain.device), plain.is_meta, real.is_meta) == ("meta", True, False)


def test_the_meta_converter_gives_the_likeness_of_a_real_tensor():
    real = torch.arange(6.0).reshape(2, 3).t()

    def program():
        like = MetaConverter()(real)
        return (
            like.is_meta,
            like.shape,
            like.stride(),
            (like @ torch.ones(2, 4, device="meta")).shape,
        )

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned == (True, (3, 2), (1, 3), (3, 4))
    assert meta_like(real).stride() == (1, 3)


def test_a_shape_validation_says_true_and_false_and_each_failure_is_noted():
    def validate(model, shape):
        try:
            model(torch.randn(shape, device="meta"))
        except RuntimeError:
            return False
        return True

    def program():
        model = make_model().to("meta")
        return validate(model, (3, 4)), validate(model, (3, 5))

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == (True, False)
    assert any("failed on meta" in note.text for note in trace.notes)


def test_a_shape_that_does_not_fit_is_refused_in_the_words_of_the_cpu():
    def program(device):
        return make_model().to(device)(torch.randn(3, 5, device=device))

    on_cpu = run(lambda: program("cpu"))
    plain, recorded, _ = run_both(lambda: program("meta"))
    assert str(recorded.error) == str(on_cpu.error)
    assert str(plain.error) != str(on_cpu.error)


def test_a_memory_estimate_is_the_sum_of_the_bytes_that_the_trace_has():
    def program():
        with torch.device("meta"):
            layer = nn.TransformerEncoderLayer(512, 8)
        return layer, sum(p.numel() * p.element_size() for p in layer.parameters())

    plain, recorded, trace = run_both(program)
    assert plain.returned[1] == recorded.returned[1]
    assert sum(root.parameter_nbytes for root in trace.modules) == plain.returned[1]
