"""What stands for tensors that no function of torch returned to the block's Python.

Those are within a function, or of a backward pass: their operators are the calls then.
"""

from typing import Any

import torch

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.observed_calls import Call, Node
from meta_magic.explain.lineage.traced_runs import Run
from meta_magic.trace.calls import OpCall, TensorMetadata

__all__ = ["find_node"]


def find_node(run: Run, number: int) -> Node:
    """Return what stands for a tensor of a run, by its number in the recording.

    Raises:
        TrialError: The recording has no such tensor.
    """
    known = dict(run.observer.by_number)
    if number not in known:
        add_operators(run, known)
    node = known.get(number)
    if node is None:
        raise TrialError("the recording has no such tensor")
    return node


def add_operators(run: Run, known: dict[int, Node]) -> None:
    """Add what stands for all tensors that only operators know."""
    for op in run.trace.ops:
        made = [m for m in op.outputs if m.tensor_id not in known]
        if op.raised or not made:
            continue
        nodes = [find(known, metadata) for metadata in op.inputs]
        kwargs = {name: freeze(value, op, nodes) for name, value in op.arguments}
        call = Call(-1, find_operator(op.op), (), kwargs, op.line)
        for output, metadata in enumerate(op.outputs):
            if metadata.tensor_id not in known:
                node = Node(make_like(metadata), call, output)
                known[metadata.tensor_id] = node


def find(known: dict[int, Node], metadata: TensorMetadata) -> Node:
    """Return what stands for a tensor; one that nothing made comes from outside."""
    node = known.get(metadata.tensor_id)
    if node is None:
        node = known[metadata.tensor_id] = Node(make_like(metadata), None, 0)
    return node


def freeze(value: Any, op: OpCall, nodes: list[Node]) -> Any:
    """Return an argument with what stands for its tensors."""
    if isinstance(value, TensorMetadata):
        return nodes[next(i for i, given in enumerate(op.inputs) if given is value)]
    if isinstance(value, tuple):
        return tuple(freeze(item, op, nodes) for item in value)
    return value


def make_like(metadata: TensorMetadata) -> torch.Tensor:
    """Return a tensor on meta with the sizes and the dtype of another one."""
    return torch.empty(metadata.shape, dtype=metadata.dtype, device="meta")


def find_operator(name: str) -> Any:
    """Return an operator by its name with its overload."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found
