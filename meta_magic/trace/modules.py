"""The module trees of a recording: ``trace.modules``.

Read ``ModuleNode`` first. ``at_any_depth`` is at the end: functions that call
themselves for each level of a tree would otherwise end with a ``RecursionError`` for
modules that are nested hundreds of levels deep. The command line imports this file
before it needs torch.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

    from meta_magic.trace.trace import Trace

CONTAINERS: Final = frozenset({"ModuleList", "ModuleDict", "Sequential"})
"""Classes of torch whose name says nothing of their content."""

PARAMETER_CONTAINERS: Final = frozenset({"ParameterList", "ParameterDict"})

MAX_KINDS: Final = 4
"""Runs of equal children that ``kind`` names; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTensor:
    """A parameter, buffer or plain tensor attribute of a module.

    Attributes:
        name: Name within its module.
        kind: ``parameter``, ``buffer``, or ``attribute`` for a tensor that is neither:
            it does not move with the module and is not in its ``state_dict``.
        is_persistent: Whether it is in the ``state_dict``.
        is_lazy: Whether the first call decides its shape; ``shape`` is then ().
        shape: Size of each dimension.
        dtype: Element type.
        device: Device that it is on.
        requires_grad: Whether autograd records operations on it.
        tied_to: Name within the root of an earlier parameter, the same tensor; or None.
        place: Device that the code names for it, while it is on ``meta``; or None.
        local_shape: For a DTensor, the size of each dimension of the part that this
            process holds; None for others. ``shape`` is that of the whole.
        sharding: For a DTensor, how it lies on its mesh: ``Shard(0)``; None for others.
        mesh: For a DTensor, of each dimension of its mesh the name, and the ranks in
            this process's group; () for others.

    Example:
        >>> with record() as trace:
        ...     layer = nn.Linear(3, 4)
        >>> [(tensor.name, tensor.shape) for tensor in trace.modules[0].tensors]
        [('weight', (4, 3)), ('bias', (4,))]
    """

    name: str
    kind: str
    is_persistent: bool
    is_lazy: bool
    shape: tuple[int, ...]
    dtype: "torch.dtype"
    device: "torch.device"
    requires_grad: bool
    tied_to: str | None
    place: "torch.device | None" = None
    local_shape: tuple[int, ...] | None = None
    sharding: str | None = None
    mesh: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements, of the whole DTensor; 0 while lazy."""
        return 0 if self.is_lazy else prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that this process holds; 0 while lazy."""
        shape = self.shape if self.local_shape is None else self.local_shape
        return 0 if self.is_lazy else prod(shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleClass:
    """The class of a module, and where it is defined.

    Attributes:
        name: Qualified name, without the function that defines it.
        path: Qualified name with that of its Python module.
        docs: Name of its page in torch's documentation, else None.
        file: File of its ``forward``; None where it has none in Python.
        line: First line of its ``forward`` there.
        has_extra_repr: Whether it has an ``extra_repr`` of its own.
        defaults: Default arguments of its ``__init__``, by name, written as Python
            does; those of a base class come after its own.
        parameters: Names of what its ``forward`` takes by position.
    """

    name: str
    path: str
    docs: str | None
    file: str | None
    line: int | None
    has_extra_repr: bool = False
    defaults: tuple[tuple[str, str], ...] = ()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNode:
    """One module in a tree, as it was when the recording ended.

    Attributes:
        name: Name within the parent; for a root its expression, ``layers[0]``, or "".
        fqn: Name within the root, as ``state_dict`` keys it; "" for the root.
        class_name: Qualified name of the class.
        tensors: Its own parameters, buffers and tensor attributes.
        children: Its direct submodules. One that is registered twice is listed twice,
            the second time with ``shared_with`` and no content.
        n_calls: Number of its calls.
        first_call: Index into ``Trace.module_calls`` of its first call, or None.
        shared_with: fqn under which the same module is listed first, else None.
        settings: Its ``extra_repr``, else its plain attributes and those of its
            configuration; not compared, as it may be any text.
        storages: Number of the storage of each of ``tensors``; -1 while it is lazy.
        definition: Its class; None where that was not looked at.

    Example:
        >>> with record() as trace:
        ...     model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        >>> [(node.fqn, node.class_name) for node in trace.modules[0].walk()]
        [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]
    """

    name: str
    fqn: str
    class_name: str
    tensors: tuple[ModuleTensor, ...]
    children: tuple["ModuleNode", ...]
    n_calls: int = 0
    first_call: int | None = None
    shared_with: str | None = None
    settings: str = field(default="", compare=False)
    storages: tuple[int, ...] = ()
    definition: ModuleClass | None = None

    def walk(self) -> Iterator["ModuleNode"]:
        """Yield this node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    @property
    def kind(self) -> str:
        """The class, or the content of a container: ``12 x Block, LayerNorm``.

        A user's class whose children are all numbered: ``Stack of 12 x Block``.
        """
        if self.class_name in PARAMETER_CONTAINERS and self.tensors:
            return f"{len(self.tensors)} x Parameter"
        if not self.children:
            return self.class_name
        if self.class_name in CONTAINERS:
            return list_classes(self.children)
        if all(child.name.isdecimal() for child in self.children):
            return f"{self.class_name} of {list_classes(self.children)}"
        return self.class_name

    @property
    def places(self) -> tuple[str, ...]:
        """The devices that the code names for tensors, the CPU for others; or ()."""
        tensors = [tensor for node in self.walk() for tensor in node.tensors]
        if all(tensor.place is None for tensor in tensors):
            return ()
        return tuple(sorted({str(tensor.place or "cpu") for tensor in tensors}))

    @property
    def n_parameters(self) -> int:
        """Elements of all parameters in the tree, tied ones counted once."""
        return count_elements([self], "parameter")

    @property
    def parameter_nbytes(self) -> int:
        """Bytes of all parameters in the tree, tied ones counted once."""
        return count_bytes([self], "parameter")

    @property
    def buffer_nbytes(self) -> int:
        """Bytes of all buffers in the tree, tied ones counted once."""
        return count_bytes([self], "buffer")


def walk_tensors(
    roots: Iterable[ModuleNode],
) -> Iterator[tuple[str, ModuleTensor, int]]:
    """Yield each tensor of some trees: its name with the root's, it, its storage."""
    for root in roots:
        for node in root.walk():
            for tensor, storage in zip(node.tensors, node.storages, strict=False):
                parts = root.name, node.fqn, tensor.name
                yield ".".join(filter(None, parts)), tensor, storage


def distinct_tensors(roots: Sequence[ModuleNode]) -> Iterator[ModuleTensor]:
    """Yield the tensors of some trees, those that are tied or in several trees once."""
    for _, tensor in locate_tensors(roots):
        yield tensor


def locate_tensors(
    roots: Sequence[ModuleNode],
) -> Iterator[tuple[ModuleNode, ModuleTensor]]:
    """Yield distinct tensors, each with the first module that has it."""
    earlier: set[tuple[int, tuple[int, ...]]] = set()
    for root in roots:
        own = set()  # parameters of one tree may be parts of one storage
        for node in root.walk():
            for tensor, storage in zip(node.tensors, node.storages, strict=True):
                key = storage, tensor.shape
                if tensor.tied_to is None and (tensor.is_lazy or key not in earlier):
                    own.add(key)
                    yield node, tensor
        earlier |= own


def count_elements(roots: Sequence[ModuleNode], kind: str) -> int:
    """Return the number of elements of all distinct tensors of a kind."""
    return sum(t.numel for t in distinct_tensors(roots) if t.kind == kind)


def count_bytes(roots: Sequence[ModuleNode], kind: str) -> int:
    """Return the bytes of all distinct tensors of a kind."""
    return sum(t.nbytes for t in distinct_tensors(roots) if t.kind == kind)


def list_classes(nodes: Sequence[ModuleNode]) -> str:
    """Return the classes of neighbours, each with how many there are in a row."""
    runs = [(name, len([*run])) for name, run in groupby(n.class_name for n in nodes)]
    if len(runs) == 1:
        return f"{len(nodes)} x {nodes[0].class_name}"
    named = runs if len(runs) <= MAX_KINDS else runs[: MAX_KINDS - 1]
    parts = [name if n == 1 else f"{n} x {name}" for name, n in named]
    n_more = len(nodes) - sum(n for _, n in named)
    return ", ".join([*parts, f"… {n_more:,} more"] if n_more else parts)


P = ParamSpec("P")
T = TypeVar("T")


CALLS_BY_LEVEL: Final = 8
SHALLOW: Final = 30
"""Levels that Python's recursion limit allows anyway."""


def at_any_depth(
    function: Callable[Concatenate["Trace", P], T],
) -> Callable[Concatenate["Trace", P], T]:
    """Raise Python's recursion limit while a function walks deep module trees."""

    @wraps(function)
    def run(trace: "Trace", /, *args: P.args, **kwargs: P.kwargs) -> T:
        nodes = (node for root in trace.modules for node in root.walk())
        depth = max((node.fqn.count(".") for node in nodes), default=0)
        if depth <= SHALLOW:
            return function(trace, *args, **kwargs)
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + depth * CALLS_BY_LEVEL)
        try:
            return function(trace, *args, **kwargs)
        finally:
            sys.setrecursionlimit(limit)

    return run
