"""Types such as ``torch.ByteTensor`` and ``torch.cuda.FloatTensor``.

Torch takes no tensor on meta for one of the CPU's, by which torchvision tells bytes
from other numbers, and has none for CUDA without a GPU.
"""

from typing import Any

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.moves import DTYPES
from meta_magic.torch_private.gpus import has_gpu
from meta_magic.torch_private.replacing import Replacements

__all__ = ["PlannedTypes"]


class TensorKind(type):
    """Makes types of tensors: called they make one, and a tensor may be of them.

    Attributes:
        plain: Torch's own type for the CPU.
        dtype: The dtype of its tensors.
        plan: Knows where they lie; None after the recording.
        is_cuda: Whether they lie on CUDA.
    """

    plain: Any
    dtype: torch.dtype
    plan: DevicePlan | None
    is_cuda: bool

    def __call__(cls, *args: Any) -> Tensor:
        made: Tensor = cls.plain(*args)
        if cls.is_cuda and cls.plan is not None:
            cls.plan.name_all([made], cls.plan.read("cuda"))
        return made

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, Tensor) or value.dtype is not cls.dtype:
            return False
        if cls.plan is None:
            return value.is_cuda if cls.is_cuda else isinstance(value, cls.plain)
        place = cls.plan.place_of(value)
        kind = "cpu" if place is None else place.type
        return kind == ("cuda" if cls.is_cuda else "cpu")


class PlannedTypes(Replacements):
    """Have ``torch.cuda.FloatTensor`` and the like be those of a plan, in the block.

    Args:
        plan: Knows where the code wants what.
    """

    def __init__(self, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan
        self._kinds: list[TensorKind] = []

    def __enter__(self) -> None:
        if self._plan.is_real or has_gpu():
            return
        for stem, dtype in DTYPES.items():
            name = f"{stem}Tensor"
            known = {"plain": getattr(torch, name), "dtype": dtype, "plan": self._plan}
            for home in (torch, torch.cuda):
                is_cuda = {"is_cuda": home is torch.cuda, "__module__": home.__name__}
                kind = TensorKind(name, (), {**known, **is_cuda})
                self._kinds.append(kind)
                self.replace(home, name, kind)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        while self._kinds:
            self._kinds.pop().plan = None  # one may outlive the recording
