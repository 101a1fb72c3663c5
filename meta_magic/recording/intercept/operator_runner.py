"""Run the operators that are no cache hits: whole, decomposed, or replaced."""

from typing import Any, Final

import torch

from meta_magic.recording.as_device.attention import DeviceAttention
from meta_magic.recording.identities.call_sites import CallSites
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.constructors import LEGACY, run_legacy
from meta_magic.recording.intercept.higher_order import has_inside, run_inside
from meta_magic.recording.intercept.kernel_calls import KernelCalls, OperatorCall
from meta_magic.recording.intercept.special_tensors import SpecialTensors
from meta_magic.recording.signatures.entries import Args, Kwargs, OpTable
from meta_magic.torch_private.dispatcher import DispatchKey, has_kernel
from meta_magic.torch_private.modes import (
    DisableTorchFunction,
    ExcludeKey,
    fake_tensor_mode,
    n_dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)

MOVE: Final = "aten.to."
"""Prefix of composite operators that move or cast a tensor."""


class OperatorRunner:
    """Decides how an operator that is no cache hit is run.

    Args:
        attention: Decomposes operators as a device does.
        kernels: Runs and records kernels.

    Attributes:
        checks: Refuses calls whose operands hold values out of range.
    """

    def __init__(
        self,
        sites: CallSites,
        special: SpecialTensors,
        attention: DeviceAttention,
        kernels: KernelCalls,
    ) -> None:
        self._sites = sites
        self._special = special
        self._attention = attention
        self.plan = kernels.plan
        self.checks = kernels.checks
        self._kernels = kernels
        self._is_taking_apart = False

    def run(self, mode: Any, call: OperatorCall) -> Any:
        """Run an operator, and record it or the operators that it runs."""
        table, key, _, args, kwargs = call
        func = table.func
        entry = table.entries.get(key)
        if entry is not None and entry.is_on_real and is_unwatched():
            return self._kernels.call_on_real(entry, call)
        if self._special.is_unrecorded(args, kwargs):
            return func(*args, **kwargs)
        returned: Any = NotImplemented
        if has_inside(func, args):
            returned = self._special.trace(func, args, kwargs)
            if returned is NotImplemented:
                returned = run_inside(mode, func, args, kwargs)
        is_legacy = func in LEGACY and self._sites.function is None
        if returned is NotImplemented and is_legacy:
            returned = run_legacy(mode, func, args, kwargs)
        if returned is NotImplemented:
            returned = self._kernels.call(call)
        if returned is NotImplemented:  # real tensors go to meta first
            capture = self._kernels.capture.capture_arguments
            captured = capture(args, table), capture(kwargs, table)
            returned = mode.__torch_dispatch__(func, (), *captured)
        return returned

    def is_undivided(self, table: OpTable, args: Args) -> bool:
        """Whether a composite operator reached this mode undivided.

        Autograd usually divides it before this mode is called. It does not in inference
        mode, for tensors made there, for parts of such an operator, or below the code
        of a tensor subclass. In such code only ``.tolist()`` matters, because it moves
        meta tensors to the CPU. Nested tensors have kernels of their own.
        """
        tensors = tensors_in(args)
        with DisableTorchFunction():
            if any(tensor.is_nested for tensor in tensors):
                return False
            is_off = self._is_taking_apart or torch.is_inference_mode_enabled()
            if is_off or table.name.startswith(MOVE):
                return True
            return any(tensor.is_inference() for tensor in tensors)

    def take_apart(self, mode: Any, table: OpTable, args: Args, kwargs: Kwargs) -> Any:
        """Run the operators that make up an operator, so that the mode sees them.

        torch counts views and writes either in the parts, or around the whole operator,
        as for ``chunk`` and ``narrow``, but never in both.
        """
        is_noted = has_kernel(table.func.name(), DispatchKey.ADInplaceOrView.name)
        before, self._is_taking_apart = self._is_taking_apart, True
        push_dispatch_mode(mode)
        try:
            with ExcludeKey(DispatchKey.ADInplaceOrView, is_noted):
                return self._attention.decompose(table.func, args, kwargs)
        finally:
            pop_dispatch_mode()
            self._is_taking_apart = before


def is_unwatched() -> bool:
    """Whether no other mode must see an operator."""
    return not n_dispatch_modes() and fake_tensor_mode() is None
