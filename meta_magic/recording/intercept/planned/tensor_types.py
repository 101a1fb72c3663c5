"""Types such as ``torch.ByteTensor`` and ``torch.cuda.FloatTensor``.

Torch takes no tensor on meta for one of the CPU's, by which torchvision tells bytes
from other numbers, and has none for CUDA without a GPU.
"""

from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.moves import DTYPES
from meta_magic.recording.intercept.planned.plan_here import plan_here
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.replacing import Replacements

__all__ = ["PlannedTypes"]


class TensorKind(type):
    """Makes types of tensors: called they make one, and a tensor may be of them.

    Attributes:
        plain: Torch's own type for the CPU.
        dtype: The dtype of its tensors.
        is_cuda: Whether they lie on CUDA.
    """

    plain: Any
    dtype: torch.dtype
    is_cuda: bool

    def __call__(cls, *args: Any) -> Tensor:
        is_copy = len(args) == 1 and type(args[0]) is Tensor and args[0].is_meta
        is_alias = is_copy and args[0].dtype is cls.dtype
        made: Tensor = args[0].as_subclass(Tensor) if is_alias else cls.plain(*args)
        plan = plan_here()
        if cls.is_cuda and plan is not None:
            plan.name_all([made], plan.read("cuda"))
        return made

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, Tensor) or value.dtype is not cls.dtype:
            return False
        plan = plan_here()
        if plan is None:
            return value.is_cuda if cls.is_cuda else isinstance(value, cls.plain)
        place = plan.place_of(value)
        kind = "cpu" if place is None else place.type
        return kind == ("cuda" if cls.is_cuda else "cpu")


def make_kinds(home: Any) -> dict[str, TensorKind]:
    """Return the types of tensors of ``torch`` or ``torch.cuda``, by their names."""
    kinds = {}
    for stem, dtype in DTYPES.items():
        name = f"{stem}Tensor"
        known = {"plain": getattr(torch, name), "dtype": dtype}
        place = {"is_cuda": home is torch.cuda, "__module__": home.__name__}
        kinds[name] = TensorKind(name, (), {**known, **place})
    return kinds


KINDS: Final = {home: make_kinds(home) for home in (torch, torch.cuda)}


class PlannedTypes(Replacements):
    """Have ``torch.cuda.FloatTensor`` and the like be those of a plan, in the block.

    Args:
        plan: Knows where the code wants what.
    """

    def __init__(self, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan

    def __enter__(self) -> None:
        if self._plan.is_real or has_gpu():
            return
        for home, kinds in KINDS.items():
            self.replace_all(home, kinds)
