"""``FakeTensorMode`` around and inside of a recording.

Fake tensors are where they were, so that they meet others of the mode.

docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html
"""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from meta_magic import record
from tests.integration.idioms.side_by_side import run_both


def make_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def describe(tensor):
    return type(tensor).__name__, str(tensor.device), tuple(tensor.shape)


def test_a_model_is_built_and_run_under_the_mode():
    def program():
        with FakeTensorMode():
            return describe(make_model()(torch.randn(3, 4)))

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == ("FakeTensor", "cpu", (3, 2))
    assert len(trace.ops) == 0
    assert "FakeTensor were not recorded" in trace.notes[0].text


def test_a_fake_tensor_of_a_real_one_meets_what_a_factory_makes():
    real = torch.ones(2, 3)

    def program():
        with FakeTensorMode() as mode:
            return describe(mode.from_tensor(real) @ torch.ones(3, 4))

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned == ("FakeTensor", "cpu", (2, 4))


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: torch.ones(2, 3), "cpu"),
        (lambda: torch.ones(2, 3, device="cpu"), "cpu"),
        (lambda: torch.ones(2, 3, device="cuda"), "meta"),  # torch here has none
    ],
)
def test_a_fake_tensor_of_a_recorded_one_is_where_that_would_be(make, place):
    with record():
        fake = FakeTensorMode().from_tensor(make())
    assert fake.device.type == place


def test_a_factory_under_the_mode_that_names_a_gpu_does_not_end_the_process():
    """On a torch without CUDA attention of fake CUDA tensors aborts, with gradients."""
    with record(), FakeTensorMode():
        x = torch.randn(1, 2, 8, 16, device="cuda", requires_grad=True)
        y = nn.functional.scaled_dot_product_attention(x, x, x)
        assert y.shape == (1, 2, 8, 16)


def test_a_real_model_is_copied_as_fake_and_called():
    model = make_model()

    def program():
        mode = FakeTensorMode()
        with FakeCopyMode(mode):
            fake = copy.deepcopy(model)
        with mode:
            return describe(fake(torch.ones(3, 4)))

    plain, recorded, _ = run_both(program)
    assert plain.returned == recorded.returned == ("FakeTensor", "cpu", (3, 2))


def test_a_step_of_training_under_the_mode():
    def program():
        with FakeTensorMode():
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            return describe(model[0].weight.grad)

    plain, recorded, trace = run_both(program)
    assert plain.returned == recorded.returned == ("FakeTensor", "cpu", (8, 4))
    assert len(trace.ops) == 0


@pytest.mark.parametrize("name", ["nonzero", "item"])
def test_what_depends_on_data_raises_the_mode_s_own_error(name):
    def program():
        with FakeTensorMode():
            return getattr(torch.ones(1), name)()

    plain, recorded, _ = run_both(program)
    assert type(plain.error) is type(recorded.error)
    assert plain.error is not None


def test_a_recording_inside_of_the_mode_records_nothing_and_says_so():
    with FakeTensorMode(), record() as trace:
        y = make_model()(torch.ones(3, 4))
    assert describe(y) == ("FakeTensor", "cpu", (3, 2))
    assert len(trace.ops) == 0
    assert "FakeTensor were not recorded" in trace.notes[0].text


def test_the_mode_around_a_recording_s_model_takes_its_meta_tensors():
    with record():
        model = make_model()
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = model(torch.ones(3, 4, device="meta"))
    assert describe(y) == ("FakeTensor", "meta", (3, 2))
