"""The columns of the module trees, and the lines into which a tree is folded.

The text summary, the HTML tree and the Modules view read :data:`MODULE_COLUMNS`. A new
column is one entry: its name, its help, how its value is read of a module, and how the
values of a run of identical siblings add up. ``build_tree`` folds a module tree into
lines: 80 identical blocks are one line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from meta_magic.trace.calls import ModuleCalls
from meta_magic.trace.modules import ModuleNode, ModuleTensor
from meta_magic.trace.op_columns import Column
from meta_magic.trace.units import format_bytes, format_count, format_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """A module, or identical siblings that are shown as one line.

    Attributes:
        devices_above: Devices that the code names for tensors of the parent, or None.
    """

    nodes: Sequence[ModuleNode]
    calls: ModuleCalls
    devices_above: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleColumn(Column):
    """A column of the module trees.

    Attributes:
        read: Gives the value of a module, which is sent to the report; None if the
            report has it already. An absent value is None.
        add_up: The value of a run: the ``sum`` of its values, or the ``first``.
        is_in_tree: Whether the text summary and the HTML tree have it, too.
        read_run: Gives the value of a run for these two, where ``read`` cannot.
        heading: Its heading in the HTML tree; None for the name.
        track: Its width there, as CSS writes it; None for ``width``.
    """

    read: Callable[[ModuleNode], Any] | None = None
    add_up: Literal["sum", "first"] = "first"
    is_in_tree: bool = True
    read_run: Callable[[Siblings], object] | None = None
    heading: str | None = None
    track: str | None = None

    def value_of(self, run: Siblings) -> object:
        """Return the value of a run for text and HTML, before it is formatted."""
        if self.read_run is not None:
            return self.read_run(run)
        if self.read is None:
            return None
        nodes = run.nodes if self.add_up == "sum" else run.nodes[:1]
        values = [value for node in nodes if (value := self.read(node)) is not None]
        return sum(values) if self.add_up == "sum" else next(iter(values), None)


def tree_columns() -> list[ModuleColumn]:
    """Return the columns of the text summary and of the HTML tree."""
    return [column for column in MODULE_COLUMNS if column.is_in_tree]


def label_run(run: Siblings) -> str:
    """Return ``name: Class`` or ``0-79: 80 x Class``; containers show their content."""
    node, n = run.nodes[0], len(run.nodes)
    name = node.name if n == 1 else f"{node.name}-{run.nodes[-1].name}"
    kind = node.kind if n == 1 else f"{n} x {node.class_name}"
    return f"{name}: {kind}" if name else kind


def find_flow(run: Siblings) -> tuple[str, str] | None:
    """Return the shapes that went in and came out; None if it was never called."""
    number = run.nodes[0].first_call
    if number is None:
        return None
    call = run.calls[number]
    sides = (call.inputs, call.outputs)
    entered, left = ([tensor.shape for _, tensor in side] for side in sides)
    return format_shapes(entered), format_shapes(left)


def format_shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the first shapes, and how many more there are."""
    if not shapes:
        return "none"
    more = f" +{len(shapes) - 1}" if len(shapes) > 1 else ""
    return format_shape(shapes[0]) + more


def list_marks(run: Siblings) -> tuple[str, ...]:
    """Return the marks of a module, or those of each module of a run."""
    marks = tuple(describe_marks(run.nodes))
    devices = () if run.devices_above is None else run.nodes[0].places
    if not devices or devices == run.devices_above:
        return marks
    return (f"on {', '.join(devices)}", *marks)


def describe_marks(nodes: Sequence[ModuleNode]) -> Iterator[str]:
    """Yield the marks of a module, or of each module of a run, and of its tensors."""
    node = nodes[0]
    if len(nodes) > 1 and node.n_parameters:
        nbytes = format_bytes(node.parameter_nbytes + node.buffer_nbytes)
        yield f"{format_count(node.n_parameters)}, {nbytes} each"
    if node.shared_with is not None:
        yield f"same module as {node.shared_with or 'the root'}"
    if node.n_calls > 1:
        yield f"called {node.n_calls:,} times"
    for tensor in node.tensors:
        yield from describe_tensor_marks(tensor)


def describe_tensor_marks(tensor: ModuleTensor) -> Iterator[str]:
    """Yield the marks of one tensor of a module."""
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


MODULE_COLUMNS: Final[tuple[ModuleColumn, ...]] = (
    ModuleColumn(
        name="name",
        help="Name within its parent, or first and last of a run of identical ones.",
        width=150,
        is_pinned=True,
        read_run=label_run,
        heading="module",
        track="minmax(170px, 2.2fr)",
    ),
    ModuleColumn(
        name="class",
        help="Class with its settings that are no defaults, or what a container holds.",
        width=190,
        is_pinned=True,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="output",
        help="Tensors that its first call returned.",
        width=140,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="parameters",
        help="Elements of all its parameters, tied ones counted once.",
        format="count",
        width=104,
        read_run=lambda run: sum(node.n_parameters for node in run.nodes),
        track="84px",
    ),
    ModuleColumn(
        name="time",
        help="Share of the modules' time after initialization, on the chosen device.",
        format="share",
        width=68,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="bytes",
        help="Bytes of all its parameters and buffers, tied ones counted once.",
        format="bytes",
        width=82,
        read_run=lambda run: sum(
            node.parameter_nbytes + node.buffer_nbytes for node in run.nodes
        ),
        track="76px",
    ),
    ModuleColumn(
        name="FLOPs",
        help="Floating-point operations of all its operators that have a formula.",
        format="flops",
        width=112,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="share",
        help="Its share of the FLOPs of all modules.",
        format="share",
        width=68,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="activations",
        help="Bytes of the tensors that its operators newly made in the forward phase.",
        format="bytes",
        width=98,
        is_in_tree=False,
    ),
    ModuleColumn(
        name="place",
        help="Devices that the code names for its tensors, which are all on meta.",
        width=124,
        is_in_tree=False,
        is_optional=True,
        read_run=lambda run: ", ".join(run.nodes[0].places),
    ),
    ModuleColumn(
        name="input",
        help="Tensors that its first call took.",
        format="flow",
        width=140,
        read_run=find_flow,
        heading="in → out",
        track="minmax(180px, 1.8fr)",
    ),
    ModuleColumn(
        name="marks",
        help="What is special about it: ties, buffers, calls, tensors that are real.",
        format="marks",
        width=100,
        read=lambda node: " · ".join(describe_marks([node])) or None,
        read_run=list_marks,
        heading="",
        track="minmax(110px, 2fr)",
    ),
)
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One line of the tree: a module, or a run of identical siblings.

    Attributes:
        values: The values of the columns of the tree, not yet formatted.
        children: The lines below it; those of a run are listed once.
    """

    values: tuple[object, ...]
    children: tuple["TreeLine", ...]


def build_tree(root: ModuleNode, calls: ModuleCalls) -> TreeLine:
    """Return the folded lines of a module tree, given the module calls of its trace."""
    return build_line([root], calls, () if root.places else None)


def build_line(
    nodes: Sequence[ModuleNode], calls: ModuleCalls, above: tuple[str, ...] | None
) -> TreeLine:
    """Return the line of a module, or of a run; arguments as in :class:`Siblings`."""
    run = Siblings(nodes=nodes, calls=calls, devices_above=above)
    devices = None if above is None else nodes[0].places
    runs = split_runs(nodes[0].children)
    return TreeLine(
        values=tuple(column.value_of(run) for column in tree_columns()),
        children=tuple(build_line(below, calls, devices) for below in runs),
    )


def split_runs(nodes: Sequence[ModuleNode]) -> Iterator[list[ModuleNode]]:
    """Group numbered neighbours that differ in nothing but their names."""
    for key, run in groupby(
        nodes, key=lambda node: structure(node) if node.name.isdecimal() else node.fqn
    ):
        if isinstance(key, str):
            yield from ([node] for node in run)
        else:
            yield list(run)


def structure(node: ModuleNode) -> tuple[object, ...]:
    """Return the class, tensors and children of a module without their names."""
    tensors = tuple(
        (t.name, t.kind, t.shape, t.dtype, t.place, t.requires_grad, t.tied_to is None)
        for t in node.tensors
    )
    children = tuple((child.name, structure(child)) for child in node.children)
    return (node.class_name, tensors, children, node.n_calls, node.shared_with)
