"""A call that was observed, ready to be made again with other numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from meta_magic.explain.lineage.dependence import Group, Target, find_groups, list_units
from meta_magic.explain.lineage.formulas import UNKNOWN, Formula, find_formula
from meta_magic.explain.lineage.observed_calls import Call, Node
from meta_magic.explain.lineage.traced_numbers import (
    SizeOf,
    origin_of,
    strip_nested,
    trace_number,
)
from meta_magic.explain.probing import Probe, Variable
from meta_magic.trace.failed_call import FailedCall, Operand, walk_arguments
from meta_magic.trace.signature import Geometry, TensorArgument

__all__ = ["CallProbe"]

META: Final = torch.device("meta")

CRASHING: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Native functions that end the process where a size is wrong: they are not tried."""


class CallProbe:
    """Makes an observed call again.

    Args:
        call: The call.
        named: Its operands by the names that they have, if they have any.

    Attributes:
        probe: Makes it.
        given: The numbers that it depends on and that come from somewhere, traced.
    """

    def __init__(self, call: Call, named: Sequence[Operand] = ()) -> None:
        nodes: list[Node] = []
        args, kwargs = (freeze(part, nodes) for part in (call.args, call.kwargs))
        operands = tuple(named) or tuple(map(describe_operand, nodes))
        failed = make_call(call.function, args, kwargs, operands)
        self.probe = Probe(call.function, failed)
        self.given: dict[Variable, Any] = {
            Variable(number, dim): trace_number(size, SizeOf(node, dim))
            for number, node in enumerate(nodes)
            for dim, size in enumerate(node.shape)
        }
        for path, value in walk_arguments((call.args, call.kwargs)):
            if origin_of(value) is not None and isinstance(value, int):
                self.given[Variable(-1, path)] = value
        geometries = tuple(operand.geometry for operand in operands)
        self._call = call.function, geometries, repr((args, kwargs))
        self._is_tried = getattr(call.function, "__name__", "") not in CRASHING
        self._units: list[Group] = []

    def tie(self, key_of: Callable[[Any], object]) -> object:
        """Find which numbers are the same one; return what calls alike have in common.

        An argument may be the size of an operand, as of ``x.view(x.shape[0], -1)``.

        Args:
            key_of: Tells numbers apart by where they come from.
        """
        values = self.probe.values
        given = {values[v] for v in self.given if not v.is_size}
        keys = {v: key_of(n) for v, n in self.given.items() if values[v] in given}
        self._units = list_units(self.probe, keys)
        return *self._call, tuple(self._units), frozenset(self.given)

    def find_formula(self, node: Node, dim: int) -> Formula:
        """Return how a size of what it returned comes from what it was given."""
        if not self._is_tried:
            return Formula(UNKNOWN, ())
        target = Target(self.probe, node.output, dim, node.shape)
        if target.size is None:
            return Formula(UNKNOWN, ())
        groups = find_groups(self.probe, target, self._units, self.given.keys())
        return find_formula(self.probe, target, groups)


def freeze(value: Any, nodes: list[Node]) -> Any:
    """Return plain arguments; a tensor stands as its number among nodes.

    All is on meta, whatever device is named.
    """
    if isinstance(value, Node):
        known = (number for number, node in enumerate(nodes) if node is value)
        number = next(known, len(nodes))
        nodes[number:] = nodes[number:] or [value]
        return TensorArgument(number)
    if type(value) in (list, tuple):
        return type(value)(freeze(item, nodes) for item in value)
    if isinstance(value, Mapping):
        items = {key: freeze(item, nodes) for key, item in value.items()}
        return items | ({"device": "meta"} if items.get("device") else {})
    return META if isinstance(value, torch.device) else strip_nested(value)


def describe_operand(node: Node) -> Operand:
    """Return a tensor as a call was given it."""
    tensor = node.tensor
    stride = offset = None
    is_as_it_was = tuple(tensor.shape) == node.shape  # else written in place
    if is_as_it_was and tensor.layout is torch.strided:
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
    return Operand(
        name="",
        aliases=(),
        tensor=-1,
        geometry=Geometry(
            shape=node.shape,
            stride=stride,
            storage_offset=offset,
            dtype=tensor.dtype,
            device=tensor.device,
            layout=tensor.layout,
        ),
        requires_grad=False,
        is_leaf=True,
    )


def make_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    operands: tuple[Operand, ...],
) -> FailedCall:
    """Return the record of a call that can be made again."""
    return FailedCall(
        function=function,
        args=args,
        kwargs=kwargs,
        operands=operands,
        is_whole=True,
        frames=(),
    )
