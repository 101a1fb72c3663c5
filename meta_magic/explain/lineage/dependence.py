"""Which numbers of a call decide a size of what it returns, found by trying others."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from meta_magic.explain.argument_names import name_argument
from meta_magic.explain.probing import Probe, Variable

__all__ = ["Group", "Target", "find_groups", "list_moves", "list_units"]

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
