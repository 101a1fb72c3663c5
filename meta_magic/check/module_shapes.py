"""What a baseline keeps of each module: its class, parameters, and its first call."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meta_magic.trace.calls import describe_tensor
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace

__all__ = ["describe_modules"]


def describe_modules(trace: "Trace") -> dict[str, dict[str, Any]]:
    """Return by name what the modules of a trace are, and take and return.

    A name is that of the root, as it is written, and the module's own in there. What
    stands twice in a tree is described where it stood first.
    """
    return {
        ".".join(filter(None, (root.name, node.fqn))): describe_module(trace, node)
        for root in trace.modules
        for node in root.walk()
        if node.shared_with is None
    }


def describe_module(trace: "Trace", node: "ModuleNode") -> dict[str, Any]:
    """Return one module as plain data."""
    described: dict[str, Any] = {"class": node.class_name}
    parameters = dict(list_parameters(node))
    if parameters:
        described["parameters"] = parameters
    if node.first_call is not None:
        call = trace.module_calls[node.first_call]
        described["inputs"] = [describe_tensor(tensor) for _, tensor in call.inputs]
        described["outputs"] = [describe_tensor(tensor) for _, tensor in call.outputs]
    return described


def list_parameters(node: "ModuleNode") -> Iterator[tuple[str, str]]:
    """Yield name, dtype and shape of a module's own parameters."""
    for tensor in node.tensors:
        if tensor.kind == "parameter":
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield tensor.name, f"{dtype} {format_shape(tensor.shape)}"
