"""Which calls each statement of the reader's own code made, and how it names operands.

A trace knows the span of source that made each operator. Names follow from it: what
``x = a + b`` makes is ``x``, and the inputs of ``a + b`` are ``a`` and ``b``, also
where they are arguments of a function. Read :func:`read_lines` first.

What a lesson says of elements and of wrong shapes is at the end.
"""

import ast
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from meta_magic.explain.edits.program_text import SourceText, span_of
from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata
from meta_magic.trace.program import first_operators

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


Shape: TypeAlias = tuple[int, ...]
LONGEST: Final = 28
"""Characters of code that names an operand."""
MODULES: Final = frozenset({"functional", "self", "math"})
"""Names before a dot that are no tensor, besides what the code imports."""
COMPREHENSION: Final = re.compile(r"(\.<locals>\.|^)<(genexpr|(list|set|dict)comp)>.*")
"""The end of a function's name that is no scope for the names of tensors."""
COMPREHENSIONS: Final = (ast.GeneratorExp, ast.ListComp)


class Group(NamedTuple):
    """The operators of one call of a function of torch.

    Attributes:
        function: The function's last name, such as ``matmul``.
        node: The expression that called it, if it is known.
        module: The outermost call of a module that made it at this expression.
        inputs: The tensors from outside of the group, in order of use.
        outputs: What the function returned.
        parts: The modules that the module calls; a call with parts is not drawn.
    """

    function: str
    ops: Sequence[OpCall]
    node: ast.AST | None
    module: ModuleCall | None
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]
    parts: Sequence[ModuleCall] = ()

    @property
    def output(self) -> TensorMetadata:
        """What the function returned, or the first part of it."""
        return self.outputs[0]


@dataclass
class Line:
    """A statement as it ran for the first time.

    Attributes:
        number: Its line of the cell.
        target: The name that it gives its result; "" without one.
        shapes: The variables in it that are tensors, with their shapes before it.
        names: The name or the code of each tensor, by its number.
    """

    number: int
    code: str
    statement: ast.stmt
    target: str = ""
    groups: list[Group] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What a question calls the result."""
        made = self.groups[-1].output
        name = self.target or self.names.get(made.tensor_id, "…")
        if name.endswith("…"):  # it is cut
            name = "the result"
        return f"the new {name}" if self.target in self.shapes else name


def read_lines(trace: "Trace") -> list[Line]:
    """Return the statements of the reader's own code that made operators, in order."""
    reader = Reader(trace)
    for first, ops in split_functions(trace):
        position = first.position
        if first.phase != "backward" and position and position.file == reader.file:
            reader.add(ops)
    reader.end_line()
    return reader.lines


def split_functions(trace: "Trace") -> Iterator[tuple[OpCall, list[OpCall]]]:
    """Yield the operators of each call of a function."""
    firsts = first_operators(trace.program)
    group: list[OpCall] = []
    for op in trace.ops[: len(firsts)]:  # one that raised has made nothing
        if group and firsts[op.index] != group[0].index:
            yield group[0], group
            group = []
        group.append(op)
    if group:
        yield group[0], group


class Scope(NamedTuple):
    """What a function of the reader's, or the cell, calls its tensors.

    Attributes:
        names: The name or the code of a tensor, by its number.
        shapes: The shape of the newest tensor of each name.
    """

    names: dict[int, str]
    shapes: dict[str, Shape]


class Reader:
    """Reads the calls of a trace beside the syntax tree of its code."""

    def __init__(self, trace: "Trace") -> None:
        self.trace = trace
        self.lines: list[Line] = []
        self.file = trace.cell.file or next(
            (op.position.file for op in trace.ops if op.line and op.position), ""
        )
        text = trace.source or "".join(linecache.getlines(self.file))
        self.first = trace.cell.first_line if trace.source else 1
        try:
            self.program = SourceText(text)
        except SyntaxError:  # a magic in it
            self.program = SourceText("")
        expressions = self.program.find(ast.expr)
        self.nodes = {span_of(node): node for node in reversed(expressions)}
        self.statements = {
            number: node
            for node in self.program.find(ast.stmt)
            if not hasattr(node, "body")
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        self.parts: dict[int | None, list[ModuleCall]] = {}
        for call in trace.module_calls:
            self.parts.setdefault(call.parent, []).append(call)
        self.line: Line | None = None
        self.seen: set[ast.stmt] = set()
        self.scopes: dict[str, Scope] = {}
        self.scope = Scope({}, {})

    def add(self, ops: list[OpCall]) -> None:
        """Add the operators of one call of a function to their line."""
        position = ops[0].position
        if position is None:
            return
        number = position.line - self.first + 1
        statement = self.statements.get(number)
        if statement is None or not ops[-1].outputs:
            return
        if self.line is None or self.line.statement is not statement:
            self.end_line()
            code = self.program.read(statement)
            self.line = Line(statement.lineno + self.first - 1, code, statement)
            function = COMPREHENSION.sub("", position.function) or "<module>"
            self.scope = self.scopes.setdefault(function, Scope({}, {}))
            if statement not in self.seen:
                found = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                names = [n.id for n in sorted(found, key=lambda n: n.col_offset)]
                known = self.scope.shapes
                self.line.shapes = {n: known[n] for n in names if n in known}
        end = position.end_line - self.first + 1
        span = number, position.column, end, position.end_column
        node = self.nodes.get(span)
        group = self.make_group(ops, node)
        self.line.groups.append(group)
        self.name_operands(group)
        if node is not None and ops[0].phase != "init":
            text = self.program.read(node)
            short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
            code = " ".join(short.split())
            self.scope.names.setdefault(group.output.tensor_id, code)
        if statement not in self.seen:
            self.line.names = self.scope.names.copy()

    def make_group(self, ops: list[OpCall], node: ast.AST | None) -> Group:
        """Return the group of operators, with the module that was called here."""
        made = {tensor.tensor_id for op in ops for tensor in op.outputs}
        inputs = {t.tensor_id: t for op in ops for t in op.inputs}
        outside = [t for i, t in inputs.items() if i not in made or len(ops) == 1]
        function = (ops[0].function or ops[0].op.split(".")[1]).rpartition(".")[2]
        if function == "linear" and ops[0].op == "aten.t.default":
            outside = [*outside[-1:], *outside[:-1]]  # the weight is read first
        module, at = None, ops[0].module_call
        while at is not None:
            call = self.trace.module_calls[at]
            if call.position == ops[0].position:
                module = call
            at = call.parent
        parts = self.parts.get(module.index, ()) if module is not None else ()
        outputs = ops[-1].outputs
        name = function.strip("_")
        if not (ops[-1].is_view or ops[-1].op.split(".")[1] == name):
            outputs = outputs[:1]  # the others are for the backward pass
        return Group(name, ops, node, module, outside, outputs, parts)

    def name_operands(self, group: Group) -> None:
        """Give the operands of a call the names by which the code calls them."""
        given = group.inputs
        if group.module is not None:
            given = [tensor for _, tensor in group.module.inputs]
        operands = self.list_operands(group)
        if group.function == "embedding" and group.module is None:
            operands.reverse()  # its operator takes the table first
        if len(operands) > len(given) and self.has_receiver(group):
            operands, given = operands[:1], given[:1]  # the others may be numbers
        if len(operands) != len(given):
            return  # a number is among them, or one tensor is there twice
        for node, tensor in zip(operands, given, strict=True):
            if isinstance(node, ast.Name) and self.line is not None:
                self.bind(node.id, tensor)
                self.line.shapes[node.id] = tensor.shape

    def list_operands(self, group: Group) -> list[ast.expr]:
        """Return the expressions that are the operands of a call, in order."""
        node = group.node
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.Subscript | ast.Attribute):
            return [node.value]
        if not isinstance(node, ast.Call):
            return []
        operands = [node.func.value] if self.has_receiver(group) else []  # type: ignore[attr-defined]
        for argument in node.args:
            if isinstance(argument, ast.List | ast.Tuple):
                operands += argument.elts
            elif not isinstance(argument, ast.Constant):
                operands.append(argument)
        return operands

    def has_receiver(self, group: Group) -> bool:
        """Whether a call is that of a tensor's method, such as ``x.sum(0)``."""
        function = getattr(group.node, "func", None)
        if group.module is not None or not isinstance(function, ast.Attribute):
            return False
        name = ast.unparse(function.value).split(".")[0]
        return name not in self.program.imported | MODULES

    def bind(self, name: str, tensor: TensorMetadata) -> None:
        """Name a tensor."""
        self.scope.names[tensor.tensor_id] = name
        self.scope.shapes[name] = tensor.shape

    def end_line(self) -> None:
        """Name what the statement made, and keep it if it ran for the first time."""
        line, self.line = self.line, None
        if line is None:
            return
        statement = line.statement
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for target in targets:
            for name in list_names(target):
                self.scope.shapes.pop(name, None)
            for name, tensor in self.find_results(line, target):
                self.bind(name, tensor)
                line.target = line.target or name
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Subscript) and value.value is line.groups[-1].node:
            outputs = find_outputs(line, value, 1) or line.groups[-1].outputs
            line.groups[-1] = line.groups[-1]._replace(outputs=outputs)
        if isinstance(value, COMPREHENSIONS):
            nodes = [group.node for group in line.groups]
            del line.groups[nodes.index(nodes[-1]) + 1 :]  # all but the first element
        if statement not in self.seen:
            self.seen.add(statement)
            self.lines.append(line)

    def find_results(
        self, line: Line, target: ast.expr | None
    ) -> Iterator[tuple[str, TensorMetadata]]:
        """Yield the names of an assignment, each with the tensor that it is given."""
        names, value = list_names(target), getattr(line.statement, "value", None)
        if line.groups[-1].ops[0].phase == "init":
            return  # a module, whose parameters these are
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for name, part in zip(names, value.elts, strict=False):
                made = find_outputs(line, part, 1)
                yield from zip([name], made, strict=False)
            return
        outputs = find_outputs(line, value, len(names))
        if isinstance(target, ast.Tuple):
            if len(outputs) == len(names):
                yield from zip(names, outputs, strict=True)
        elif isinstance(target, ast.Name) and outputs:
            yield f"{target.id}[0]" if len(outputs) > 1 else target.id, outputs[0]


def list_names(target: ast.expr | None) -> list[str]:
    """Return the names that are assigned, in the order of the code."""
    if isinstance(target, ast.Name):
        return [target.id]
    elements = target.elts if isinstance(target, ast.Tuple | ast.List) else ()
    return [name for element in elements for name in list_names(element)]


def find_outputs(
    line: Line, value: ast.expr | None, n: int
) -> Sequence[TensorMetadata]:
    """Return the tensors of a statement's expression; none if they are not known.

    Args:
        n: How many the statement unpacks.
    """
    inside = [g for g in line.groups if g.node is None or is_inside(g.node, value)]
    if not inside:
        return ()
    last = inside[-1]
    if isinstance(value, COMPREHENSIONS):
        return [group.output for group in inside if group.node is last.node]
    outputs = last.outputs
    if isinstance(value, ast.Subscript) and value.value is last.node:  # of a tuple
        index = value.slice.value if isinstance(value.slice, ast.Constant) else None
        return outputs[index : index + 1] if type(index) is int else ()
    if last.node is not None and last.node is not value:
        return ()  # a function of the reader's own
    if last.module is not None:
        outputs = [tensor for _, tensor in last.module.outputs]
    elif n > len(outputs):  # as of torch.meshgrid, which makes each by itself
        read = {t.tensor_id for op in last.ops for t in op.inputs}
        outputs = [t for op in last.ops for t in op.outputs if t.tensor_id not in read]
    return outputs


def is_inside(node: ast.AST | None, whole: ast.AST | None) -> bool:
    """Whether an expression is a part of another one, or it."""
    parts = ast.walk(whole) if whole is not None else ()
    return node is not None and any(part is node for part in parts)


def describe_address(index: Sequence[int], tensor: TensorMetadata) -> str:
    """Return the way from an index to an address, as a sentence without its end."""
    steps = zip(index, tensor.stride or (), strict=True)
    terms = [f"{i}·{step}" for i, step in steps]
    first = tensor.storage_offset or 0
    start = f"It begins at {first}. " if first else ""
    path = " + ".join([*([str(first)] * bool(first)), *terms])
    return f"{start}The strides lead to {path} = {to_address(index, tensor)}"


def describe_index(name: str, tensor: TensorMetadata, number: int) -> str:
    """Return which element of a variable has a number, row by row."""
    if not name.isidentifier() or len(tensor.shape) < 2:  # noqa: PLR2004
        return f"number {number} of {name}"
    steps = [prod(tensor.shape[dim + 1 :]) for dim in range(len(tensor.shape))]
    index = [number // s % n for s, n in zip(steps, tensor.shape, strict=True)]
    at = f"{name}[{', '.join(map(str, index))}]"
    if to_address(index, tensor) - (tensor.storage_offset or 0) != number:
        terms = " + ".join(f"{i}·{step}" for i, step in zip(index, steps, strict=True))
        return f"{at}, number {terms} = {number} of {name}"
    return f"{at}, number {number} of {name}"


def to_number(index: Sequence[int], shape: Shape) -> int:
    """Return the number of an element, row by row."""
    number = 0
    for i, size in zip(index, shape, strict=True):
        number = number * size + i
    return number


def choose_element(given: TensorMetadata, made: TensorMetadata) -> tuple[Shape, int]:
    """Return an index of a view, and the number there, which counts the input.

    An index at which reading row by row gives another number, if there is one.
    """
    small = product(*(range(min(size, 2)) for size in made.shape))
    found: tuple[Shape, int] | None = None
    for index in sorted(small, key=lambda i: (sum(i), *(-n for n in i))):
        is_order = made.storage_id != given.storage_id
        rows = to_number(index, made.shape)
        number = rows
        if not is_order:
            number = to_number(find_index(to_address(index, made), given), given.shape)
        if sum(index) and (found is None or number != rows):
            found = (index, number)
            if number != rows:
                return found
    return found or ((0,) * len(made.shape), 0)


def find_index(address: int, tensor: TensorMetadata) -> Shape:
    """Return the index of the element that lies at an address."""
    rest, index = address - (tensor.storage_offset or 0), [0] * len(tensor.shape)
    stride = tensor.stride or ()
    for dim in sorted(range(len(index)), key=lambda d: -stride[d]):
        if stride[dim]:
            index[dim] = min(rest // stride[dim], tensor.shape[dim] - 1)
            rest -= index[dim] * stride[dim]
    return tuple(index)


def to_address(index: Sequence[int], tensor: TensorMetadata) -> int:
    """Return where an element lies in memory, counted in elements."""
    steps = zip(index, tensor.stride or (), strict=True)
    return (tensor.storage_offset or 0) + sum(i * step for i, step in steps)


SHAPE_WHYS: Final[Mapping[str, Mapping[str, str]]] = {
    "broadcast": {
        "rank": "The result has as many dimensions as the tensor with the most.",
        "order": "Sizes keep their column when shapes are aligned from the right.",
        "size": "In each column the larger size stays; the other one is 1 or missing.",
    },
    "product": {
        "rank": "Summed dimensions disappear; all others stay, a shared one once.",
        "order": "Rows come from the left tensor, columns from the right one.",
        "size": "The summed size is not in the result; all others are.",
    },
    "einsum": {
        "rank": "A letter that is not after the arrow is summed; all others stay.",
        "order": "The letters after the arrow say the order.",
        "size": "Each letter is a dimension, of the same size wherever it stands.",
    },
    "linear": {
        "rank": "A layer keeps all dimensions.",
        "order": "The dimensions before the last keep their order.",
        "size": "The last size becomes the first size of the weight; the others stay.",
    },
    "window": {
        "rank": "A window keeps the number of dimensions.",
        "order": "Batch, then channels, then the window's dimensions.",
        "size": "A window of k fits (n + 2·padding - k) // stride + 1 times.",
    },
    "reduction": {
        "rank": "Each reduced dimension goes; with keepdim=True it stays as 1.",
        "order": "The other dimensions keep their order.",
        "size": "What is reduced is gone; the other sizes stay.",
    },
    "join": {
        "rank": "cat keeps the number of dimensions; stack adds one.",
        "order": "The inputs are joined in the dimension that dim names.",
        "size": "cat adds up the sizes in dim; stack counts the inputs there.",
    },
    "pick": {
        "rank": "The index's dimensions stand where the indexed ones were.",
        "order": "What is not indexed keeps its order.",
        "size": "The index's shape says how many are taken.",
    },
    "gather": {
        "rank": "The result has as many dimensions as the index.",
        "order": "The result has the shape of the index.",
        "size": "The result has the shape of the index.",
    },
    "copy": {
        "rank": "A repeat has as many dimensions as it is given numbers, or more.",
        "order": "The dimensions keep their order.",
        "size": "repeat multiplies sizes, padding is added to them at both ends.",
    },
    "memory": {
        "rank": "None and unsqueeze add a dimension; a number as an index and squeeze "
        "take one away; view, reshape and expand have one for each number.",
        "order": "The other dimensions keep their order.",
        "size": "A view and a reshape have as many elements as before, a slice fewer.",
    },
}
"""By kind of picture, or by function where its own texts are better."""
