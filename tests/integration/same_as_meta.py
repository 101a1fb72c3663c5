"""Compare what a program gives under ``record()`` with what it gives on plain meta."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from meta_magic.session.record import record
from meta_magic.trace.trace import Trace


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
