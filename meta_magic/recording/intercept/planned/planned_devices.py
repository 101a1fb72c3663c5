"""Enter all replacements of functions that ask for devices, while a recording runs.

``make_device_contexts`` lists it. Where GPUs are planned, functions of ``torch.cuda``
and ``torch.accelerator`` return what a machine with these returns. Elsewhere
``is_available()`` is false; functions that only act on a GPU do nothing. A real GPU is
not asked, so that a child process, which could not, does the same. Also here: the
default device, ``GradScaler`` and ``DataParallel``, and the fast paths of attention in
eval mode.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.device_plan import is_default_on_meta
from meta_magic.recording.identities.tensors import rebuild, tensors_in
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.intercept.moves import read_type
from meta_magic.recording.intercept.planned.gpu_types import (
    TYPES,
    GpuProperties,
    PlannedGenerators,
    PlannedSeeds,
    PlannedTypes,
    do_nothing,
    find_index,
)
from meta_magic.recording.intercept.real_tensors.capturable import wants_gradient
from meta_magic.recording.intercept.reported_devices import MAKE_REAL
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.torch_private.modes import function_mode_stack
from meta_magic.torch_private.replacing import (
    CUDA_IS_THERE,
    CUDA_VERSION,
    STEP_OF_SCALER,
)
from meta_magic.trace.signature import CPU, META

Replacement = Callable[..., Any]

GPU: Final = GpuProperties()
CUDA: Final = torch.version.cuda or "13.0"
NCCL: Final = (2, 28, 9)
"""Versions that scripts compare with the first one that knows bfloat16."""

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


class PlannedCuda(RecordingReplacements):
    """Replaces functions of ``torch.cuda``, within the block."""

    def __enter__(self) -> None:
        if self._plan.is_real:
            return
        made = self._list_replacements().items()
        functions = {name: without_original(function) for name, function in made}
        for module in (torch.cuda, torch.accelerator):
            known = {n: a for n, a in functions.items() if n in vars(module)}
            self.replace_here(module, known)
        nothing = without_original(do_nothing)
        self.replace_here(torch.cuda.nvtx, dict.fromkeys(MARKING, nothing))
        self.replace(*CUDA_IS_THERE, value=True)
        if self._plan.is_for_cuda:
            self.replace(*CUDA_VERSION, value=CUDA)
            self.replace_here(torch.cuda.nccl, {"version": lambda _: NCCL})
        cudnn: Any = torch.backends.cudnn
        self.replace_here(cudnn.m, {"is_acceptable": nothing})
        self.replace_all(torch.cuda, TYPES)

    def _list_replacements(self) -> dict[str, Replacement]:
        plan = self._plan
        n_devices = plan.device_count
        facts: dict[str, Replacement] = {  # what is otherwise on a machine with GPUs
            "is_available": lambda: True,
            "device_count": lambda: n_devices,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
        }
        return {
            **dict.fromkeys(IDLE, do_nothing),
            **{name: partial(self._count_bytes, name) for name in HOLDING},
            **(facts if plan.is_for_cuda else {}),
            **PlannedSeeds(self._write).list_replacements(),
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
            "get_device_capability": lambda d=None: (
                self._describe(d).major,
                GPU.minor,
            ),
            "can_device_access_peer": lambda *_: True,
            "mem_get_info": self._find_free,
            "get_memory_info": self._find_free,
            "memory_stats": self._describe_memory,
            "memory_summary": lambda *_, **__: "",
            "memory_snapshot": lambda *_, **__: [],
            "utilization": lambda *_: 0,
        }

    def _set_current(self, device: Any) -> None:
        self._plan.current = find_index(self._plan, device)

    def _find_stream(self, device: Any = None) -> Any:
        return torch.cuda.Stream(find_index(self._plan, device))

    def _describe(self, device: Any = None) -> GpuProperties:
        find_index(self._plan, device)  # it refuses a GPU that the plan lacks
        return GPU

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


Compute: TypeAlias = Callable[[list[Tensor]], object]
"""Computes the values of tensors, or raises a ``MissingValueError``."""


def make_device_contexts(
    write: Writers, compute: Compute
) -> tuple[AbstractContextManager[Any], ...]:
    """Return the context managers that replace functions that ask for devices."""
    return (
        PlannedTypes(write),
        PlannedCuda(write),
        PlannedGenerators(write),
        PlannedTraining(write, compute),
        DefaultDevices(write),
        EncoderKernels(write),
    )


class DefaultDevices(RecordingReplacements):
    """Makes a default device that the cell sets a planned device, within the block."""

    def __enter__(self) -> None:
        if not self._plan.is_real:
            methods: dict[str, Callable[..., Any]] = {
                "set_default_device": self._set,
                "get_default_device": self._get,
                "set_default_tensor_type": self._set_type,
            }
            self.replace_here(torch, methods)

    def _set(self, _: Any, device: Any) -> None:
        placement = META if device is None else self._plan.read(device)
        self._plan.default = None if placement == META else placement
        if device is not None:
            text = f"torch.set_default_device({device}) was undone after the cell"
            self._note("state", text)

    def _get(self, plain: Callable[[], torch.device]) -> torch.device:
        default = self._plan.default
        if sys._getframe(2).f_code.co_name in MAKE_REAL:
            return default or CPU  # code compares it with the device of a tensor
        return plain() if default is None or not is_default_on_meta() else default

    def _set_type(self, _: Any, kind: Any) -> None:
        device, dtype = read_type(kind)
        torch.set_default_dtype(dtype)
        self._set(None, None if device == "cpu" else device)


PLAIN: Final = nn.Parameter.__torch_function__
"""The method of types for which torch calls its functions directly."""

ENCODER: Final = nn.TransformerEncoder.forward.__code__
PADDED: Final = (
    "on a real device nn.TransformerEncoder skips padding, in nested tensors, and "
    "returns zeros there; it is recorded with enable_nested_tensor=False"
)


class EncoderKernels(RecordingReplacements):
    """Makes modules choose their fast path as if no mode were on, within the block.

    Without this ``nn.TransformerEncoderLayer`` in eval mode would not be recorded as
    the one operator that the CPU runs.

    Source:
        ``forward`` in ``nn/modules/transformer.py`` and ``nn/modules/activation.py``:
        no fast path if ``has_torch_function`` is true, as it is under any mode.
    """

    def __enter__(self) -> None:
        if self._plan.kernels != "meta":
            self.replace_here(torch.overrides, {"has_torch_function": self._has})

    def _has(self, _: Any, operands: Sequence[Any]) -> bool:
        """Whether anything but this recording overrides functions of torch."""
        if (
            self._plan.default is not None  # on a real device it is a mode
            or any(type(mode) is not FunctionMode for mode in function_mode_stack())
            or any(map(is_overriding, operands))
        ):
            return True
        is_encoder = sys._getframe(2).f_code is ENCODER
        is_padded = is_encoder and not any(map(wants_gradient, operands))
        if is_padded:
            self._note("kernel", PADDED)
        return is_padded


def is_overriding(operand: object) -> bool:
    """Whether the type of an operand overrides functions of torch."""
    kind = type(operand)
    function = getattr(kind, "__torch_function__", PLAIN)
    return kind is not Tensor and function is not PLAIN


FINITE: Final = (
    "GradScaler.step: whether the gradients are finite takes too much to compute: they "
    "are assumed to be finite, and the step is taken"
)
ONE_REPLICA: Final = (
    "DataParallel runs as one replica with the whole batch on {}, not as {} with a "
    "part each"
)


class PlannedTraining(RecordingReplacements):
    """Makes ``GradScaler`` and ``DataParallel`` accept planned tensors within it."""

    def __init__(self, write: Writers, compute: Compute) -> None:
        super().__init__(write)
        self._compute = compute

    def __enter__(self) -> None:
        scaler, step = STEP_OF_SCALER
        self.replace_here(scaler, {step: self._step})
        if not self._plan.is_real:
            self.replace_here(nn.DataParallel, {"forward": self._run_replica})

    def _step(
        self, plain: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kw: Any
    ) -> Any:
        """Take a step of an optimizer if its gradients are finite, or assumed to be."""
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
        """Run the module itself, on the device of its first replica."""
        if not parallel.device_ids:
            return plain(parallel, *inputs, **kwargs)
        home = parallel.src_device_obj
        for tensor in (*parallel.module.parameters(), *parallel.module.buffers()):
            placement = self._plan.placement_of(tensor) or CPU
            if placement != home:
                raise RuntimeError(
                    "module must have its parameters and buffers on device "
                    f"{home} (device_ids[0]) but found one of them on device: "
                    f"{placement}"
                )
        n_replicas = len(parallel.device_ids)
        if n_replicas > 1:
            self._note("place", ONE_REPLICA.format(home, n_replicas))
        moved, named = self._move((inputs, kwargs), home)
        output = torch.device("cuda", parallel.output_device)
        return self._move(parallel.module(*moved, **named), output)

    def _move(self, value: Any, placement: torch.device) -> Any:
        plan = self._plan

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor) or plan.placement_of(value) == placement:
                return value
            moved = value.to(META, copy=True)
            plan.set_placements([moved], placement)
            return moved

        return rebuild(value, move)
