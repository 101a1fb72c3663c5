"""``mm.replay(trace, y)``: the real values of recorded tensors, on any device."""

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.origins import Origin, find_origin
from meta_magic.replaying.devices import read_device
from meta_magic.replaying.execution import Execution, imported_by, order_latest_first
from meta_magic.replaying.memory import make_view, read_geometry, view_sparse
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry
from meta_magic.trace.trace import Trace

Recorded: TypeAlias = TensorMetadata | Tensor


@overload
def replay(
    trace: Trace, tensors: Recorded, device: str | torch.device = "cpu"
) -> Tensor: ...


@overload
def replay(
    trace: Trace, tensors: Sequence[Recorded], device: str | torch.device = "cpu"
) -> list[Tensor]: ...


def replay(
    trace: Trace,
    tensors: Recorded | Sequence[Recorded],
    device: str | torch.device = "cpu",
) -> Tensor | list[Tensor]:
    """Return the values that recorded tensors would have if the cell ran for real.

    Only the calls that they depend on are run, and memory is freed as early as
    possible. Random numbers are those that the cell would draw on ``device``.

    Args:
        trace: The recording.
        tensors: One or several: inputs or outputs of its calls, or meta tensors. Their
            values are those at the end of the recording, after all writes.
        device: The device to run on, instead of meta.

    Returns:
        A real tensor for each, with its shape, strides and dtype; tensors that shared
        a storage share one again. A single tensor if one was given.

    Raises:
        ReplayError: A value depends on something that was not recorded or never
            written, or a call failed.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3).sum()
        >>> replay(trace, y)
        tensor(6.)
    """
    if isinstance(tensors, Recorded):
        return replay(trace, [tensors], device)[0]
    real_device = read_device(device, ReplayError)
    wanted = [find_wanted(trace, tensor) for tensor in tensors]
    storages = frozenset(storage for storage, _ in wanted)
    request = Request(storages=storages, read=tuple(wanted))
    execution = Execution(trace.program, request, real_device)
    if execution.reads_raw() and not execution.follow_partial_writes():
        raise ReplayError(
            "the tensor, or one that it is computed from, has elements that were never "
            f"written since {execution.describe_raw()}"
        )
    made: dict[int, torch.UntypedStorage | Tensor] = {}
    with RealTorch():
        deque(execution.run(made.__setitem__), maxlen=0)
        return [build_tensor(geometry, made[storage]) for storage, geometry in wanted]


def find_wanted(trace: Trace, tensor: object) -> tuple[int, Geometry]:
    """Return the number of a tensor's storage in a trace, and its geometry."""
    if isinstance(tensor, Tensor):
        return find_storage(trace.program, tensor), read_geometry(tensor)
    if not isinstance(tensor, TensorMetadata):
        raise ReplayError(
            f"wanted tensors, or those of trace.ops, not a {type(tensor).__name__}"
        )
    if tensor.storage_id >= len(ProgramCalls(trace.program).births):
        raise ReplayError(
            f"the trace has no tensor with storage_id {tensor.storage_id}"
        )
    return tensor.storage_id, tensor.geometry


def find_storage(program: Program, tensor: Tensor) -> int:
    """Return the number of a live tensor's storage in a program."""
    found = None
    if tensor.is_meta and tensor.layout is torch.strided and not tensor.is_nested:
        found = find_origin(tensor.untyped_storage())
    found = None if found is None else trace_back(*found, program)
    if found is None or found[0].program is not program:
        raise ReplayError(
            f"the trace did not make this tensor of shape {tuple(tensor.shape)} on "
            f"{tensor.device}: give the trace of the cell that made it"
        )
    return found[1]


def build_tensor(geometry: Geometry, content: torch.UntypedStorage | Tensor) -> Tensor:
    """Return a real tensor of recorded geometry."""
    make: Any = view_sparse if isinstance(content, Tensor) else make_view
    made: Tensor = make(content, geometry)
    return made


def trace_back(
    origin: Origin, number: int, program: Program
) -> tuple[Origin, int] | None:
    """Return which recording has a storage's content as ``program`` left it.

    With the number of the storage in it; None if ``program`` does not know the storage.
    ``origin`` is the latest recording that used the storage.
    """
    if any(
        earlier is origin.program
        for earlier in order_latest_first(program, imported_by)
    ):
        return origin, number
    current = origin.program
    while current is not program:
        imported = next((i for i in current.imports if i.storage == number), None)
        if imported is None:
            return None
        current, number = imported.program, imported.origin
    return Origin(program=program), number
