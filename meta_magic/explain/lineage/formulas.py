"""The formula by which a size comes from numbers, found by trying others.

A handful are proposed, and the first one that holds wherever the call was tried is
taken: none is believed for the operator's name.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Final, NamedTuple, TypeAlias

from meta_magic.explain.lineage.lineage_records import evaluate
from meta_magic.explain.probing import Probe, Variable, name_argument

Group: TypeAlias = tuple[Variable, ...]
"""Numbers that can be changed together only: they must be equal."""

MOST_PAIRED: Final = 4
"""Of how many groups any two are changed at once."""

PLACES: Final = (
    "dim",
    "axis",
    "start_dim",
    "end_dim",
    "index",
    "source",
    "destination",
)
"""What arguments that say which dimension is meant begin with."""

PLACED: Final = frozenset(
    ("permute", "select", "unbind", "movedim", "transpose", "unsqueeze")
)
"""Functions whose numbers are dimensions."""


class Target:
    """A size of what a call returns.

    Args:
        probe: Makes the call.
        output: Which of the tensors.
        dim: Which dimension.
        shape: The sizes that it had.

    Attributes:
        size: It, as the call is; None if the call does not return the same again.
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
        self.size = shape[dim] if is_same else None

    def read(self, values: Mapping[Variable, int]) -> int | None:
        """Return the size if numbers are others; None if that is refused."""
        shapes = self._probe.run(values)
        if shapes is None or self._output >= len(shapes):
            return None
        shape = shapes[self._output]
        return shape[self._dim] if len(shape) == self._rank else None


def find_groups(
    probe: Probe, target: Target, units: Sequence[Group], known: Collection[Variable]
) -> list[Group]:
    """Return the numbers on which a size depends, in groups that move together.

    Args:
        probe: Makes the call.
        target: The size.
        units: All numbers, those that are the same one together.
        known: The numbers that come from somewhere; others are constants.
    """
    groups: list[Group] = []
    stuck = []
    for unit in units:
        value = probe.values[unit[0]]
        sizes = [
            target.read(dict.fromkeys(unit, value + step))
            for step in steps(unit, value)
        ]
        if any(size not in {None, target.size} for size in sizes):
            groups.append(unit)
        elif all(size is None for size in sizes):
            stuck.append(unit)
    groups += move_together(probe, target, stuck)
    groups = groups or find_kept_products(probe, target, stuck)
    own = (tuple(v for v in group if v in known) for group in groups)
    return [group for group in own if group]


def move_together(probe: Probe, target: Target, stuck: Sequence[Group]) -> list[Group]:
    """Return groups of numbers that are refused alone, by which a size moves."""
    groups: list[Group] = []
    done: set[Group] = set()
    for unit in stuck:
        value = probe.values[unit[0]]
        equal = [u for u in stuck if probe.values[u[0]] == value and u != unit]
        pairs = [(*unit, *other) for other in equal]
        # Of square images that are stacked all heights are one, and all widths.
        alike = [other for other in equal if other[0].at == unit[0].at]
        wholes = [join((unit, *alike)), join((unit, *equal))]
        for group in [] if unit in done else [*pairs, *wholes]:
            moved = [
                target.read(dict.fromkeys(group, value + step))
                for step in steps(group, value)
            ]
            if any(size not in {None, target.size} for size in moved):
                groups.append(group)
            if any(size is not None for size in moved):
                done |= {one for one in stuck if {*one} <= {*group}}
                break
    return groups


def join(units: Sequence[Group]) -> Group:
    """Return the numbers of several units as one."""
    return tuple(variable for unit in units for variable in unit)


def find_kept_products(
    probe: Probe, target: Target, stuck: Sequence[Group]
) -> list[Group]:
    """Return the number that a size follows if another is doubled too, as of a view."""
    arguments = [u for u in stuck if not u[0].is_size and probe.values[u[0]] > 0]
    for argument in arguments:
        for size in (unit for unit in stuck if unit[0].is_size):
            doubled = {v: 2 * probe.values[v] for v in (*argument, *size)}
            if target.read(doubled) not in {None, target.size}:
                return [argument]
    return []


def list_units(probe: Probe, keys: Mapping[Variable, object]) -> list[Group]:
    """Return the numbers of a call that may be changed, those that are one together.

    Args:
        probe: Makes the call.
        keys: Of numbers that are known to be others' as well, what tells which.
    """
    units: dict[object, list[Variable]] = {}
    for variable in probe.values:
        if not is_place(probe, variable):
            units.setdefault(keys.get(variable, variable), []).append(variable)
    return [tuple(unit) for unit in units.values()]


def is_place(probe: Probe, variable: Variable) -> bool:
    """Whether a number says which dimension is meant, not how large one is."""
    if isinstance(variable.at, int):
        return False
    function = getattr(probe.call.function, "__name__", "")
    if function in PLACED or (function == "__getitem__" and not is_end(variable)):
        return True
    return name_argument(probe.call, variable.at).startswith(PLACES)


def is_end(variable: Variable) -> bool:
    """Whether a number is an end of a slice."""
    return not isinstance(variable.at, int) and variable.at[-1] in {
        "start",
        "stop",
        "step",
    }


def steps(group: Group, value: int) -> tuple[int, ...]:
    """Return by how much numbers are changed to see what comes of it."""
    more = (1, 2, value) if value > 2 else (1, 2)  # noqa: PLR2004
    return (*more, -1) if any(map(is_end, group)) else more  # a slice may be cut


def list_moves(probe: Probe, groups: Sequence[Group]) -> list[dict[Variable, int]]:
    """Return changes of groups, each alone and two at a time, to test a formula by."""
    pairs = combinations(groups, 2) if len(groups) <= MOST_PAIRED else ()
    alone = [(group,) for group in groups]
    moves = [(1, moving) for moving in (*alone, *pairs)]
    moves += [(3, moving) for moving in alone]
    moves += [(-1, (group,)) for group in groups if any(map(is_end, group))]
    changed = [
        {
            variable: probe.values[variable] + step * (i + 1)
            for i, group in enumerate(moving)
            for variable in group
        }
        for step, moving in moves
    ]
    doubled = [{v: 2 * probe.values[v] for v in group} for group in groups]
    whole = join(groups)  # sizes of 1 that are broadcast are one as others
    is_one = len(groups) > 1 and {probe.values[v] for v in whole} == {1}
    together = [dict.fromkeys(whole, 2)] if is_one else []
    return [*changed, *doubled, *together]


MOST_DIVIDED: Final = 6
"""Of how many numbers products are divided by products."""

WIDEST: Final = 48
"""By how much an operand is widened to see by which step it is read."""


class Formula(NamedTuple):
    """How a size comes from numbers.

    Attributes:
        text: It in Python, ``{}`` for each number; ``UNKNOWN`` where none holds. Of
            what no number moves it is that size.
        parts: The numbers.
    """

    text: str
    parts: tuple[Variable, ...]

    @property
    def hands_on(self) -> bool:
        """Whether the size is that of a number, unchanged."""
        return self.text == "{}"


UNKNOWN: Final = ""


def find_formula(probe: Probe, target: Target, groups: Sequence[Group]) -> Formula:
    """Return how a size comes from groups of numbers, of each the first operand's."""
    chosen = [next((v for v in group if v.is_size), group[0]) for group in groups]
    moves = [
        (move, size)
        for move in list_moves(probe, groups)
        if (size := target.read(move)) is not None
    ]
    if not chosen:
        return Formula(f"{target.size}", ())
    for formula in propose(probe, target, chosen):
        # An argument that is handed on may have limits, as of a split.
        is_given = formula.hands_on and not formula.parts[0].is_size
        if holds(probe, formula, target, moves[:1] if is_given else moves):
            return formula
    return Formula(UNKNOWN, tuple(chosen))


def holds(
    probe: Probe,
    formula: Formula,
    target: Target,
    moves: Sequence[tuple[Mapping[Variable, int], int]],
) -> bool:
    """Whether a formula gives what the call returned, as it was and each time since."""
    for move, size in [({}, target.size), *moves]:
        values = [move.get(v, probe.values[v]) for v in formula.parts]
        try:
            if evaluate(formula.text, values) != size:
                return False
        except (ArithmeticError, ValueError):
            return False
    return bool(moves) or formula.hands_on


def propose(
    probe: Probe, target: Target, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    """Yield formulas that may hold, the simplest first."""
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
        yield from propose_pairs(chosen)
    if len(chosen) > 1 and sum(values) == size:
        yield Formula(" + ".join(["{}"] * len(chosen)), (*chosen,))
    if len(chosen) == 1:
        yield from propose_steps(values[0], size, chosen[0])
    yield from propose_windows(probe, target, chosen)
    yield from propose_quotients(values, size, chosen)


def propose_steps(value: int, size: int, variable: Variable) -> Iterator[Formula]:
    """Yield formulas of one number and a constant."""
    sign = "+" if size > value else "-"
    yield Formula(f"{{}} {sign} {abs(size - value)}", (variable,))
    if value and size % value == 0:
        yield Formula(f"{{}} * {size // value}", (variable,))
    if size:
        yield Formula(f"{{}} // {max(value // size, 1)}", (variable,))
        yield Formula(f"ceil({{}} / {max(round(value / size), 1)})", (variable,))


def propose_pairs(chosen: Sequence[Variable]) -> Iterator[Formula]:
    """Yield formulas of two numbers, as of a slice with a start, or with a step."""
    for pair in ((chosen[0], chosen[1]), (chosen[1], chosen[0])):
        yield Formula("{} - {}", pair)
        yield Formula("{} // {}", pair)
        yield Formula("ceil({} / {})", pair)


def propose_quotients(
    values: Sequence[int], size: int, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    """Yield products divided by others, as of a view with a size of -1."""
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


def propose_windows(
    probe: Probe, target: Target, chosen: Sequence[Variable]
) -> Iterator[Formula]:
    """Yield the arithmetic of convolution and pooling, and of their transposes.

    By which step the operand is read is seen by widening it; what is taken away from it
    follows, and is written as in textbooks where arguments have their usual names.
    """
    sizes = [v for v in chosen if v.is_size and v.operand == 0]
    if len(sizes) != 1:
        return
    (read,) = sizes
    size = target.size or 0
    step = find_step(probe, target, read)
    if step is not None:
        stride, first = step
        yield from propose_textbook(probe, chosen, read, stride)
        shift = size * stride - probe.values[read] - first
        sign = "+" if shift >= 0 else "-"
        yield Formula(f"floor(({{}} {sign} {abs(shift)}) / {stride}) + 1", (read,))
    wider = target.read({read: probe.values[read] + 1})
    if wider is not None and wider - size > 1:
        yield from propose_transposed(probe, chosen, read)
        stride = wider - size
        shift = size - (probe.values[read] - 1) * stride
        yield Formula(f"({{}} - 1) * {stride} + {shift}", (read,))


def find_step(probe: Probe, target: Target, read: Variable) -> tuple[int, int] | None:
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


class Terms:
    """Writes formulas of what a call is given by name.

    Args:
        probe: Makes the call.
        chosen: The numbers on which the size depends; others are constants.
        read: The size of the operand that is read.

    Attributes:
        parts: The numbers that were written so far.
    """

    def __init__(
        self, probe: Probe, chosen: Sequence[Variable], read: Variable
    ) -> None:
        self.parts = [read]
        self._values = probe.values
        self._chosen = chosen
        self._named: dict[str, Variable] = {}
        for variable in (*chosen, *probe.values):
            if not isinstance(variable.at, int):
                name = name_argument(probe.call, variable.at).partition("[")[0]
                self._named.setdefault(name, variable)
            elif variable in chosen and variable != read:
                self._named.setdefault("kernel_size", variable)

    def has(self, name: str) -> bool:
        """Whether something is given by a name."""
        return name in self._named

    def write(self, name: str, default: int) -> str:
        """Return how what is given by a name is written."""
        variable = self._named.get(name)
        if variable is None or variable not in self._chosen:
            return str(default if variable is None else self._values[variable])
        self.parts.append(variable)
        return "{}"


def propose_textbook(
    probe: Probe, chosen: Sequence[Variable], read: Variable, stride: int
) -> Iterator[Formula]:
    """Yield ``floor((n + 2p - d(k - 1) - 1) / s) + 1`` of what is given by name."""
    terms = Terms(probe, chosen, read)
    padding = terms.write("padding", 0)
    text = "{}" if padding == "0" else f"{{}} + 2 * {padding}"
    dilation = terms.write("dilation", 1)
    width = terms.write("kernel_size", 1)
    text += f" - {width}" if dilation == "1" else f" - {dilation} * ({width} - 1) - 1"
    if terms.has("stride"):
        steps = terms.write("stride", 1)
        yield Formula(f"floor(({text}) / {steps}) + 1", (*terms.parts,))
        return
    yield Formula(f"floor(({text}) / {stride}) + 1", (*terms.parts,))
    steps = terms.write("kernel_size", 1)  # as pooling has it
    yield Formula(f"floor(({text}) / {steps}) + 1", (*terms.parts,))


def propose_transposed(
    probe: Probe, chosen: Sequence[Variable], read: Variable
) -> Iterator[Formula]:
    """Yield ``(n - 1)s - 2p + d(k - 1) + o + 1`` of what is given by name."""
    terms = Terms(probe, chosen, read)
    text = f"({{}} - 1) * {terms.write('stride', 1)}"
    padding = terms.write("padding", 0)
    text += "" if padding == "0" else f" - 2 * {padding}"
    dilation = terms.write("dilation", 1)
    width = terms.write("kernel_size", 1)
    text += f" + {width}" if dilation == "1" else f" + {dilation} * ({width} - 1) + 1"
    extra = terms.write("output_padding", 0)
    text += "" if extra == "0" else f" + {extra}"
    yield Formula(text, (*terms.parts,))
