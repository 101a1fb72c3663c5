"""What scripts wrap around training on GPUs: ``GradScaler`` and ``DataParallel``."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.replaced import STEP_OF_SCALER
from meta_magic.torch_private.replacing import Replacements

__all__ = ["Compute", "PlannedTraining"]

Compute: TypeAlias = Callable[[list[Tensor]], object]
"""Computes what tensors hold, or raises a ``MissingValueError``."""

CPU: Final = torch.device("cpu")
FINITE: Final = (
    "GradScaler.step: to compute whether the gradients are finite takes too much: they "
    "are assumed to be, and the step is taken"
)
ONE_REPLICA: Final = (
    "DataParallel runs as one replica with the whole batch on {}, not as {} with a "
    "part each"
)


class PlannedTraining(Replacements):
    """Have them run on tensors of a plan, within the block.

    Args:
        plan: Knows where the code wants what.
        note: Takes the kind and the text of a note on the line that runs now.
        compute: Returns what tensors hold.
    """

    def __init__(
        self, plan: DevicePlan, note: Callable[[str, str], None], compute: Compute
    ) -> None:
        super().__init__()
        self._compute = compute
        self._plan = plan
        self._note = note

    def __enter__(self) -> None:
        scaler, step = STEP_OF_SCALER
        self.replace_here(scaler, {step: self._step})
        if not (self._plan.is_real or has_gpu()):
            self.replace_here(nn.DataParallel, {"forward": self._run_replica})

    def _step(
        self, plain: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kw: Any
    ) -> Any:
        """Take a step of an optimizer if its gradients are finite, or may be."""
        found = tensors_in(list(state["found_inf_per_device"].values()))
        if not any(tensor.is_meta for tensor in found):
            return plain(scaler, optimizer, state, *args, **kw)
        try:
            self._compute(found)
        except MissingValueError:
            self._note("assumed", FINITE)
            return optimizer.step(*args, **kw)
        return plain(scaler, optimizer, state, *args, **kw)

    def _run_replica(
        self, plain: Any, parallel: nn.DataParallel[Any], *inputs: Any, **kwargs: Any
    ) -> Any:
        """Run the module itself, where its first replica would be."""
        if not parallel.device_ids:
            return plain(parallel, *inputs, **kwargs)
        home = parallel.src_device_obj
        for tensor in (*parallel.module.parameters(), *parallel.module.buffers()):
            place = self._plan.place_of(tensor) or CPU
            if place != home:
                raise RuntimeError(
                    "module must have its parameters and buffers on device "
                    f"{home} (device_ids[0]) but found one of them on device: "
                    f"{place}"
                )
        n_replicas = len(parallel.device_ids)
        if n_replicas > 1:
            self._note("place", ONE_REPLICA.format(home, n_replicas))
        moved, named = self._move((inputs, kwargs), home)
        output = torch.device("cuda", parallel.output_device)
        return self._move(parallel.module(*moved, **named), output)

    def _move(self, value: Any, place: torch.device) -> Any:
        """Return a value with its tensors on a device."""
        if type(value) in (list, tuple):
            return type(value)(self._move(item, place) for item in value)
        if type(value) is dict:
            return {name: self._move(item, place) for name, item in value.items()}
        if not isinstance(value, Tensor) or self._plan.place_of(value) == place:
            return value
        moved = value.to(META, copy=True)
        self._plan.name_all([moved], place)
        return moved
