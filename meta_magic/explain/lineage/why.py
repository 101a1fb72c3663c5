"""Answer why a size of a recorded tensor is what it is."""

from functools import partial

from torch import Tensor

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.inner_calls import find_node
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.lineage.perturbing import resolve
from meta_magic.explain.lineage.size_lineages import Unresolved
from meta_magic.explain.lineage.traced_runs import Run, ask_run, find_lineages
from meta_magic.recording.identities.origins import find_origin
from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["why"]


def why(trace: Trace, tensor: Tensor | TensorMetadata, dim: int) -> Lineage:
    """Return where a size of a recorded tensor comes from.

    Args:
        trace: The recording.
        tensor: The tensor, or its metadata from the recording.
        dim: Its dimension; from the last one if negative.

    Raises:
        IndexError: It has no such dimension.
        TrialError: The recording did not meet the tensor, or its block cannot be run
            again, or does not do the same then.
    """
    shape = tuple(tensor.shape)
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"a tensor of {len(shape)} dimensions has no dimension {dim}")
    at = dim % len(shape)
    number = (
        tensor.tensor_id
        if isinstance(tensor, TensorMetadata)
        else find_number(trace, tensor)
    )
    name = f"dimension {at} of {format_shape(shape)}"
    ops = [call.op for call in trace.ops]
    answer = partial(answer_why, ops=ops, number=number, dim=at, name=name)
    lineage, unresolved = ask_run(trace, answer)
    return resolve(trace, lineage, unresolved)


def answer_why(
    run: Run, *, ops: list[str], number: int, dim: int, name: str
) -> tuple[Lineage, tuple[Unresolved, ...]]:
    """Return where a size of a tensor comes from; called in the child.

    Raises:
        TrialError: The block did not do the same.
    """
    if [call.op for call in run.trace.ops] != ops:
        raise TrialError("it does not do the same when it runs again")
    node = find_node(run, number)
    return find_lineages(run).why_size(name, node, dim)


def find_number(trace: Trace, tensor: Tensor) -> int:
    """Return the number of a tensor in a recording.

    Raises:
        TrialError: It did not meet it.
    """
    found = find_origin(tensor.untyped_storage())
    if found is not None and found[0].program is trace.program:
        shape = tuple(tensor.shape)
        for call in reversed(trace.ops):
            for met in (*call.outputs, *call.inputs):
                if met.storage_id == found[1] and met.shape == shape:
                    return met.tensor_id
    raise TrialError("the recording did not meet this tensor, or a later one did")
