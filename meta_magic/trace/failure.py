"""The failed call of a trace in one line: where it was, and what it got."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["describe_failure"]

MAX_SHAPES: Final = 3
VALUES: Final = "MissingValueError: ", "ValueLimitError: "


def describe_failure(trace: "Trace") -> str:
    """Return ``h.0.proj: Linear(2304 -> 768) got (4, 512, 3072) at line 25``.

    Where the code of a module called what failed, that stands for the module's class.
    "" where no call of torch raised.
    """
    for call in trace.ops[-1:]:
        line = trace.error_line or call.line
        if call.raised and (trace.error or "").startswith(
            VALUES
        ):  # of ours, not torch's
            return f"line {line} needs a value that is not computed" if line else ""
        if call.raised:
            return "".join(walk_words(trace, call))
    return ""


def walk_words(trace: "Trace", call: OpCall) -> Iterator[str]:
    """Yield the words for a call that raised, in their order."""
    number = call.module_call
    within = None if number is None else trace.module_calls[number]
    if within is not None:
        root = None if within.root is None else trace.modules[within.root]
        name = within.module or (root.name if root else "")
        yield f"{name}: " if name else ""
    # Where the module was called, there is no other line between it and torch.
    if within is not None and within.position == call.position:
        yield describe_module(trace, within)
        given = [tensor for _, tensor in within.inputs]
    else:
        yield shorten_op(call.op)
        given = [*call.inputs]
    yield f" got {list_shapes(given)}" if given else " raised"
    line = trace.error_line or call.line
    yield f" at line {line}" if line else ""


def shorten_op(name: str) -> str:
    """Return an operator without namespace and overload, a function of torch alone."""
    first, *others = name.split(".")
    return others[0] if others and first != "torch" else name.rpartition(".")[2]


def describe_module(trace: "Trace", call: ModuleCall) -> str:
    """Return the class of a called module, and its sizes or those of its parameters."""
    raised = trace.program.raised
    if raised is not None and raised.sizes is not None:
        taken, given = raised.sizes
        return f"{call.class_name}({taken} -> {given})"
    nodes = () if call.root is None else trace.modules[call.root].walk()
    own = [
        f"{tensor.name} {format_shape(tensor.shape)}"
        for node in nodes
        if node.fqn == call.module
        for tensor in node.tensors
        if tensor.kind == "parameter" and not tensor.is_lazy
    ]
    return f"{call.class_name}({', '.join(own)})" if own else call.class_name


def list_shapes(tensors: Sequence[TensorMetadata]) -> str:
    """Return the first shapes, and how many more there are."""
    shapes = [tensor.shape for tensor in tensors]
    shown = ", ".join(map(format_shape, shapes[:MAX_SHAPES]))
    n_more = len(shapes) - MAX_SHAPES
    return f"{shown} +{n_more}" if n_more > 0 else shown
