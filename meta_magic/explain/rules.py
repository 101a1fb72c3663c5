"""The rule that a failed call broke, such as "dimension 1 of x must equal ...".

No rule of any operator is written here: the call is made again (:class:`Probe`) with
one number changed, then with several equal ones, another dtype, or another form of an
operand. What torch accepts says what it asks for: a size that must grow when another
one grows, must equal it. Read :func:`find_rules` first.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise
from math import prod
from typing import Final, NamedTuple

from torch import Tensor

from meta_magic.explain.edits.accepted import (
    CONTIGUOUS,
    DETACHED,
    OF_ORDER,
    is_class_loss,
    list_accepted_casts,
    list_accepted_forms,
    list_layouts,
)
from meta_magic.explain.edits.program_text import ATOMS
from meta_magic.explain.probing import Change, Probe, Variable
from meta_magic.trace.failed_call import UNNAMED, FailedCall, Operand
from meta_magic.trace.signature import TensorArgument
from meta_magic.trace.units import format_shape

OF_GRAPHS: Final = re.compile(r"grad|leaf|leaves")
"""Part of messages about the graph of a tensor."""

OF_INDEX: Final = re.compile(r"too many indices for tensor of dimension (\d+)")
"""Part of the message if an index has more parts than a tensor dimensions."""

MAX_RULES: Final = 4
MAX_PARTS: Final = 4
NEAR_BELOW: Final = 8
NEAR_ABOVE: Final = 16
"""How far below and above a number its limits are looked for."""


def find_rules(probe: Probe, error: str) -> tuple[str, ...]:
    """Return the rules that a call broke, in sentences; none where none is found."""
    if probe.accepts():
        return ()
    found = _list_rules(probe, error)
    while not found and probe.device is not None and probe.skip_device():
        found = _list_rules(probe, error)  # a device may refuse for its own reasons
    return tuple(islice(dict.fromkeys(found), MAX_RULES))


def _list_rules(probe: Probe, error: str) -> list[str]:
    if said := _read_message(error):
        return [said]
    sure = [*_find_count_rules(probe)] or [*_find_layout_rules(probe)]
    if sure:
        return sure
    sizes = [*islice(_relate_numbers(probe), MAX_RULES)] or [*_relate_groups(probe)]
    is_of_graphs = OF_GRAPHS.search(error) is not None
    detached = _find_detach_rules(probe) if is_of_graphs else []
    found = [*sizes, *(detached or _find_cast_rules(probe))]
    if found:
        return found
    forms = [*_find_form_rules(probe)]
    ranks = [len(one.geometry.shape) for one in probe.call.operands]
    is_turned = len(ranks) > len({*ranks}) == 1 and bool(forms)  # of two alike, one is
    return [
        *(
            [*_relate_columns(probe)]
            or [*_relate_shapes(probe)]
            or ([] if is_turned else _find_rank_rules(probe))
        ),
        *forms,
        *_find_item_rules(probe),
    ]


def _read_message(error: str) -> str:
    """Return the rule that a message of torch gives by itself; else ""."""
    if order := OF_ORDER.search(error):
        return f"permute takes each of {order[1]} dimensions once; {order[2]} are given"
    if rank := OF_INDEX.search(error):
        return f"the index has more parts than the tensor has dimensions ({rank[1]})"
    return ""


def _find_layout_rules(probe: Probe) -> Iterator[str]:
    """Yield in which dimension a loss wants the classes, if that is what it refuses."""
    layouts = list_layouts(probe)
    if layouts:
        scores, targets = (operand for operand in probe.call.operands[:2])
        *others, n_classes = scores.geometry.shape
        asked = f"({prod(others)}, {n_classes}) with ({prod(others)},)"
        if len(targets.geometry.shape) == len(others):
            turned = format_shape((others[0], n_classes, *others[1:]))
            asked = f"{turned} with {format_shape(tuple(others))}, or {asked}"
        yield f"the classes must be dimension 1 of {scores.name}: {asked}, is accepted"


def _relate_numbers(probe: Probe) -> Iterator[str]:
    """Yield what one number must be; numbers that depend on others come first."""
    seen: set[frozenset[Variable]] = set()
    limits = []
    for variable in probe.values:
        accepted = probe.find_values(variable)
        found = [r for size in accepted for r in _find_relations(probe, variable, size)]
        # A size may be 1 instead, where it is broadcast then.
        is_larger = variable.is_size and probe.values[variable] != 1
        for text, other in dict.fromkeys(found):
            pair = frozenset((variable, other))
            if pair not in seen:
                seen.add(pair)
                is_one = is_larger and 1 in accepted and probe.values[other] != 1
                one = " or be 1" if is_one else ""
                yield f"{probe.label(variable)} {text} {probe.label(other)}{one}"
        if accepted and not found:
            limits.append((variable, accepted))
    for variable, accepted in limits:
        limit = _find_limit(probe, variable, accepted)
        yield f"{probe.label(variable)} {limit}"


def _find_relations(
    probe: Probe, variable: Variable, size: int
) -> Iterator[tuple[str, Variable]]:
    """Yield how a number depends on others, given a value it is accepted with.

    It depends on another number if it must grow when the other one grows. Several equal
    numbers may have to grow together; then only the first of them is yielded.
    """
    others = [other for other in probe.values if other != variable]
    equal = [other for other in others if probe.values[other] == size]
    found = [
        (factor, other)
        for factor in (1, 2)
        for other in others
        if probe.values[other] * factor == size
        and _must_grow(probe, variable, size, factor, [other])
    ]
    if not found and len(equal) > 1 and _must_grow(probe, variable, size, 1, equal):
        found = [(1, equal[0])]
    for factor, other in found:
        yield _describe_relation(probe, variable, size, factor), other


def _must_grow(
    probe: Probe, variable: Variable, size: int, factor: int, others: Sequence[Variable]
) -> bool:
    """Whether a number must grow by a factor if others grow by 1."""
    moved = {other: probe.values[other] + 1 for other in others}
    grown = {**moved, variable: size + factor}
    return probe.seems_accepted(grown) and not probe.seems_accepted(
        {**moved, variable: size}
    )


def _describe_relation(probe: Probe, variable: Variable, size: int, factor: int) -> str:
    """Return how a number depends on another one, such as "must equal"."""
    if probe.seems_accepted({variable: size + 1}):
        return "must be at least"
    if probe.seems_accepted({variable: size + size // factor}):
        return "must be a multiple of"
    parts = [n for n in range(2, size) if size % n == 0][:MAX_PARTS]
    if factor == 1 and any(probe.seems_accepted({variable: n}) for n in parts):
        return "must divide"
    return "must equal" if factor == 1 else "must be twice"


def _find_limit(probe: Probe, variable: Variable, accepted: Sequence[int]) -> str:
    value = probe.values[variable]
    least = 1 if variable.is_size else -NEAR_BELOW
    below = range(max(value - NEAR_BELOW, least), value)
    above = range(value + 1, value + NEAR_ABOVE + 1)
    good = [n for n in (*below, *above) if probe.seems_accepted({variable: n})]
    if good and good == list(above):
        return f"must be at least {above[0]}"
    if good and good == list(below):
        return f"must be at most {below[-1]}"
    steps = {after - before for before, after in pairwise(good)}
    if steps == {1} and not {min((*below, value)), above[-1]} & {*good}:
        return f"must be from {good[0]} to {good[-1]}"
    step = steps.pop() if len(steps) == 1 else 0
    if step > 1 and good[0] % step == 0 and len(good) > 2:  # noqa: PLR2004  two are no row
        return f"must be a multiple of {step}"
    nearest = sorted({*good, *accepted}, key=lambda n: (abs(n - value), n))
    return f"would be accepted as {' or '.join(map(str, nearest[:3]))}"


def _relate_groups(probe: Probe) -> Iterator[str]:
    """Yield what several equal numbers must be, all together."""
    for group in probe.list_groups():
        names = " and ".join(map(probe.label, group))
        sizes = probe.find_values(*group)
        if sizes:
            shown = " or ".join(map(str, sizes[:3]))
            yield f"{names} would be accepted as {shown}, together"


def _find_cast_rules(probe: Probe) -> Iterator[str]:
    for number, operand in enumerate(probe.call.operands):
        for change in list_accepted_casts(probe, number)[:1]:
            dtype = str(operand.geometry.dtype).removeprefix("torch.")
            yield f"{operand.name} is {dtype}: {_write(change, operand)} is accepted"


def _find_form_rules(probe: Probe) -> Iterator[str]:
    """Yield which other form of an operand is accepted, such as ``x.unsqueeze(0)``."""
    for number, operand in enumerate(probe.call.operands):
        is_named = operand.name != UNNAMED
        for change in list_accepted_forms(probe, number)[:1] if is_named else ():
            returned = probe.run(changes={number: change}) or ()
            gives = f", and gives {returned[0]}" if returned else ""
            yield f"{_write(change, operand)} is accepted{gives}"


def _write(change: Change, operand: Operand) -> str:
    name = "" if operand.name == UNNAMED else operand.name
    with suppress(SyntaxError):  # a name may be followed by its cell and line
        if not isinstance(ast.parse(name, mode="eval").body, (*ATOMS, ast.Tuple)):
            name = f"({name})"
    return change.text.format(name)


RESHAPING: Final = frozenset({"view", "reshape"})


def _find_count_rules(probe: Probe) -> Iterator[str]:
    """Yield why a ``view`` or a ``reshape`` is refused: its elements, or its strides.

    Changing one size at a time does not show that the product of all sizes counts.
    """
    call = probe.call
    is_reshaping = getattr(probe.function, "__name__", "") in RESHAPING
    if not (is_reshaping and len(call.operands) == 1):
        return
    operand = call.operands[0]
    shape = operand.geometry.shape
    wanted = [n for v, n in probe.values.items() if not v.is_size]
    n_elements, fixed = prod(shape), prod(n for n in wanted if n != -1)
    if probe.accepts(changes={0: CONTIGUOUS}):
        strides = f"{operand.name} has strides {operand.geometry.stride}"
        yield f"{strides}, which allow no such view; {operand.name}.reshape() copies"
        return
    is_whole = n_elements == fixed if -1 not in wanted else n_elements % fixed == 0
    if wanted and fixed > 0 and not is_whole:
        asked = " x ".join(map(str, wanted)) + _propose_rest(wanted, n_elements)
        written = " * ".join([*map(str, shape)])
        equals = f"{written} = " if len(shape) > 1 else ""
        yield f"{equals}{n_elements:,} elements cannot be {asked}"


def _propose_rest(wanted: list[int], n_elements: int) -> str:
    """Return which size -1 could replace, and what it would be."""
    found = []
    for at, size in enumerate(wanted):
        rest = prod(n for other, n in enumerate(wanted) if other != at)
        if size != -1 and -1 not in wanted and rest > 0 and n_elements % rest == 0:
            found.append(f"-1 instead of {size} would be {n_elements // rest}")
    return "".join(f"; {one}" for one in found[-1:])


MAX_RANK: Final = 5

MAX_OPERANDS: Final = 6
"""How many operands are compared with each other."""


def _relate_columns(probe: Probe) -> Iterator[str]:
    """Yield which dimension must be equal in all operands, as in ``torch.cat``."""
    operands = probe.call.operands
    rank = min((len(o.geometry.shape) for o in operands), default=0)
    for dim in range(rank if len(operands) > 2 else 0):  # noqa: PLR2004  two are a pair
        column = [Variable(number, dim) for number, _ in enumerate(operands)]
        equal = dict.fromkeys(column, probe.values[column[0]])
        if probe.accepts(equal):
            names = ", ".join(map(probe.label, column[:MAX_OPERANDS]))
            yield f"{names} must be equal"


def _relate_shapes(probe: Probe) -> Iterator[str]:
    """Yield which operand must have the shape of another one."""
    operands = probe.call.operands[:MAX_OPERANDS]
    for number, operand in enumerate(operands):
        for other in operands:
            shape, own = other.geometry.shape, operand.geometry.shape
            grown = (*shape[:-1], shape[-1] + 1) if shape else (2,)
            is_wanted = shape != own and _has_shape(probe, [number], shape)
            if is_wanted and not _has_shape(probe, [number], grown):
                wanted = f"the shape of {other.name}, {format_shape(shape)}"
                yield f"{operand.name} {format_shape(own)} must have {wanted}"


def _find_rank_rules(probe: Probe) -> Iterator[str]:
    for group in _list_by_rank(probe.call.operands):
        ranks = [n for n in range(MAX_RANK + 1) if _is_rank(probe, group, n)]
        if ranks:
            operands = [probe.call.operands[number] for number in group]
            rank = len(operands[0].geometry.shape)
            names = ", ".join(operand.name for operand in operands[:MAX_OPERANDS])
            has = "has" if len(group) == 1 else "have"
            plural = "" if rank == 1 else "s"
            accepted = " or ".join(map(str, ranks))
            are = "is" if ranks == [1] else "are"
            yield f"{names} {has} {rank} dimension{plural}: {accepted} {are} accepted"


def _list_by_rank(operands: Sequence[Operand]) -> list[list[int]]:
    """Return each operand alone, then all operands of the same rank together."""
    alone = [[number] for number, _ in enumerate(operands)][:MAX_OPERANDS]
    ranks = [len(operand.geometry.shape) for operand in operands]
    together = [
        [number for number, other in enumerate(ranks) if other == rank]
        for rank in dict.fromkeys(ranks)
    ]
    return alone + [group for group in together if len(group) > 1]


def _is_rank(probe: Probe, numbers: Sequence[int], rank: int) -> bool:
    shape = probe.call.operands[numbers[0]].geometry.shape
    n_more = rank - len(shape)
    if n_more == 0:
        return False
    if n_more > 0:
        shapes = {(*shape, *[1] * n_more), (*[1] * n_more, *shape)}
    else:
        shapes = {shape[:rank], shape[-n_more:]}
    return any(_has_shape(probe, numbers, one) for one in shapes)


def _has_shape(probe: Probe, numbers: Sequence[int], shape: Sequence[int]) -> bool:

    def make(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(tuple(shape)).requires_grad_(tensor.requires_grad)

    change = Change(f"{{}} {tuple(shape)}", make)
    return probe.accepts(changes=dict.fromkeys(numbers, change))


def _find_detach_rules(probe: Probe) -> list[str]:
    """Return which operand is accepted without its history, in sentences."""
    return [
        f"{operand.name} requires a gradient: {_write(DETACHED, operand)} is accepted"
        for number, operand in enumerate(probe.call.operands)
        if operand.requires_grad and probe.accepts(changes={number: DETACHED})
    ]


def _find_item_rules(probe: Probe) -> Iterator[str]:
    """Yield which argument is accepted if it is replaced by one of its items."""
    call = probe.call
    for at, value in enumerate(call.args):
        items = value if isinstance(value, (tuple, list)) else ()
        for number, item in enumerate(items):
            if not isinstance(item, TensorArgument):
                continue
            changed = replace(call, args=(*call.args[:at], item, *call.args[at + 1 :]))
            if Probe(probe.function, changed, probe.record).accepts():
                operand = call.operands[item.index]
                name = operand.name.removesuffix(f"[{number}]")
                kind = f"a {type(value).__name__} of {len(items)}"
                shape = format_shape(operand.geometry.shape)
                yield f"{name} is {kind}: its item {number}, {shape}, is accepted"
                return


class ValueRange(NamedTuple):
    """A value that is out of range.

    Attributes:
        rule: The value and the size that limits it, in a sentence.
        limit: The size; None if no operand has it.
        needed: The size that all values ask for; None if one is negative.
    """

    rule: str
    limit: Variable | None = None
    needed: int | None = None


def find_value_range(failed: FailedCall) -> ValueRange | None:
    """Return which value a call refused, if that is what it refused."""
    wrong = failed.wrong_value
    if wrong is None or type(wrong.value) is not int or type(wrong.high) is not int:
        return None
    high, value = wrong.high, wrong.value
    geometries = [operand.geometry for operand in failed.operands]
    are_floats = [geometry.dtype.is_floating_point for geometry in geometries]
    named = [failed.operands[n].name for n, one in enumerate(are_floats) if not one]
    name = named[0] if len(named) == 1 else "an index"
    is_named = name.replace("_", "").replace(".", "").isalnum()
    shown = str(wrong) if is_named else str(wrong._replace(at=()))
    name = name if is_named else f"a value of {name}"
    limits = [
        Variable(number, dim)
        for number, geometry in enumerate(geometries)
        for dim, size in enumerate(geometry.shape)
        if size == high + 1 and are_floats[number]
    ]
    if not (named or limits):  # a matrix that cannot be inverted
        return None
    rule = f"{name}{shown}: 0 to {high} are allowed"
    if is_class_loss(failed):
        limits = [limit for limit in limits if limit.at == 1] or limits[-1:]
    if not limits:
        return ValueRange(rule)
    operand = failed.operands[limits[0].operand].name
    rule = f"{rule} by dimension {limits[0].at} of {operand} ({high + 1})"
    needed = int(max(wrong.largest, value)) + 1
    return ValueRange(rule, limits[0], needed if value >= 0 else None)
