"""``replay()``: the real values of recorded tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.replaying.devices import read_device
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.memory import make_view, view_sparse
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.signature import Geometry
from meta_magic.trace.trace import Trace

__all__ = ["replay"]


def replay(
    trace: Trace,
    tensors: Sequence[TensorMetadata],
    device: str | torch.device = "cpu",
) -> list[Tensor]:
    """Return the values that recorded tensors would have, had the cell run for real.

    Only the calls that they depend on run again, and what none needs any more is freed.
    Random numbers are those that the cell would have drawn on ``device``.

    Args:
        trace: The recording.
        tensors: Inputs or outputs of its operator or module calls. Their values are
            those at the end of the recording, after all writes.
        device: What stands for meta.

    Returns:
        A real tensor for each, with its shape, strides and dtype; those that shared a
        storage do so again.

    Raises:
        ReplayError: A value depends on something that was not recorded, or a call
            failed.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3).sum()
        >>> replay(trace, trace.ops[-1].outputs)
        [tensor(6.)]
    """
    place = read_device(device, ReplayError)
    check_wanted(trace, tensors)
    storages = frozenset(tensor.storage_id for tensor in tensors)
    execution = Execution(trace.program, Request(storages=storages), place)
    made: dict[int, torch.UntypedStorage | Tensor] = {}
    with RealTorch():
        for _ in execution.run(made.__setitem__):
            pass
        return [build_tensor(tensor, made[tensor.storage_id]) for tensor in tensors]


def check_wanted(trace: Trace, tensors: Sequence[object]) -> None:
    """Refuse what is no tensor of a trace.

    Raises:
        ReplayError: Something is not.
    """
    n_storages = len(ProgramCalls(trace.program).births)
    for tensor in tensors:
        if not isinstance(tensor, TensorMetadata):
            raise ReplayError(
                f"wanted tensors of trace.ops, not a {type(tensor).__name__}"
            )
        if tensor.storage_id >= n_storages:
            raise ReplayError(
                f"the trace has no tensor with storage_id {tensor.storage_id}"
            )


def build_tensor(
    metadata: TensorMetadata | Geometry, content: torch.UntypedStorage | Tensor
) -> Tensor:
    """Return a real tensor with recorded metadata."""
    if isinstance(metadata, TensorMetadata):
        metadata = metadata.geometry
    if isinstance(content, Tensor):
        return view_sparse(content, metadata)
    return make_view(content, metadata)
