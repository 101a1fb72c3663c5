"""Keep each call of a function of torch, with the traced numbers that it is given.

``x.view(b, -1)`` is kept with the origin of ``b``; ``x.shape`` is answered with numbers
that know which size of which tensor they are. :class:`CallObserver` is entered above a
recording's own modes. It keeps all tensors, and patches the mode below for good: it
runs in a child that ends after its answer.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, MethodWrapperType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meta_magic.explain.lineage.traced_numbers import (
    SizeOf,
    Worked,
    regain,
    strip_nested,
    trace_number,
)
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept import function_mode
from meta_magic.torch_private.modes import function_mode_stack
from meta_magic.torch_private.tensor_internals import address_of_storage

SHAPE: Final[Any] = Tensor.shape
SIZE: Final[Any] = Tensor.size
NUMEL: Final = frozenset[Any]({Tensor.numel, Tensor.nelement})


@dataclass(slots=True, eq=False)
class Node:
    """A tensor as a call returned it; a write in place makes a new node.

    Attributes:
        call: The call that returned it; None for a tensor from outside of the block.
    """

    tensor: Tensor
    call: "ObservedCall | None"
    output: int
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = _read_shape(self.tensor)


@dataclass(slots=True, eq=False)
class ObservedCall:
    """A call of a function of torch.

    Attributes:
        index: Among the observed calls; -1 - n for the operators from n on.
        args: Positional arguments: numbers are traced, tensors are nodes.
        kwargs: Keyword arguments, likewise.
        line: The innermost line of the block's file; None if there is none.
        is_inside: Whether ``outputs`` are what its operators made, one after another.
        rows: The indexes of the operators that it ran.
    """

    index: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int | None
    outputs: list[Node] = field(default_factory=list)
    has_failed: bool = False
    is_inside: bool = False
    rows: range = range(0)


class CallObserver(TorchFunctionMode):
    """Keeps the calls of torch's functions, and answers sizes with traced numbers.

    Attributes:
        calls: The calls that returned tensors, and the one that failed, in order.
        by_number: Nodes, by the tensors' numbers in the recording.
        modules: Modules whose methods made a call, by ``id``.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.calls: list[ObservedCall] = []
        self.by_number: dict[int, Node] = {}
        self.modules: dict[int, nn.Module] = {}
        self._file = file
        self._nodes: dict[int, Node] = {}
        self._by_storage: dict[int, Node] = {}
        function_mode.frame_at = _find_caller  # type: ignore[assignment]  # as it is used
        modes = (
            m
            for m in function_mode_stack()
            if isinstance(m, function_mode.FunctionMode)
        )
        self._registry = next(modes).registry

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function; keep its arguments and results."""
        is_attribute = type(func) is MethodWrapperType
        if (is_attribute and func.__self__ is SHAPE) or func is SIZE:
            return self._answer_size(*args, **(kwargs or {}))
        if func in NUMEL:
            return self._answer_numel(*args)
        plain = strip_nested(args), strip_nested(dict(kwargs or {}))
        if is_attribute and not isinstance(returned := func(*plain[0]), Tensor):
            return returned
        line = self._find_line(sys._getframe(1))
        given = self._freeze(args), self._freeze(dict(kwargs or {}))
        call = ObservedCall(len(self.calls), func, *given, line)
        first = self._registry.clock.now
        try:
            returned = returned if is_attribute else func(*plain[0], **plain[1])
        except Exception:
            call.has_failed = True
            self.calls.append(call)
            raise
        tensors = tensors_in(returned)
        if tensors:
            self.calls.append(call)
            call.rows = range(first, self._registry.clock.now)
            self._number(tensors_in(*plain))  # a parameter has none before it is read
            call.outputs = [self._add(t, call, i) for i, t in enumerate(tensors)]
        return returned

    def node_of(self, tensor: Tensor) -> Node:
        """Return the node of a tensor as it is now."""
        node = self._nodes.get(id(tensor))
        if node is not None and node.tensor is tensor:
            return node
        # A parameter is another object than the tensor that it was made of.
        twin = self._by_storage.get(_find_storage(tensor))
        if twin is None or twin.shape != _read_shape(tensor):
            return self._add(tensor, None, 0)
        return self._add(tensor, twin.call, twin.output)

    def _add(self, tensor: Tensor, call: ObservedCall | None, output: int) -> Node:
        node = self._nodes[id(tensor)] = Node(tensor, call, output)
        self._by_storage[_find_storage(tensor)] = node
        self._number([tensor])
        return node

    def _number(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            seen = self._registry.find(tensor)
            if seen is not None:
                self.by_number[seen[0]] = self._nodes[id(tensor)]

    def _answer_size(self, tensor: Tensor, dim: Any = None) -> Any:
        node = self.node_of(tensor)
        sizes = [trace_number(n, SizeOf(node, i)) for i, n in enumerate(node.shape)]
        return torch.Size(sizes) if dim is None else sizes[dim]

    def _answer_numel(self, tensor: Tensor) -> int:
        sizes = self._answer_size(tensor)
        formula = " * ".join(["{}"] * len(sizes)) or "1"
        made: int = trace_number(tensor.numel(), Worked(formula, tuple(sizes)))
        return made

    def _freeze(self, value: Any) -> Any:
        """Return arguments with nodes instead of tensors."""
        kind = type(value)
        if isinstance(value, Tensor):
            return self.node_of(value)
        if kind in (list, tuple):
            return kind(map(self._freeze, value))
        if kind is dict:
            return {key: self._freeze(item) for key, item in value.items()}
        return tuple(value) if kind is torch.Size else regain(value)

    def _find_line(self, frame: FrameType | None) -> int | None:
        """Return the innermost line of the block; keep the modules around it."""
        line = None
        while frame is not None:
            code = frame.f_code
            owner = frame.f_locals.get("self") if code.co_argcount else None
            if isinstance(owner, nn.Module):
                self.modules[id(owner)] = owner
            if code.co_filename == self._file:
                line = line or frame.f_lineno
                if code.co_name == "<module>":
                    break
            frame = frame.f_back
        return line


def _find_caller(depth: int) -> FrameType:
    """Return the frame that called the mode below, or the observer if that did."""
    frame = sys._getframe(depth + 1)
    is_own = frame.f_code is CallObserver.__torch_function__.__code__
    return frame.f_back if is_own and frame.f_back is not None else frame


def _read_shape(tensor: Tensor) -> tuple[int, ...]:
    try:
        return tuple(map(int, tensor.shape))
    except (RuntimeError, ValueError):  # an uninitialized parameter
        return ()


def _find_storage(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, or of the tensor if it has none."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, not made yet
        return id(tensor)
    address: int = address_of_storage(storage)
    return address
