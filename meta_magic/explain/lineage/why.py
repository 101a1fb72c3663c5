"""Answer ``trace.why(x, 1)``: where a size of a recorded tensor comes from.

The block runs again with traced numbers in a child (:func:`why`). Tensors that
operators make inside of a function or a backward pass need more (:func:`_find_node`).
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.lineage.size_lineages import (
    find_lineages,
)
from meta_magic.explain.lineage.traced_numbers import SizeOf, trace_number
from meta_magic.explain.lineage.traced_runs import (
    Node,
    ObservedCall,
    Run,
    ask_runs,
)
from meta_magic.recording.identities.origins import find_origin
from meta_magic.session.operand_names import find_paths, is_shells
from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.trace.options import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape


def why(
    trace: Trace, tensor: Tensor | TensorMetadata, dim: int, rerun: Rerun | None = None
) -> Lineage:
    """Return where a size of a recorded tensor comes from.

    ``rerun`` is the block joined with the earlier cells it rests on, if any.
    """
    shape = tuple(tensor.shape)
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"a tensor of {len(shape)} dimensions has no dimension {dim}")
    at = dim % len(shape)
    number = find_number(trace, tensor)
    path = "" if number is not None else _find_path(trace, tensor)
    if number is None and not (path and rerun):
        raise TrialError("the recording does not have this tensor, or a later one does")
    slots = (  # where the tensor is first seen, if any operator has it
        (op, index)
        for op, call in enumerate(trace.ops)
        for index, seen in enumerate((*call.inputs, *call.outputs))
        if seen.tensor_id == number
    )
    answer = partial(
        _answer_why,
        calls=[*map(_summarize, trace.ops)],
        find=partial(_evaluate, path)
        if number is None
        else partial(_find_node, number=number, slot=next(slots, None)),
        dim=at,
        name=f"dimension {at} of {format_shape(shape)}",
    )
    run = trace if rerun is None else replace(trace, rerun=rerun)
    (found,) = ask_runs(run, [{}], answer)
    if isinstance(found, TrialError):
        raise found
    return found


def _summarize(call: OpCall) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Return an operator and the shapes that it made."""
    return call.op, tuple(made.shape for made in call.outputs)


def _answer_why(
    run: Run, *, calls: Sequence[object], find: Callable[..., Node], dim: int, name: str
) -> Lineage:
    """Return where a size of a tensor comes from; runs in the child."""
    ops = run.trace.ops
    n_before = len(ops) - len(calls)
    if n_before < 0 or [*map(_summarize, ops[n_before:])] != calls:
        raise TrialError("it does not do the same when it runs again")
    node = find(run, n_before=n_before)
    number = trace_number(node.shape[dim], SizeOf(node, dim))
    return find_lineages(run).why(name, number)


def find_number(trace: Trace, tensor: Tensor | TensorMetadata) -> int | None:
    """Return the number of a tensor in a recording; None if it does not have it."""
    if isinstance(tensor, TensorMetadata):
        return tensor.tensor_id
    found = find_origin(tensor.untyped_storage())
    if found is not None and found[0].program is trace.program:
        shape = tuple(tensor.shape)
        for call in reversed(trace.ops):
            for seen in (*call.outputs, *call.inputs):
                if seen.storage_id == found[1] and seen.shape == shape:
                    return seen.tensor_id
    return None


def _find_path(trace: Trace, tensor: Tensor | TensorMetadata) -> str:
    """Return the name of a real tensor in the variables of a block; "" for none."""
    module = "" if trace.rerun is None else trace.rerun.module
    for name, value in [*vars(sys.modules.get(module, sys)).items()]:
        if value is tensor and not is_shells(name):
            return name
        if isinstance(value, nn.Module) and isinstance(tensor, Tensor):
            for path in find_paths(tensor, value):
                return f"{name}{path}"
    return ""


def _evaluate(path: str, run: Run, n_before: int) -> Node:
    """Return the node of a tensor by its name in the variables of a run."""
    tensor = None
    if n_before:
        with suppress(Exception):
            tensor = eval(path, dict(run.variables))  # noqa: S307  a path of ours
    if not isinstance(tensor, Tensor):
        raise TrialError("no cell that runs again makes this tensor")
    return run.observer.node_of(tensor)


def _find_node(
    run: Run, n_before: int, number: int, slot: tuple[int, int] | None
) -> Node:
    """Return the node of a tensor, by its number or its slot in the recording."""
    known = dict(run.observer.by_number)
    if slot is not None:
        at = n_before + slot[0]
        call = run.trace.ops[at]
        number = (*call.inputs, *call.outputs)[slot[1]].tensor_id
        output = slot[1] - len(call.inputs)
        if number not in known and output >= 0 and call.phase != "backward":
            _add_inside(run, known, at, output)
    if number not in known:
        _add_operators(run, known)
    node = known.get(number)
    if node is None:
        raise TrialError("the recording has no such tensor")
    return node


def _add_inside(run: Run, known: dict[int, Node], at: int, output: int) -> None:
    """Add a node for output number ``output`` of the inner operator ``at``."""
    metadata = run.trace.ops[at].outputs[output]
    for call in run.observer.calls:
        if at in call.rows:
            first, function = call.rows.start, call.function
            before = run.trace.ops[first:at]
            inner = ObservedCall(
                -1 - first, function, call.args, call.kwargs, call.line
            )
            inner.is_inside = True
            output += sum(len(op.outputs) for op in before)
            known[metadata.tensor_id] = Node(_make_like(metadata), inner, output)


def _add_operators(run: Run, known: dict[int, Node]) -> None:
    """Add nodes for tensors that only operators have, with the operators as calls."""
    for at, op in enumerate(run.trace.ops):
        made = [m for m in op.outputs if m.tensor_id not in known]
        if op.raised or not made:
            continue
        nodes = [_find(known, metadata) for metadata in op.inputs]
        kwargs = {name: _freeze(value, op, nodes) for name, value in op.arguments}
        call = ObservedCall(-1 - at, attrgetter(op.op)(torch.ops), (), kwargs, op.line)
        for output, metadata in enumerate(op.outputs):
            if metadata.tensor_id not in known:
                node = Node(_make_like(metadata), call, output)
                known[metadata.tensor_id] = node


def _find(known: dict[int, Node], metadata: TensorMetadata) -> Node:
    node = known.get(metadata.tensor_id)
    if node is None:
        node = known[metadata.tensor_id] = Node(_make_like(metadata), None, 0)
    return node


def _freeze(value: Any, op: OpCall, nodes: list[Node]) -> Any:
    if isinstance(value, TensorMetadata):
        return nodes[next(i for i, given in enumerate(op.inputs) if given is value)]
    if isinstance(value, tuple):
        return tuple(_freeze(item, op, nodes) for item in value)
    return value


def _make_like(metadata: TensorMetadata) -> torch.Tensor:
    return torch.empty(metadata.shape, dtype=metadata.dtype, device="meta")
