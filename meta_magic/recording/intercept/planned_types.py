"""Types such as ``torch.cuda.FloatTensor``, of which torch makes none without a GPU."""

from typing import Any

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.moves import DTYPES
from meta_magic.torch_private.gpus import has_gpu
from meta_magic.torch_private.replacing import Replacements

__all__ = ["PlannedTypes"]


class TensorKind(type):
    """Makes types of tensors: called they make one, and a tensor may be of them."""

    dtype: torch.dtype
    plan: DevicePlan | None
    is_cuda = True

    def __call__(cls, *args: Any) -> Tensor:
        made: Tensor = getattr(torch, cls.__name__)(*args)
        if cls.plan is not None:
            cls.plan.name_all([made], cls.plan.read("cuda"))
        return made

    def __instancecheck__(cls, value: object) -> bool:
        if not isinstance(value, Tensor) or value.dtype is not cls.dtype:
            return False
        place = value.device if cls.plan is None else cls.plan.place_of(value)
        return place is not None and place.type == "cuda"


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
            names = {"dtype": dtype, "plan": self._plan, "__module__": "torch.cuda"}
            kind = TensorKind(f"{stem}Tensor", (), names)
            self._kinds.append(kind)
            self.replace(torch.cuda, f"{stem}Tensor", kind)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        while self._kinds:
            self._kinds.pop().plan = None  # one may outlive the recording
