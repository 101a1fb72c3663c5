"""Fold a module tree into the lines that are shown of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meta_magic.trace.calls import ModuleCall
from meta_magic.trace.modules import ModuleNode, ModuleTensor
from meta_magic.trace.sequences import ModuleCalls
from meta_magic.trace.units import format_bytes, format_count, format_shape

__all__ = ["TreeLine", "build_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One shown line: a module, or a run of identical siblings.

    Attributes:
        label: ``name: Class``, or ``0-79: 80 x Class`` for a run.
        n_parameters: Elements of all its parameters, tied ones counted once.
        nbytes: Bytes of all its parameters and buffers, tied ones counted once.
        flow: Shapes in and out, such as ``(1, 8) -> (1, 8, 64)``; "" if never called.
        marks: What is special about it, each a few words.
        children: The lines below it; those of a run stand once.
    """

    label: str
    n_parameters: int
    nbytes: int
    flow: str
    marks: tuple[str, ...]
    children: tuple["TreeLine", ...]


def build_tree(root: ModuleNode, calls: ModuleCalls) -> TreeLine:
    """Return the folded lines of a module tree.

    Args:
        root: The tree.
        calls: The module calls of the same trace, for the shapes in and out.
    """
    return build_line([root], calls)


def build_line(run: Sequence[ModuleNode], calls: ModuleCalls) -> TreeLine:
    """Return the line of a module, or of a run of identical ones."""
    node = run[0]
    name = node.name if len(run) == 1 else f"{node.name}-{run[-1].name}"
    count = "" if len(run) == 1 else f"{len(run)} x "
    return TreeLine(
        label=f"{name}: {count}{node.class_name}" if name else node.class_name,
        n_parameters=sum(member.n_parameters for member in run),
        nbytes=sum(m.parameter_nbytes + m.buffer_nbytes for m in run),
        flow="" if node.first_call is None else format_flow(calls[node.first_call]),
        marks=tuple(describe_marks(run)),
        children=tuple(build_line(r, calls) for r in split_runs(node.children)),
    )


def split_runs(nodes: Sequence[ModuleNode]) -> Iterator[list[ModuleNode]]:
    """Group neighbours that are numbered and alike in all but their names."""
    for key, run in groupby(nodes, key=likeness):
        if isinstance(key, str):
            yield from ([node] for node in run)
        else:
            yield list(run)


def likeness(node: ModuleNode) -> object:
    """Return what two numbered siblings share when they are built alike."""
    return structure(node) if node.name.isdecimal() else node.fqn


def structure(node: ModuleNode) -> tuple[object, ...]:
    """Return the class, tensors and children of a module without their names."""
    tensors = tuple(
        (t.name, t.kind, t.shape, t.dtype, t.requires_grad, t.tied_to is None)
        for t in node.tensors
    )
    children = tuple((child.name, structure(child)) for child in node.children)
    return (node.class_name, tensors, children, node.n_calls, node.shared_with)


def format_flow(call: ModuleCall) -> str:
    """Return the shapes that went in and came out of a call."""
    sides = (call.inputs, call.outputs)
    shown = [format_shapes([t.shape for _, t in side]) for side in sides]
    return f"{shown[0]} -> {shown[1]}"


def format_shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the first shapes, and how many more there are."""
    if not shapes:
        return "none"
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return format_shape(shapes[0]) + more


def describe_marks(run: Sequence[ModuleNode]) -> Iterator[str]:
    """Yield what is special about a module, or about each of a run, and its tensors."""
    node = run[0]
    if len(run) > 1 and node.n_parameters:
        nbytes = format_bytes(node.parameter_nbytes + node.buffer_nbytes)
        yield f"{format_count(node.n_parameters)}, {nbytes} each"
    if node.shared_with is not None:
        yield f"same module as {node.shared_with or 'the root'}"
    if node.n_calls > 1:
        yield f"called {node.n_calls:,} times"
    for tensor in node.tensors:
        yield from describe_tensor_marks(tensor)


def describe_tensor_marks(tensor: ModuleTensor) -> Iterator[str]:
    """Yield what is special about one tensor of a module."""
    if tensor.tied_to is not None:
        yield f"{tensor.name} tied to {tensor.tied_to}"
    if tensor.is_lazy:
        yield f"{tensor.name} lazy"
    if tensor.kind == "buffer":
        kept = "" if tensor.is_persistent else ", not persistent"
        yield f"buffer {tensor.name} {format_shape(tensor.shape)}{kept}"
    if tensor.kind == "attribute":
        yield f"tensor attribute {tensor.name} {format_shape(tensor.shape)}"
    if tensor.device.type != "meta" and not tensor.is_lazy:
        yield f"{tensor.name} real on {tensor.device}"
