"""The arguments of calls that are alike: what is the same in all, and what goes in."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.torch_private.dispatcher import find_group
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Argument,
    OpaqueArgument,
    Signature,
    TensorArgument,
)

__all__ = ["CallArguments"]


class CallArguments:
    """What the calls of one signature are given: a replay makes each many times.

    Args:
        signature: What they share.

    Attributes:
        signature: What they share.
        default_dtype: The default dtype under which they gave their outputs; None if
            these do not depend on it.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.default_dtype = find_default_dtype(signature)
        self._plain: dict[str, Any] = {}
        self._tensors: list[tuple[str, int]] = []
        self._others: list[tuple[str, Argument]] = []
        given = dict(signature.arguments)
        given.pop("generator", None)  # a call is told anew from which to draw
        for name, value in given.items():
            if isinstance(value, TensorArgument):
                self._tensors.append((name, value.index))
            elif isinstance(value, (tuple, torch.device, OpaqueArgument)):
                self._others.append((name, value))
            else:
                self._plain[name] = value

    def fill(self, tensors: Sequence[Tensor], device: torch.device) -> dict[str, Any]:
        """Return the arguments with tensors and devices in their places.

        Args:
            tensors: The tensor arguments.
            device: What stands for meta.

        Raises:
            ReplayError: One was not recorded.
        """
        given = self._plain.copy()
        for name, index in self._tensors:
            given[name] = tensors[index]
        for name, value in self._others:
            given[name] = self._fill(name, value, tensors, device)
        return given

    def _fill(
        self,
        name: str,
        value: Argument,
        tensors: Sequence[Tensor],
        device: torch.device,
    ) -> Any:
        if isinstance(value, TensorArgument):
            return tensors[value.index]
        if isinstance(value, tuple):
            return [self._fill(name, item, tensors, device) for item in value]
        if isinstance(value, torch.device) and value.type == "meta":
            return device
        if value in (NAN, NEGATIVE_NAN):
            return math.nan if value == NAN else -math.nan
        if isinstance(value, OpaqueArgument):
            found = find_group(value.text)
            if found is not None:
                return found
            raise ReplayError(
                f"{self.signature.op} was called with {name}={value.text}, of which "
                "the recording keeps no more than this text"
            )
        return value


def find_default_dtype(signature: Signature) -> torch.dtype | None:
    """Return the default dtype under which a call gave its outputs, if that matters.

    Only what has no floating-point argument can have depended on it.
    """
    floating = [g.dtype for g in signature.inputs if is_floating(g.dtype)]
    made = [g.dtype for g in signature.outputs if is_floating(g.dtype)]
    given: Mapping[str, Argument] = dict(signature.arguments)
    if floating or not made or given.get("dtype") is not None:
        return None
    return made[0].to_real()


def is_floating(dtype: torch.dtype) -> bool:
    """Whether a dtype is a floating-point or complex one."""
    return dtype.is_floating_point or dtype.is_complex
