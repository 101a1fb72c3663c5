"""Fast paths of attention in eval mode, which torch leaves where a mode looks on."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.intercept.lifted.liftable import wants_gradient
from meta_magic.torch_private.modes import function_mode_stack
from meta_magic.torch_private.replacing import Replacements

__all__ = ["FastPaths"]

PLAIN: Final = nn.Parameter.__torch_function__
"""What types have for which torch calls its functions as they are."""

ENCODER: Final = nn.TransformerEncoder.forward.__code__
PADDED: Final = (
    "nn.TransformerEncoder leaves out what is padded for real, in nested tensors, and "
    "returns zeros there; recorded is what it does with enable_nested_tensor=False"
)


class FastPaths(Replacements):
    """Have modules choose as if no mode of a recording were on, within the block.

    Args:
        plan: Knows where the code wants what.
        note: Takes the kind and the text of a note on the line that runs now.

    Source:
        ``forward`` in ``nn/modules/transformer.py`` and ``nn/modules/activation.py``:
        no fast path where ``has_torch_function``, which is true under any mode.
    """

    def __init__(self, plan: DevicePlan, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self._plan = plan
        self._note = note

    def __enter__(self) -> None:
        if self._plan.kernels != "meta":
            self.replace_here(torch.overrides, {"has_torch_function": self._has})

    def _has(self, _: Any, operands: Sequence[Any]) -> bool:
        """Whether something else than this recording is to see what is done."""
        if self._plan.default is not None:  # which is a mode, for real
            return True
        if any(type(mode) is not FunctionMode for mode in function_mode_stack()):
            return True
        if any(map(is_overriding, operands)):
            return True
        if sys._getframe(2).f_code is ENCODER and not any(
            map(wants_gradient, operands)
        ):
            self._note("kernel", PADDED)
            return True
        return False


def is_overriding(operand: object) -> bool:
    """Whether a type says what functions of torch are to do with its objects."""
    kind = type(operand)
    function = getattr(kind, "__torch_function__", PLAIN)
    return kind is not Tensor and function is not PLAIN
