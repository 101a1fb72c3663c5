"""Follow a size back, call by call, to the numbers in the block's code.

Runs in the child that ran the block with traced numbers. :meth:`Lineages.why` begins at
a size; the call that made it is made again with other numbers (:class:`CallProbe`),
which gives a formula and the numbers to follow next. Calls that are alike, as in the
layers of a model, are tried once.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.explain.lineage.formulas import (
    UNKNOWN,
    Formula,
    Group,
    Target,
    find_formula,
    find_groups,
    list_units,
)
from meta_magic.explain.lineage.lineage_records import Lineage, LineageStep
from meta_magic.explain.lineage.traced_numbers import (
    Given,
    Returned,
    SizeOf,
    Worked,
    Written,
    origin_of,
    strip,
    strip_nested,
    trace_number,
)
from meta_magic.explain.lineage.traced_runs import (
    Literal,
    Node,
    ObservedCall,
    Run,
    find_made,
)
from meta_magic.explain.probing import Probe, Variable
from meta_magic.recording.identities.call_sites import describe_function
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.session.operand_names import NUMBER, find_paths, is_shells, read_text
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.module_internals import is_made, walk_modules
from meta_magic.trace.failed_call import FailedCall, Operand, walk_arguments
from meta_magic.trace.signature import (
    META,
    Geometry,
    SourcePosition,
    Span,
    TensorArgument,
)


class Names:
    """The names of numbers and tensors in a block's variables and modules."""

    def __init__(
        self, variables: Mapping[str, Any], modules: Sequence[nn.Module]
    ) -> None:
        self._variables = {n: v for n, v in variables.items() if not is_shells(n)}
        held = [v for v in self._variables.values() if isinstance(v, nn.Module)]
        made = [module for module in (*held, *modules) if is_made(module)]
        below = {id(m) for root in made for path, m in walk_modules(root) if path}
        self._roots = [module for module in made if id(module) not in below]
        self._name_by_number: dict[int, str] = {}
        for number, name in self._walk_numbers():
            self._name_by_number.setdefault(id(number), name)

    def name_number(self, number: object) -> str:
        """Return the name of a traced number; "" if it has none."""
        return self._name_by_number.get(id(number), "")

    def name_tensor(self, tensor: Tensor) -> str:
        """Return the name of a tensor."""
        for name, value in self._variables.items():
            if value is tensor:
                return name
            if isinstance(value, nn.Module) and is_made(value):
                for path in find_paths(tensor, value):
                    return f"{name}{path}"
        paths = (path for root in self._roots for path in find_paths(tensor, root))
        return next((path.removeprefix(".") for path in paths), "a tensor")

    def _walk_numbers(self) -> Iterator[tuple[object, str]]:
        """Yield traced numbers in variables and attributes of modules, with names."""
        for name, value in self._variables.items():
            if origin_of(value) is not None:
                yield value, name
        by_module = {id(value): name for name, value in self._variables.items()}
        for root in self._roots:
            own = by_module.get(id(root), type(root).__name__)
            for path, module in walk_modules(root):
                owner = NUMBER.sub(r"[\1]", f".{path}").removeprefix(".") or own
                owner = f"{own}{owner}" if owner.startswith("[") else owner
                for name, value in vars(module).items():
                    values = value if isinstance(value, tuple) else (value,)
                    numbers = (one for one in values if origin_of(one) is not None)
                    yield from ((number, f"{owner}.{name}") for number in numbers)


RECURRENT: Final = frozenset(
    (
        *("lstm", "gru", "rnn_tanh", "rnn_relu"),
        *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    )
)
"""Native functions that may end the process if a size is wrong: they are not tried."""

N_OF_STATE: Final = 3
"""Dimensions of a recurrent layer's state; only states and batches have so many."""


class CallProbe:
    """Makes an observed call again.

    ``named`` are its operands with names, if they have any.

    Attributes:
        given: The numbers of the call that have an origin, traced.
    """

    def __init__(self, call: ObservedCall, named: Sequence[Operand] = ()) -> None:
        nodes: list[Node] = []
        args, kwargs = (_freeze(part, nodes) for part in (call.args, call.kwargs))
        operands = tuple(named) or tuple(map(_describe_operand, nodes))
        function = call.function
        if call.is_inside:  # operators inside of a function depend on gradients, too
            function = partial(_list_made, call.function)
            tensors = (node.tensor for node in nodes)
            operands = tuple(
                replace(one, requires_grad=t.requires_grad, is_leaf=t.is_leaf)
                for one, t in zip(operands, tensors, strict=True)
            )
        failed = FailedCall(
            function=call.function,
            args=args,
            kwargs=kwargs,
            operands=operands,
            is_whole=True,
            frames=(),
        )
        self.probe = Probe(function, failed)
        self.given: dict[Variable, Any] = {
            Variable(number, dim): trace_number(size, SizeOf(node, dim))
            for number, node in enumerate(nodes)
            for dim, size in enumerate(node.shape)
        }
        for path, value in walk_arguments((call.args, call.kwargs)):
            if origin_of(value) is not None and isinstance(value, int):
                self.given[Variable(-1, path)] = value
        geometries = tuple(operand.geometry for operand in operands)
        given: object = args, kwargs
        with suppress(Exception):  # the ``repr`` of a user's object may raise
            given = repr(given)
        self._call = (
            call.function,
            call.is_inside,
            geometries,
            given if type(given) is str else id(call),
        )
        self._name = getattr(call.function, "__name__", "")
        self._units: list[Group] = []

    def tie(self, key_of: Callable[[Any], object]) -> object:
        """Find which numbers have one origin; return a key that equal calls share.

        An argument may be the size of an operand, as in ``x.view(x.shape[0], -1)``.
        """
        values = self.probe.values
        given = {values[v] for v in self.given if not v.is_size}
        keys = {v: key_of(n) for v, n in self.given.items() if values[v] in given}
        self._units = list_units(self.probe, keys)
        return *self._call, tuple(self._units), frozenset(self.given)

    def find_formula(self, node: Node, dim: int) -> Formula:
        """Return how a size of a result follows from what the call was given."""
        if self._name in RECURRENT:
            return self._follow_layer(node, dim)
        target = Target(self.probe, node.output, dim, node.shape)
        if target.size is None:
            return Formula(UNKNOWN, ())
        groups = find_groups(self.probe, target, self._units, self.given.keys())
        return find_formula(self.probe, target, groups)

    def _follow_layer(self, node: Node, dim: int) -> Formula:
        """Return how a size of a recurrent layer's result follows from its operands.

        The last states are as large as the first ones, and each step of the result has
        the steps of the input, and a state for each direction.
        """
        ranks = [len(one.geometry.shape) for one in self.probe.call.operands]
        states = [n for n, rank in enumerate(ranks) if n and rank == N_OF_STATE]
        weights = [n for n, rank in enumerate(ranks) if n and rank == N_OF_STATE - 1]
        last, n_directions = len(node.shape) - 1, 1
        if self._name.endswith("cell"):
            part = Variable(1 + node.output, dim)
        elif not states or node.output > len(states):
            return Formula(UNKNOWN, ())
        elif dim < last or node.output > 1:
            part = Variable(states[node.output - 1] if node.output else 0, dim)
        else:  # those of a packed batch are made by a size that is no number
            part = Variable(weights[1], 1)
            n_directions = node.shape[dim] // self.probe.values[part]
        text = "{}" if n_directions == 1 else f"{n_directions} * {{}}"
        return Formula(text, (part,))


def _list_made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return what the operators made that a function runs, one after another."""
    made: list[Tensor] = []
    with MadeMode(made):
        function(*args, **kwargs)
    return made


class MadeMode(TorchDispatchMode):
    """Keeps the tensors that operators return."""

    def __init__(self, made: list[Tensor]) -> None:
        super().__init__()
        self._made = made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operator."""
        returned = func(*args, **(kwargs or {}))
        self._made += tensors_in(returned)
        return returned


def _freeze(value: Any, nodes: list[Node]) -> Any:
    """Return plain arguments: tensors as indexes into nodes, devices as meta."""
    if isinstance(value, Node):
        known = (number for number, node in enumerate(nodes) if node is value)
        number = next(known, len(nodes))
        nodes[number:] = nodes[number:] or [value]
        return TensorArgument(number)
    if type(value) in (list, tuple):
        return type(value)(_freeze(item, nodes) for item in value)
    if isinstance(value, Mapping):
        items = {key: _freeze(item, nodes) for key, item in value.items()}
        return items | ({"device": "meta"} if items.get("device") else {})
    return META if isinstance(value, torch.device) else strip_nested(value)


def _describe_operand(node: Node) -> Operand:
    tensor = node.tensor
    stride = offset = None
    is_as_it_was = tuple(tensor.shape) == node.shape  # else written in place
    if is_as_it_was and tensor.layout is torch.strided:
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
    geometry = Geometry(
        shape=node.shape,
        stride=stride,
        storage_offset=offset,
        dtype=tensor.dtype,
        device=tensor.device,
        layout=tensor.layout,
    )
    return Operand(name="", geometry=geometry)


MAX_NESTED: Final = 3
"""How deep arithmetic is nested in one step: in a loop it has no end."""

MAX_STEPS: Final = 200
"""Steps of a chain."""


class Lineages:
    """Finds where the numbers of one run come from.

    Attributes:
        passed: The lines of calls that handed the numbers of the last chain on.
    """

    def __init__(self, literals: Sequence[Literal], names: Names, file: str) -> None:
        self.passed: list[int] = []
        self._literals = literals
        self._file = file
        self._names = names
        self._probes: dict[ObservedCall, CallProbe] = {}
        self._formulas: dict[object, Formula] = {}
        self._found: dict[tuple[ObservedCall, tuple[int, int]], Formula] = {}

    def why(self, name: str, number: Any) -> Lineage:
        """Return where a traced number comes from."""
        step_by_key: dict[object, int] = {}
        reached: list[Any] = []

        self.passed.clear()

        def number_step(found: Any) -> int:
            last = self._follow(found, self.passed)
            if _key_of(last) not in step_by_key:
                step_by_key[_key_of(last)] = len(reached)
                reached.append(last)
            return step_by_key[_key_of(last)]

        number_step(number)
        steps: list[LineageStep] = []
        while len(steps) < min(len(reached), MAX_STEPS):
            step, parts = self._describe(reached[len(steps)])
            steps.append(replace(step, parts=tuple(map(number_step, parts))))
        caveat = ""
        if len(reached) > len(steps):
            caveat = f"only the first {MAX_STEPS} steps are shown"
            for at, step in enumerate(steps):
                parts = tuple(part for part in step.parts if part < len(steps))
                steps[at] = replace(step, parts=parts)
        return Lineage(name=name, steps=tuple(steps), caveat=caveat)

    def _follow(self, number: Any, passed: list[int] | None = None) -> Any:
        """Return the origin of a number that calls handed on unchanged.

        ``passed`` gets the lines of these calls.
        """
        while True:
            call = _call_of(number)
            if call is None:
                return number
            formula = self._find_formula(call, number.origin)
            if not formula.hands_on:
                return number
            if passed is not None and call.line is not None:
                passed.append(call.line)
            number = self._probe(call).given[formula.parts[0]]

    def _describe(self, number: Any) -> tuple[LineageStep, Sequence[Any]]:
        """Return a number as a step, and the numbers that it comes from."""
        value, origin = strip(number), origin_of(number)
        text, line = "a number of unknown origin", None
        match origin:
            case Written(at):
                literal, name = self._literals[at], self._names.name_number(number)
                label = literal.label
                if name and (not label.isidentifier() or name.endswith(f".{label}")):
                    label = name
                return write_root(literal, label), ()
            case SizeOf(node, dim) if node.call is not None:
                return self._describe_call(number, node.call)
            case SizeOf(node, dim):
                return self._describe_outside(node, dim), ()
            case Given(name):
                text = f"{name}, from outside of the block"
            case Returned(span):
                name, code = self._names.name_number(number), self._read(span)
                text = f"{name} = {code}" if name and name != code else code
                line = span[0]
            case Worked(formula, parts):
                name = self._names.name_number(number)
                formula, below = self._put_in(formula, parts)
                shown = formula.format(*map(strip, below))
                text = f"{name} = {shown}" if name else shown
                return LineageStep(value=value, text=text, formula=formula), below
        return LineageStep(value=value, text=text, line=line, formula=f"{value}"), ()

    def _describe_outside(self, node: Node, dim: int) -> LineageStep:
        """Return a size of a tensor that no observed call made."""
        span, line = find_made(node.tensor), None
        text = f"{self._names.name_tensor(node.tensor)}, from outside of the block"
        if span is not None:  # as ``torch.from_numpy`` makes
            text, line = self._read(span), span[0]
        text, value = f"dimension {dim} of {text}", node.shape[dim]
        return LineageStep(value=value, text=text, line=line, formula=f"{value}")

    def _read(self, span: Span) -> str:
        """Return the code at a position."""
        line, column, end_line, end_column = span
        return read_text(
            SourcePosition(
                file=self._file,
                line=line,
                end_line=end_line or line,
                column=column,
                end_column=end_column,
                function="",
            )
        )

    def _put_in(
        self, formula: str, parts: Sequence[Any], depth: int = MAX_NESTED
    ) -> tuple[str, Sequence[Any]]:
        """Return arithmetic with the arithmetic of its unnamed parts inserted."""
        whole: list[Any] = []
        texts = []
        for part in parts:
            origin = origin_of(part)
            is_named = bool(self._names.name_number(part))
            if isinstance(origin, Worked) and depth and not is_named:
                inner, below = self._put_in(*origin, depth - 1)
                texts.append(f"({inner})" if _needs_brackets(inner, formula) else inner)
                whole += below
            else:
                texts.append("{}")
                whole.append(part)
        return formula.format(*texts), whole

    def _describe_call(
        self, number: Any, call: ObservedCall
    ) -> tuple[LineageStep, Sequence[Any]]:
        formula = self._find_formula(call, number.origin)
        given = self._probe(call).given
        parts = [given[variable] for variable in formula.parts]
        values = [strip(part) for part in parts]
        text = f"by {_name_function(call.function)}"
        if formula.text and values:
            text = f"{formula.text.format(*values)} {text}"
        elif values:
            text += f", from {', '.join(map(str, values))}"
        value = strip(number)
        return LineageStep(
            value=value, text=text, line=call.line, formula=formula.text
        ), parts

    def _find_formula(self, call: ObservedCall, origin: SizeOf) -> Formula:
        """Return how a size follows from what its call was given."""
        at = origin.tensor.output, origin.dim
        if (call, at) not in self._found:
            probe = self._probe(call)
            key = probe.tie(lambda number: _key_of(self._follow(number))), at
            if key not in self._formulas:  # else the same call, as in an earlier layer
                self._formulas[key] = probe.find_formula(*origin)
            self._found[call, at] = self._formulas[key]
        return self._found[call, at]

    def _probe(self, call: ObservedCall) -> CallProbe:
        probe = self._probes.get(call)
        if probe is None:
            probe = self._probes[call] = CallProbe(call)
        return probe


def write_root(literal: Literal, label: str) -> LineageStep:
    """Return the step of a number that is written in the block's code."""
    return LineageStep(
        value=literal.value,
        formula=f"{literal.value}",
        text=f"{label}, written" if label else "written",
        line=literal.line,
        column=literal.column,
        end_column=literal.end_column,
    )


def _needs_brackets(inner: str, outer: str) -> bool:
    """Whether arithmetic needs brackets inside of other arithmetic."""
    within, around = (
        ast.parse(text.replace("{}", "n"), mode="eval").body for text in (inner, outer)
    )
    if not isinstance(within, (ast.BinOp, ast.UnaryOp)):
        return False
    is_same = isinstance(around, ast.BinOp) and type(around.op) is type(within.op)
    return not (is_same and isinstance(within.op, (ast.Add, ast.Mult)))


def _call_of(number: Any) -> ObservedCall | None:
    """Return the call that made a tensor, if a number is a size of it."""
    origin = origin_of(number)
    return origin.tensor.call if isinstance(origin, SizeOf) else None


def _key_of(number: Any) -> object:
    """Return the identity of a number: two results of equal arithmetic differ."""
    origin = origin_of(number)
    kinds = (Written, SizeOf, Given, Returned)
    return origin if isinstance(origin, kinds) else id(number)


def _name_function(function: Any) -> str:
    name = describe_function(getattr(function, "overloadpacket", function)) or ""
    parts = [part for part in name.split(".") if part != "__get__"]
    return parts[-1] if parts else ""


def find_lineages(run: Run) -> Lineages:
    """Return an object that finds where the numbers of a run come from."""
    names = Names(run.variables, [*run.observer.modules.values()])
    return Lineages(run.literals, names, run.trace.cell.file)
