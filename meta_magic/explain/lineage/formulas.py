"""How a size that a call returned follows from the numbers that the call was given.

``F.max_pool2d(x, 2)`` returns 6 rows for 12: which formula? No rule of any operator is
written here. The call is made again with other numbers: :func:`find_groups` sees which
of them change the size, and :func:`find_formula` proposes formulas and takes the first
one that is right in each of these calls.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Final, NamedTuple, TypeAlias

from meta_magic.explain.lineage.lineage_records import evaluate
from meta_magic.explain.probing import Probe, Variable, name_argument
from meta_magic.trace.failed_call import ENDS

Group: TypeAlias = tuple[Variable, ...]
"""Numbers that can only be changed together, because they must be equal."""

MOST_PAIRED: Final = 4
"""With more groups, no two are changed at once."""

MANY: Final = 16
"""A call with more tensors has a long list of them."""

DIMENSION_NAMES: Final = (
    *("dim", "axis", "start_dim", "end_dim", "index", "source", "destination"),
)
"""Names of arguments that select a dimension begin with these."""

DIMENSION_FUNCTIONS: Final = frozenset(
    ("permute", "select", "unbind", "movedim", "transpose", "unsqueeze")
)
"""Functions whose integers are dimensions."""


class Target:
    """A size of what a call returns.

    It is size ``dim`` of returned tensor ``output``, which had ``shape``.

    Attributes:
        size: The size; None if the call does not return the same shape again.
    """

    def __init__(
        self, probe: Probe, output: int, dim: int, shape: tuple[int, ...]
    ) -> None:
        self._probe = probe
        self._output = output
        self._dim = dim
        self._rank = len(shape)
        shapes = probe.run()
        is_same = shapes is not None and shapes[output : output + 1] == (shape,)
        self.size = shape[dim] if is_same and dim < len(shape) else None

    def read(self, values: Mapping[Variable, int]) -> int | None:
        """Return the size with other numbers; None if they are refused."""
        shapes = self._probe.run(values)
        if shapes is None or self._output >= len(shapes):
            return None
        shape = shapes[self._output]
        return shape[self._dim] if len(shape) == self._rank else None


def find_groups(
    probe: Probe, target: Target, units: Sequence[Group], known: Collection[Variable]
) -> list[Group] | None:
    """Return the numbers that change a size, in groups that move together.

    ``units`` has all numbers, those with the same origin together; ``known`` those with
    an origin. None if an argument that C++ code computed changes only together with a
    size: it may equal that size by chance.
    """
    groups: list[Group] = []
    stuck = []
    for unit in units:
        value = probe.values[unit[0]]
        sizes = [
            target.read(dict.fromkeys(unit, value + step))
            for step in _steps(unit, value)
        ]
        if any(size not in {None, target.size} for size in sizes):
            groups.append(unit)
        elif all(size is None for size in sizes):
            stuck.append(unit)
    groups += _move_together(probe, target, stuck)
    groups = groups or _find_kept_products(probe, target, stuck)
    own = [tuple(v for v in group if v in known) for group in groups]
    is_chance = any(0 < len(a) < len(b) for a, b in zip(own, groups, strict=True))
    return None if is_chance else [group for group in own if group]


def _move_together(probe: Probe, target: Target, stuck: Sequence[Group]) -> list[Group]:
    """Return groups of numbers that are refused alone, and change the size together."""
    groups: list[Group] = []
    done: set[Group] = set()
    for unit in stuck:
        value = probe.values[unit[0]]
        equal = [u for u in stuck if probe.values[u[0]] == value and u != unit]
        pairs = [(*unit, *other) for other in equal]
        # Stacked square images have one height and one width.
        alike = [other for other in equal if other[0].at == unit[0].at]
        wholes = [_join((unit, *alike)), _join((unit, *equal))]
        for group in [] if unit in done else [*pairs, *wholes]:
            moved = [
                target.read(dict.fromkeys(group, value + step))
                for step in _steps(group, value)
            ]
            if any(size not in {None, target.size} for size in moved):
                groups.append(group)
            if any(size is not None for size in moved):
                done |= {one for one in stuck if {*one} <= {*group}}
                break
    return groups


def _join(units: Sequence[Group]) -> Group:
    return tuple(variable for unit in units for variable in unit)


def _find_kept_products(
    probe: Probe, target: Target, stuck: Sequence[Group]
) -> list[Group]:
    """Return the argument of a call like ``view`` that decides a size.

    It is doubled together with each input size, one after another.
    """
    arguments = [u for u in stuck if not u[0].is_size and probe.values[u[0]] > 0]
    for argument in arguments:
        for size in (unit for unit in stuck if unit[0].is_size):
            doubled = {v: 2 * probe.values[v] for v in (*argument, *size)}
            if target.read(doubled) not in {None, target.size}:
                return [argument]
    return []


def list_units(probe: Probe, keys: Mapping[Variable, object]) -> list[Group]:
    """Return the numbers of a call that may be changed; those with one origin together.

    A list of many tensors has the sizes of tensors that are alike together, too: to
    move each of 500 sizes takes a quarter of a million tensors.

    ``keys`` has the origin of each number that may be another's as well.
    """
    units: dict[object, list[Variable]] = {}
    operands = probe.call.operands
    is_long = len(operands) > MANY
    for variable in probe.values:
        if not _is_dimension(probe, variable):
            key = keys.get(variable, variable)
            if is_long and variable.is_size:
                key = operands[variable.operand].geometry.shape, variable.at
            units.setdefault(key, []).append(variable)
    return [tuple(unit) for unit in units.values()]


def _is_dimension(probe: Probe, variable: Variable) -> bool:
    """Whether a number selects a dimension, and is no size."""
    if isinstance(variable.at, int):
        return False
    function = getattr(probe.call.function, "__name__", "")
    if function in DIMENSION_FUNCTIONS or (
        function == "__getitem__" and not _is_end(variable)
    ):
        return True
    return name_argument(probe.call, variable.at).startswith(DIMENSION_NAMES)


def _is_end(variable: Variable) -> bool:
    return not isinstance(variable.at, int) and variable.at[-1] in ENDS


def _steps(group: Group, value: int) -> tuple[int, ...]:
    more = (1, 2, value) if value > 2 else (1, 2)  # noqa: PLR2004
    return (*more, -1) if any(map(_is_end, group)) else more  # a slice may be cut


def _list_moves(probe: Probe, groups: Sequence[Group]) -> list[dict[Variable, int]]:
    """Return changes of groups, one and two at a time, that test a formula."""
    pairs = combinations(groups, 2) if len(groups) <= MOST_PAIRED else ()
    alone = [(group,) for group in groups]
    moves = [(1, moving) for moving in (*alone, *pairs)]
    moves += [(3, moving) for moving in alone]
    moves += [(-1, (group,)) for group in groups if any(map(_is_end, group))]
    changed = [
        {
            variable: probe.values[variable] + step * (i + 1)
            for i, group in enumerate(moving)
            for variable in group
        }
        for step, moving in moves
    ]
    doubled = [{v: 2 * probe.values[v] for v in group} for group in groups]
    whole = _join(groups)  # sizes of 1 may be broadcast
    is_one = len(groups) > 1 and {probe.values[v] for v in whole} == {1}
    together = [dict.fromkeys(whole, 2)] if is_one else []
    return [*changed, *doubled, *together]


MOST_DIVIDED: Final = 6
"""With more numbers, no products are divided by products."""

WIDEST: Final = 48
"""How far an operand is widened to find the step of a window."""


class Formula(NamedTuple):
    """How a size comes from numbers.

    Attributes:
        text: Python code, with ``{}`` for each number; ``UNKNOWN`` if none is right. If
            no number changes the size, it is the size.
    """

    text: str
    parts: tuple[Variable, ...]

    @property
    def hands_on(self) -> bool:
        """Whether the size is that of a number, unchanged."""
        return self.text == "{}"


UNKNOWN: Final = ""


def find_formula(
    probe: Probe, target: Target, groups: Sequence[Group] | None
) -> Formula:
    """Return how a size follows from groups of numbers, by one number of each."""
    if groups is None:
        return Formula(UNKNOWN, ())
    chosen = [next((v for v in group if v.is_size), group[0]) for group in groups]
    moves = [
        (move, size)
        for move in _list_moves(probe, groups)
        if (size := target.read(move)) is not None
    ]
    if not chosen:
        return Formula(f"{target.size}", ())
    for formula in _propose(probe, target, chosen):
        # An argument that is handed on may have limits, as of a split.
        is_given = formula.hands_on and not formula.parts[0].is_size
        if _holds(probe, formula, target, moves[:1] if is_given else moves):
            return formula
    return Formula(UNKNOWN, tuple(chosen))


def _holds(
    probe: Probe,
    formula: Formula,
    target: Target,
    moves: Sequence[tuple[Mapping[Variable, int], int]],
) -> bool:
    """Whether a formula is right for the call as it was, and for each change."""
    for move, size in [({}, target.size), *moves]:
        values = [move.get(v, probe.values[v]) for v in formula.parts]
        try:
            if evaluate(formula.text, values) != size:
                return False
        except (ArithmeticError, ValueError):
            return False
    return bool(moves) or formula.hands_on


def _propose(
    probe: Probe, target: Target, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    size = target.size
    values = [probe.values[v] for v in chosen]
    if size is None or not chosen:
        return
    if len(chosen) == 1:
        yield Formula("{}", (chosen[0],))
    elif {*values} == {size}:
        yield Formula(f"max({', '.join(['{}'] * len(chosen))})", (*chosen,))
    if len(chosen) > 1 and prod(values) == size:
        yield Formula(" * ".join(["{}"] * len(chosen)), (*chosen,))
    if len(chosen) == 2:  # noqa: PLR2004
        for pair in ((chosen[0], chosen[1]), (chosen[1], chosen[0])):
            yield Formula("{} - {}", pair)  # a slice with a start or a step
            yield Formula("{} // {}", pair)
            yield Formula("ceil({} / {})", pair)
    if len(chosen) > 1 and sum(values) == size:
        yield Formula(" + ".join(["{}"] * len(chosen)), (*chosen,))
    if len(chosen) == 1:
        yield from _propose_steps(values[0], size, chosen[0])
    yield from _propose_windows(probe, target, chosen)
    yield from _propose_quotients(values, size, chosen)


def _propose_steps(value: int, size: int, variable: Variable) -> Iterator[Formula]:
    """Yield formulas of one number and a constant."""
    sign = "+" if size > value else "-"
    yield Formula(f"{{}} {sign} {abs(size - value)}", (variable,))
    if value and size % value == 0:
        yield Formula(f"{{}} * {size // value}", (variable,))
    if size:
        yield Formula(f"{{}} // {max(value // size, 1)}", (variable,))
        yield Formula(f"ceil({{}} / {max(round(value / size), 1)})", (variable,))


def _propose_quotients(
    values: Sequence[int], size: int, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    """Yield quotients of products, as for a view with a size of -1."""
    everything = range(len(chosen) if len(chosen) <= MOST_DIVIDED else 0)
    for count in range(1, len(everything)):
        for up in combinations(everything, count):
            down = [i for i in everything if i not in up]
            below = prod(values[i] for i in down)
            above = prod(values[i] for i in up)
            if not below or above // below != size:
                continue
            order = tuple(chosen[i] for i in (*up, *down))
            over = " * ".join(["{}"] * len(up))
            under = " * ".join(["{}"] * len(down))
            under = f"({under})" if len(down) > 1 else under
            yield Formula(f"{over} // {under}", order)


def _propose_windows(
    probe: Probe, target: Target, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    """Yield formulas of convolution and pooling, and of their transposes.

    Widening the operand shows the step of the window, and the rest follows. Where
    arguments have their usual names, the formula is written as in textbooks.
    """
    sizes = [v for v in chosen if v.is_size and v.operand == 0]
    if len(sizes) != 1:
        return
    (read,) = sizes
    size = target.size or 0
    step = _find_step(probe, target, read)
    if step is not None:
        stride, first = step
        yield from _propose_textbook(probe, chosen, read, stride)
        shift = size * stride - probe.values[read] - first
        sign = "+" if shift >= 0 else "-"
        yield Formula(f"floor(({{}} {sign} {abs(shift)}) / {stride}) + 1", (read,))
    wider = target.read({read: probe.values[read] + 1})
    if wider is not None and wider - size > 1:
        yield from _propose_transposed(probe, chosen, read)
        stride = wider - size
        shift = size - (probe.values[read] - 1) * stride
        yield Formula(f"({{}} - 1) * {stride} + {shift}", (read,))


def _find_step(probe: Probe, target: Target, read: Variable) -> tuple[int, int] | None:
    """Return how much an operand grows for one more window, and for the first one."""
    before = target.size or 0
    grown: list[int] = []
    for more in range(1, WIDEST):
        size = target.read({read: probe.values[read] + more})
        if size is None:
            return None
        if size > before + len(grown):
            grown.append(more)
        if len(grown) == 2:  # noqa: PLR2004
            return grown[1] - grown[0], grown[0]
    return None


class _Terms:
    """Writes formulas of arguments by name.

    Attributes:
        parts: The numbers that were written so far.
        named: The call's arguments by their names.
    """

    def __init__(
        self, probe: Probe, chosen: Sequence[Variable], read: Variable
    ) -> None:
        self.parts = [read]
        self._values = probe.values
        self._chosen = chosen
        self.named: dict[str, Variable] = {}
        for variable in (*chosen, *probe.values):
            if not isinstance(variable.at, int):
                name = name_argument(probe.call, variable.at).partition("[")[0]
                self.named.setdefault(name, variable)
            elif variable in chosen and variable != read:
                self.named.setdefault("kernel_size", variable)

    def write(self, name: str, default: int) -> str:
        """Return ``{}`` or the constant for an argument."""
        variable = self.named.get(name)
        if variable is None or variable not in self._chosen:
            return str(default if variable is None else self._values[variable])
        self.parts.append(variable)
        return "{}"


def _propose_textbook(
    probe: Probe, chosen: Sequence[Variable], read: Variable, stride: int
) -> Iterator[Formula]:
    """Yield ``floor((n + 2p - d(k - 1) - 1) / s) + 1`` of the named arguments."""
    terms = _Terms(probe, chosen, read)
    padding = terms.write("padding", 0)
    text = "{}" if padding == "0" else f"{{}} + 2 * {padding}"
    dilation = terms.write("dilation", 1)
    width = terms.write("kernel_size", 1)
    text += f" - {width}" if dilation == "1" else f" - {dilation} * ({width} - 1) - 1"
    if "stride" in terms.named:
        steps = terms.write("stride", 1)
        yield Formula(f"floor(({text}) / {steps}) + 1", (*terms.parts,))
        return
    yield Formula(f"floor(({text}) / {stride}) + 1", (*terms.parts,))
    steps = terms.write("kernel_size", 1)  # as pooling has it
    yield Formula(f"floor(({text}) / {steps}) + 1", (*terms.parts,))


def _propose_transposed(
    probe: Probe, chosen: Sequence[Variable], read: Variable
) -> Iterator[Formula]:
    """Yield ``(n - 1)s - 2p + d(k - 1) + o + 1`` of the named arguments."""
    terms = _Terms(probe, chosen, read)
    text = f"({{}} - 1) * {terms.write('stride', 1)}"
    padding = terms.write("padding", 0)
    text += "" if padding == "0" else f" - 2 * {padding}"
    dilation = terms.write("dilation", 1)
    width = terms.write("kernel_size", 1)
    text += f" + {width}" if dilation == "1" else f" + {dilation} * ({width} - 1) + 1"
    extra = terms.write("output_padding", 0)
    text += "" if extra == "0" else f" + {extra}"
    yield Formula(text, (*terms.parts,))
