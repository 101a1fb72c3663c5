"""Replace functions of ``torch.cuda`` and ``torch.accelerator`` without a GPU.

Without this ``torch.cuda.synchronize()`` in a cell would fail on a laptop. Where CUDA
is recorded, they return what a machine with planned GPUs returns. Elsewhere
``is_available()`` is false; functions that only act on a GPU do nothing, and a GPU that
the code names has properties: it is planned. Read ``_list_replacements`` first.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.planned.generators import PlannedSeeds
from meta_magic.recording.intercept.planned.gpu_types import (
    TYPES,
    GpuProperties,
    do_nothing,
    find_index,
)
from meta_magic.recording.rows.draws import Draws
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.replaced import CUDA_IS_THERE
from meta_magic.torch_private.replacing import Replacements

Replacement = Callable[..., Any]

GPU: Final = GpuProperties()

IDLE: Final = frozenset(
    {"synchronize", "empty_cache", "ipc_collect", "init", "set_stream"}
    | {"reset_peak_memory_stats", "reset_accumulated_memory_stats"}
    | {"reset_max_memory_allocated", "reset_max_memory_cached"}
    | {"set_per_process_memory_fraction", "set_sync_debug_mode"}
)
"""Functions that act on a GPU, and return nothing."""

HOLDING: Final = frozenset(
    {"memory_allocated", "memory_reserved", "memory_cached", "device_memory_used"}
    | {"max_memory_allocated", "max_memory_reserved", "max_memory_cached"}
)
"""Functions that return how many bytes a GPU holds."""

MARKING: Final = frozenset({"range_push", "range_pop", "mark"})
"""Functions of ``torch.cuda.nvtx``."""

PEAK: Final = (
    "torch.cuda.{} returns the bytes of the tensors on {} now, not their peak (see the "
    "memory in the report)"
)


class PlannedCuda(Replacements):
    """Replaces functions of ``torch.cuda``, within the block.

    Args:
        note: Takes the kind and the text of a note on the line that runs now.
    """

    def __init__(
        self,
        plan: DevicePlan,
        note: Callable[[str, str], None],
        draws: Draws,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._note = note
        self._seeds = PlannedSeeds(plan, draws)

    def __enter__(self) -> None:
        if self._plan.is_real or has_gpu():
            return
        functions = {
            n: without_original(a) for n, a in self._list_replacements().items()
        }
        for module in (torch.cuda, torch.accelerator):
            known = {n: a for n, a in functions.items() if n in vars(module)}
            self.replace_here(module, known)
        nothing = without_original(do_nothing)
        self.replace_here(torch.cuda.nvtx, dict.fromkeys(MARKING, nothing))
        self.replace(*CUDA_IS_THERE, value=True)
        cudnn: Any = torch.backends.cudnn
        self.replace_here(cudnn.m, {"is_acceptable": nothing})
        self.replace_all(torch.cuda, TYPES)

    def _list_replacements(self) -> dict[str, Replacement]:
        """Return the replacement of each function by its name."""
        plan = self._plan
        facts = self._list_gpu_facts() if plan.is_for_cuda else {}
        holding = {name: partial(self._count_bytes, name) for name in HOLDING}
        return {
            **dict.fromkeys(IDLE, do_nothing),
            **holding,
            **facts,
            **self._seeds.list_replacements(),
            "is_initialized": lambda: plan.is_for_cuda,
            "current_device": lambda: plan.current,
            "current_device_index": lambda: plan.current,
            "current_device_idx": lambda: plan.current,
            "set_device": self._set_current,
            "set_device_index": self._set_current,
            "set_device_idx": self._set_current,
            "current_stream": self._find_stream,
            "default_stream": self._find_stream,
            "stream": lambda stream: torch.cuda.StreamContext(stream),  # noqa: PLW0108  replaced later
            "is_current_stream_capturing": lambda: False,
            "is_bf16_supported": lambda **_: plan.is_for_cuda,
            "get_device_properties": self._describe,
            "get_device_name": lambda device=None: self._describe(device).name,
            "get_device_capability": self._find_capability,
            "can_device_access_peer": lambda *_: True,
            "mem_get_info": self._find_free,
            "get_memory_info": self._find_free,
            "memory_stats": self._describe_memory,
            "memory_summary": lambda *_, **__: "",
            "memory_snapshot": lambda *_, **__: [],
            "utilization": lambda *_: 0,
        }

    def _list_gpu_facts(self) -> dict[str, Replacement]:
        """Return the functions that return something else on a machine with GPUs."""
        n_devices = self._plan.n_accelerators or 1
        return {
            "is_available": lambda: True,
            "device_count": lambda: n_devices,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
        }

    def _set_current(self, device: Any) -> None:
        self._plan.current = find_index(self._plan, device)

    def _find_stream(self, device: Any = None) -> Any:
        return torch.cuda.Stream(find_index(self._plan, device))

    def _describe(self, device: Any = None) -> GpuProperties:
        find_index(self._plan, device)  # it refuses a GPU that the plan lacks
        return GPU

    def _find_capability(self, device: Any = None) -> tuple[int, int]:
        described = self._describe(device)
        return described.major, described.minor

    def _find_free(self, device: Any = None) -> tuple[int, int]:
        taken = self._plan.count_bytes(find_index(self._plan, device))
        return max(0, GPU.total_memory - taken), GPU.total_memory

    def _describe_memory(self, device: Any = None) -> dict[str, int]:
        taken = self._count_bytes("max_memory_allocated", device)
        known = {
            f"{kind}_bytes.all.{when}": taken
            for kind in ("allocated", "active", "reserved")
            for when in ("current", "peak")
        }
        return defaultdict(int, known)

    def _count_bytes(self, name: str, device: Any = None) -> int:
        index = find_index(self._plan, device)
        if name.startswith("max_"):
            self._note("memory", PEAK.format(name, f"cuda:{index}"))
        return self._plan.count_bytes(index)


def without_original(function: Replacement) -> Replacement:
    """Return a replacement that ignores the function that it replaces."""
    return lambda _, *args, **kwargs: function(*args, **kwargs)
