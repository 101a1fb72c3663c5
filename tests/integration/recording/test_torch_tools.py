"""The tools of torch neither break nor are broken inside of ``record()``."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from meta_magic.session.record import record
from meta_magic.trace.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Doubling(nn.Linear):
    """A subclass of a torch module that calls its base."""

    def forward(self, x):
        return super().forward(x) * 2


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Doubling(8, 3))


def test_hooks_of_the_user_run_in_their_order_and_change_the_result():
    def program():
        model, seen = make_model(), []
        model[0].register_forward_pre_hook(lambda m, args: seen.append("pre"))
        model[0].register_forward_hook(
            lambda m, args, out: seen.append("post") or out[:1]
        )
        model.register_forward_hook(
            lambda m, args, kwargs, out: seen.append("root"), with_kwargs=True
        )
        model.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        return seen, model(torch.randn(2, 4))

    assert_same_as_plain_meta(program)


def test_hooks_on_every_module_run_and_stay_registered():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: seen.append(type(m).__name__)
    )
    try:
        with record():
            model = make_model()
            model(torch.randn(2, 4))
        model(torch.empty(2, 4, device="meta"))
    finally:
        handle.remove()
    assert seen == ["Linear", "Tanh", "Doubling", "Sequential"] * 2


def test_a_function_compiled_before_is_recorded_inside():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    compiled(torch.ones(2))
    trace = assert_same_as_plain_meta(lambda: compiled(torch.randn(2)))
    assert "aten.sin.default" in [call.op for call in trace.ops]


# Compare what a program gives under ``record()`` with what it gives on plain meta


def assert_same_as_plain_meta(program: Callable[[], Any]) -> Trace:
    """Assert that a program gives the same twice under ``record()``, and its trace."""
    with torch.device("meta"):
        expected = outcome(program)
    with record(as_device="meta"):
        first = outcome(program)
    with record(as_device="meta") as trace:
        second = outcome(program)
    assert first == expected
    assert second == expected
    return trace


def outcome(program: Callable[[], Any]) -> Any:
    """Return what a program returned, described, or the exception it raised."""
    try:
        return describe(program())
    except Exception as error:
        return type(error), str(error)


def describe(value: Any) -> Any:
    """Return type and metadata of tensors and what holds them; others as they are."""
    if isinstance(value, torch.Tensor):
        is_strided = value.layout is torch.strided
        return {
            "type": type(value),
            "shape": tuple(value.shape),
            "stride": value.stride() if is_strided else None,
            "dtype": value.dtype,
            "device": value.device,
            "requires_grad": value.requires_grad,
            "is_leaf": value.is_leaf,
            "is_inference": value.is_inference(),
            "grad": describe(value.grad) if value.is_leaf else None,
        }
    if isinstance(value, nn.Module):
        # By name: a parametrization makes a class for each module.
        return type(value).__name__, describe(value.state_dict()), str(value)
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [describe(item) for item in value]
    if isinstance(value, (int, float, str, bool, bytes, type, type(None))):
        return value
    return type(value)
