"""Shapes by name: ``[B, T, 3*D]`` for a block that names ``B``, ``T`` and ``D``.

The block is recorded again with each name moved alone. A size that moves with ``D`` and
is three times as large is ``3*D``; a formula counts only if it also holds where all
names have other values at once. Two names of one value are distinguished, as each moves
alone. Read :func:`find_dims`, then :func:`fit`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Final, NamedTuple, TypeAlias

from meta_magic.errors import TrialError
from meta_magic.recording.as_device.oracle.child import start_clock
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block
from meta_magic.trials.conditions import (
    AT_ONCE,
    SECONDS,
    check_unlooped,
    find_conditions,
)
from meta_magic.trials.fields import label
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.trial import ask_trials, check_rerun

STEPS: Final = (((1, 1), (2, 0)), ((3, 0), (1, 2)), ((1, -1),))
"""Other values of a name n, as (k, c) of k * n + c; the next ones where none runs."""

MAX_LETTERS: Final = 24
"""A size with a longer formula is shown as its number."""

N_JOINT: Final = 2
"""A formula must hold in so many recordings with several names moved."""

MAX_AUTO: Final = 8
"""How many names ``auto`` takes."""

Key: TypeAlias = tuple[object, ...]
"""What calls that are compared between recordings share, and which one of them."""

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Mapping[str, int]
Seen: TypeAlias = tuple[int | None, ...]
"""A size in each recording; None where its call is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The names of sizes in a block, and the formulas of its tensors' sizes.

    Attributes:
        values: By name the value in the block.
        shapes: By number of a tensor, its sizes as formulas; a size that depends on no
            name is its number.
        moving: How many sizes of tensors depend on a name.
        named: How many of these have a formula.
        caveats: Sentences on names that have no formulas, and why.
    """

    values: Mapping[str, int]
    shapes: Mapping[int, tuple[str, ...]] = field(repr=False)
    moving: int = 0
    named: int = 0
    caveats: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return "\n".join([listed, *self.caveats])


class Slots(NamedTuple):
    """The shapes of the tensors of a recording's calls.

    Attributes:
        keys: What identifies each call among those of its line.
        signatures: Which of ``shapes`` each call has.
        shapes: The shapes of the tensors that calls read and return.
    """

    keys: Sequence[Key]
    signatures: Sequence[int]
    shapes: Sequence[tuple[Shape, ...]]

    def find(self) -> dict[Key, tuple[Shape, ...]]:
        """Return the shapes of each call, by the call's key and its turn."""
        turns, found = Counter[Key](), {}
        for key, number in zip(self.keys, self.signatures, strict=True):
            found[*key, turns[key]] = self.shapes[number]
            turns[key] += 1
        return found


def read_slots(again: Trace, _variables: object = None) -> Slots:
    """Return the shapes of a recording's calls; runs in a child."""
    program, ops = again.program, OpCalls(again.program)
    words = memoryview(program.words).cast("I")
    keys: list[Key] = []
    known: dict[tuple[int, int, int], Key] = {}
    numbers = [words[offset] for offset in program.offsets[:-1]]
    for index, number in enumerate(numbers):
        offset = program.offsets[index]
        three = number, words[offset + 1], words[offset + 2]
        if three not in known:
            call = ops[index]
            where = call.position and (call.position.file, call.position.line)
            known[three] = (call.op, call.phase, call.root, call.module, where)
        keys.append(known[three])
    shapes = [
        tuple(tuple(one.shape) for one in (*s.inputs, *s.outputs))
        for s in program.signatures
    ]
    return Slots(keys, numbers, shapes)


class Moves:
    """Recordings of a block with other values of its names.

    Args:
        trace: The block, with all that it rests on.
        values: By name the value in the block.
    """

    def __init__(self, trace: Trace, values: Sizes) -> None:
        self._trace, self.values = trace, values
        self._find_rest = start_clock(SECONDS, 2 * SECONDS)
        self.is_over = False
        self.runs: list[tuple[Sizes, dict[Key, tuple[Shape, ...]]]] = []
        self.reasons: dict[str, str] = {}
        (usual,) = self._ask([{}])
        if isinstance(usual, TrialError):
            raise usual
        self.usual = usual

    def _ask(self, moved: Sequence[Sizes]) -> list[Slots | TrialError]:
        rest = self._find_rest()
        if rest <= 0:
            self.is_over = True
            return [TrialError("no time is left")] * len(moved)
        return ask_trials(self._trace, read_slots, moved, (), rest, at_once=AT_ONCE)

    def record(self, moved: Sequence[Sizes]) -> list[bool]:
        """Record the block at other values; return at which of them it runs."""
        answers = self._ask(moved)
        for sizes, answer in zip(moved, answers, strict=True):
            if isinstance(answer, TrialError):
                self.reasons.setdefault(next(iter(sizes)), str(answer))
            else:
                self.runs.append((sizes, answer.find()))
        return [not isinstance(answer, TrialError) for answer in answers]

    def list_moves(self, name: str) -> list[int]:
        """Return the values of one name alone at which the block ran."""
        return [one[name] for one, _ in self.runs if [*one] == [name]]


def find_dims(trace: Trace, specs: Sequence[str]) -> Dims:
    """Return the names of sizes in a block, and its shapes by these names.

    Args:
        trace: The recording.
        specs: Names, ``NAME=VALUE`` for a literal, or ``auto`` for all names.

    Raises:
        TrialError: The block cannot run again, or has no such name.
    """
    recordings = Recordings(trace)
    if [*specs] == ["auto"]:
        specs = [*recordings.list_sizes()][:MAX_AUTO]
    runs = recordings.find_trace(*specs)
    block = parse_block(check_rerun(runs))
    for spec in specs:
        check_unlooped(block, spec)
    values = {spec: recordings.read_size(spec) for spec in specs}
    moves = Moves(runs, values)
    check_same(trace, moves.usual)
    caveats = [*_move_each(trace, moves)]
    usual = moves.usual.find()
    tensors = list_tensors(trace.program, [*usual])
    joint = _move_together(moves)
    found = _fit_all(moves, tensors, joint)
    poor = {
        name
        for seen, text in found.items()
        if not text
        for name in _movers(moves, seen)
    }
    if poor and not moves.is_over:
        more = [{name: values[name] + step} for name in poor for step in (7, 19)]
        moves.record(more)
        found = _fit_all(moves, tensors, joint)
    return _build(moves, tensors, found, caveats)


def check_same(trace: Trace, again: Slots) -> None:
    """Refuse a block that does something else when it runs again.

    Raises:
        TrialError: Its calls have other shapes.
    """
    own = read_slots(trace)
    for mine, other in zip(own.signatures, again.signatures, strict=False):
        if own.shapes[mine] != again.shapes[other]:
            break
    else:
        if len(own.signatures) == len(again.signatures):
            return
    raise TrialError("the block does not do the same when it runs again")


def _move_each(trace: Trace, moves: Moves) -> Iterator[str]:
    """Record each name moved alone; yield sentences on names that do not move."""
    values = moves.values
    for steps in STEPS:
        still = [name for name in values if not moves.list_moves(name)]
        tried = [(name, k * values[name] + c) for name in still for k, c in steps]
        moves.record([{name: n} for name, n in tried if n])
    for name in values:
        if moves.list_moves(name):
            continue
        reason = moves.reasons.get(name, "").partition("\n")[0]
        if moves.is_over:
            yield f"{label(name)} has no formulas: {SECONDS:g} s were over"
            continue
        (found,) = find_conditions(trace, {name: None}, SECONDS / 2)
        others = [n for n in found.search.running if n != values[name]]
        if others:
            moves.record([{name: n} for n in others[:2]])
        else:
            only = f"{label(name)} has no formulas, as only {values[name]} runs"
            yield f"{only}: {reason}"


def _move_together(moves: Moves) -> list[int]:
    """Record all names moved at once; return which recordings these are."""
    choices = {name: moves.list_moves(name) for name in moves.values}
    choices = {name: found for name, found in choices.items() if found}
    if not choices:
        return []
    first = len(moves.runs)
    tried = [
        {name: found[at % len(found)] for name, found in choices.items()}
        for at in (0, 1)
    ]
    tried.append({name: 3 * moves.values[name] for name in choices})
    tried.append(
        {name: found[n % len(found)] for n, (name, found) in enumerate(choices.items())}
    )
    moves.record(
        [dict(one) for one in {tuple(one.items()): one for one in tried}.values()]
    )
    if len(moves.runs) < first + N_JOINT:  # names that depend on each other
        pairs = [
            {one: choices[one][0], other: choices[other][-1]}
            for one, other in product(choices, choices)
            if one < other
        ]
        moves.record(pairs[:MAX_AUTO])
    return [*range(first, len(moves.runs))]


class FirstUse(NamedTuple):
    """Where a tensor is first seen.

    Attributes:
        tensor: Its number.
        key: The key of the call.
        slot: Its index among the tensors that the call reads and returns.
        shape: Its shape.
    """

    tensor: int
    key: Key
    slot: int
    shape: Shape


def list_tensors(program: Program, keys: Sequence[Key]) -> list[FirstUse]:
    """Return where each tensor of a program is first seen."""
    words, found = memoryview(program.words).cast("I"), dict[int, FirstUse]()
    for key, offset in zip(keys, program.offsets, strict=False):
        signature = program.signatures[words[offset]]
        for slot, one in enumerate((*signature.inputs, *signature.outputs)):
            tensor = words[offset + HEADER + slot]
            found.setdefault(tensor, FirstUse(tensor, key, slot, tuple(one.shape)))
    return [*found.values()]


def _see(moves: Moves, use: FirstUse) -> Iterator[Seen]:
    """Yield each size of a tensor: in the block, then in each recording."""
    others = [calls.get(use.key) for _, calls in moves.runs]
    shapes = [
        one[use.slot] if one is not None and use.slot < len(one) else None
        for one in others
    ]
    for dim, size in enumerate(use.shape):
        yield (
            size,
            *(
                shape[dim]
                if shape is not None and len(shape) == len(use.shape)
                else None
                for shape in shapes
            ),
        )


def _movers(moves: Moves, seen: Seen) -> list[str]:
    """Return the names with which a size moves."""
    return [
        *dict.fromkeys(
            next(iter(sizes))
            for (sizes, _), size in zip(moves.runs, seen[1:], strict=True)
            if len(sizes) == 1 and size not in (None, seen[0])
        )
    ]


def _fit_all(
    moves: Moves, tensors: Sequence[FirstUse], joint: Sequence[int]
) -> dict[Seen, str]:
    """Return the formula of each size that is seen to move; "" for none."""
    moved = list(
        dict.fromkeys(
            seen for use in tensors for seen in _see(moves, use) if is_moving(seen)
        )
    )
    found = {seen: _fit_one(moves, seen, joint) for seen in moved}
    known = {seen: text for seen, text in found.items() if text and None not in seen}
    for seen, text in found.items():
        if text or None in seen:
            continue
        for other, formula in known.items():
            if any(not b or a % b for a, b in zip(seen, other, strict=True)):  # type: ignore[operator]  # no None
                continue
            rest = tuple(a // b for a, b in zip(seen, other, strict=True))  # type: ignore[operator]
            if rest in known:
                product_ = f"{_in_brackets(formula)}*{_in_brackets(known[rest])}"
                found[seen] = product_ if len(product_) <= MAX_LETTERS else ""
                break
    return found


def is_moving(seen: Seen) -> bool:
    """Whether a size differs between recordings."""
    return any(size not in (None, seen[0]) for size in seen[1:])


def _in_brackets(formula: str) -> str:
    is_sum = any(sign in formula for sign in " +-/")
    return f"({formula})" if is_sum and not formula.startswith("ceil(") else formula


def _fit_one(moves: Moves, seen: Seen, joint: Sequence[int]) -> str:
    """Return the formula of a size that holds in all recordings, or ""."""
    points = [
        (sizes, size)
        for (sizes, _), size in zip(moves.runs, seen[1:], strict=True)
        if size is not None
    ]
    if not any(seen[1 + at] is not None for at in joint):
        return ""
    alone = [
        (name, value, size)
        for one, size in points
        if len(one) == 1
        for name, value in one.items()
    ]
    short = {label(name): value for name, value in moves.values.items()}
    for formula in fit(moves.values, seen[0] or 0, alone):
        if len(formula) > MAX_LETTERS:
            continue
        holds = all(
            evaluate(formula, short | {label(n): v for n, v in one.items()}) == size
            for one, size in points
        )
        if holds:
            return formula
    return ""


def evaluate(formula: str, values: Sizes) -> int | None:
    """Return the value of a formula."""
    try:
        found = eval(formula, {"__builtins__": {}, "ceil": math.ceil}, dict(values))  # noqa: S307  ours
    except (ArithmeticError, NameError):
        return None
    return int(found)


POWERS: Final = (1, 2, -1, -2)


def fit(
    values: Sizes, size: int, moved: Sequence[tuple[str, int, int]]
) -> Iterator[str]:
    """Yield formulas that may be those of a size, the simplest first.

    Args:
        values: By name the value in the block.
        size: The size there.
        moved: (name, value, size) of recordings with one name moved.
    """
    for c in (0, 1, -1, 2, -2, 3, -3):
        if size - c > 0:
            text = _fit_product(values, size - c, [(n, v, s - c) for n, v, s in moved])
            if text:
                yield text if not c else f"{text} {'+' if c > 0 else '-'} {abs(c)}"
    names = {name for name, _, one in moved if one != size}
    if len(names) == 1:
        (name,) = names
        points = [(values[name], size)]
        points += [(value, one) for other, value, one in moved if other == name]
        yield from _fit_floor(label(name), points)


def _fit_product(
    values: Sizes, size: int, moved: Sequence[tuple[str, int, int]]
) -> str | None:
    """Return a rational number times powers of names, or None."""
    factor, powers = Fraction(size), dict[str, int]()
    for name in dict.fromkeys(name for name, _, _ in moved):
        ratios = [
            (Fraction(value, values[name]), Fraction(one, size))
            for other, value, one in moved
            if other == name
        ]
        if all(ratio == 1 for _, ratio in ratios):
            continue
        fitting = [p for p in POWERS if all(a**p == b for a, b in ratios)]
        if not fitting:
            return None
        powers[name] = fitting[0]
        factor /= Fraction(values[name]) ** fitting[0]
    above = [str(factor.numerator)] if factor.numerator != 1 else []
    above += [label(n) for n, p in powers.items() for _ in range(p)]
    below = [label(n) for n, p in powers.items() for _ in range(-p)]
    below = ([str(factor.denominator)] if factor.denominator != 1 else []) + below
    return "*".join(above or ["1"]) + "".join(f"//{one}" for one in below)


def _fit_floor(name: str, points: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield formulas with one division that is rounded."""
    low, high = min(points), max(points)
    slope = Fraction(high[0] - low[0], max(high[1] - low[1], 1))
    steps = {1, *range(max(1, int(slope) - 2), int(slope) + 4)}
    steps |= {2**k for k in range(1, 7)}
    for step in sorted(steps, key=lambda one: abs(one - slope)):
        for b in sorted(
            range(-4 * step, 4 * step), key=lambda b: (b not in (0, step - 1), abs(b))
        ):
            if all((value + b) // step == one for value, one in points):
                if step == 1:
                    yield f"{name} {'+' if b > 0 else '-'} {abs(b)}"
                elif b == step - 1:
                    yield f"ceil({name}/{step})"
                elif b == 0:
                    yield f"{name}//{step}"
                else:
                    yield f"({name} {'+' if b > 0 else '-'} {abs(b)})//{step}"
                break


def _build(
    moves: Moves,
    tensors: Sequence[FirstUse],
    found: Mapping[Seen, str],
    caveats: Sequence[str],
) -> Dims:
    """Return the names with the shapes of all tensors."""
    shapes, moving, named, used = {}, 0, 0, set[str]()
    for use in tensors:
        texts = []
        for seen in _see(moves, use):
            formula = found.get(seen, "") if is_moving(seen) else ""
            moving += is_moving(seen)
            named += bool(formula)
            used |= {*_movers(moves, seen)}
            texts.append(formula or str(seen[0]))
        shapes[use.tensor] = tuple(texts)
    idle = [
        f"no size depends on {label(name)}"
        for name in moves.values
        if name not in used and moves.list_moves(name)
    ]
    return Dims(
        values={label(name): value for name, value in moves.values.items()},
        shapes=shapes,
        moving=moving,
        named=named,
        caveats=(*caveats, *idle),
    )
