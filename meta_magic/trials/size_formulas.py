"""Formulas that a size may have: ``3*D``, ``(L - P)//S + 1``, ``B*(side//patch)**2``.

A size is known at several values of the names. Most formulas follow from what it does
where one name moves alone; all must hold at every value. Read :func:`propose`, then
:func:`factor`.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from types import CodeType
from typing import Final, TypeAlias

from meta_magic.trials.blocks import Sizes

MAX_LETTERS: Final = 24
"""A size with a longer formula is shown as its number."""

INNERMOST: Final = re.compile(r"\([^()]*\)")
NUMBER: Final = re.compile(r"\b\d+")
MAX_STEP: Final = 4096

MAX_SHARE: Final = 4
"""The largest divisor of a product of names that is rounded, as in ``8*D//3``."""

MAX_ROUNDED: Final = 4
"""The most names of a product that is divided and rounded."""

MAX_SHARED: Final = 64
"""The largest divisor that is tried where several names are divided."""

Points: TypeAlias = Sequence[tuple[Sizes, int]]
"""A size, and the values of all names that it has there; first that of the block."""

Movers: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""By name the values at which it moved alone, and the size there."""


def choose(points: Points, formulas: Iterable[str]) -> str:
    """Return the best formula that is right at all points, or ""."""
    fitting = (
        text
        for text in dict.fromkeys(formulas)
        if len(text) <= MAX_LETTERS
        and all(evaluate(text, sizes) == size for sizes, size in points)
    )
    return min(fitting, key=partial(_rank, points), default="")


def _rank(points: Points, formula: str) -> tuple[bool, int, int]:
    """Return what makes a formula worse: that it rounds, large numbers, letters.

    Where the block runs at 64, 128 and 192 alone, ``H//15`` is ``H//16`` there.
    """
    exact = _compile(formula.replace("//", "/"))
    is_rounded = any(
        eval(exact, {"__builtins__": {}, "ceil": float, **sizes}) != size  # noqa: S307  ours
        for sizes, size in points
    )
    return is_rounded, sum(map(int, NUMBER.findall(formula))), len(formula)


@lru_cache(maxsize=4096)
def _compile(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def evaluate(formula: str, values: Sizes) -> int | None:
    """Return the value of a formula."""
    names = {"__builtins__": {}, "ceil": math.ceil, **values}
    try:
        found = eval(_compile(formula), names)  # noqa: S307  ours
    except (ArithmeticError, NameError):
        return None
    return int(found)


def propose(points: Points, n_rounded: int = 1) -> Iterator[str]:
    """Yield formulas that may be those of a size.

    Products of ``n_rounded`` names may be divided and rounded. ``8*H*d//3`` is rarer
    than ``B*(S//4)``, and both may hold at all points.
    """
    values, size = points[0]
    alone = dict[str, list[tuple[int, int]]]()
    for at, one in points:
        moved = [name for name in values if values[name] != at[name]]
        if len(moved) == 1:
            alone.setdefault(moved[0], []).append((at[moved[0]], one))
    movers = {
        name: pairs
        for name, pairs in alone.items()
        if any(one != size for _, one in pairs)
    }
    for c in (0, 1, -1, 2, -2, 3, -3):
        rests = [(at, one - c) for at, one in points]
        for text in _propose_product(rests, movers, c, n_rounded):
            yield _add(text, c)
    yield from _propose_sum(values, size, movers)
    yield from _propose_rounded(points, movers)


def factor(points: Points, known: Collection[str], depth: int = 2) -> Iterator[str]:
    """Yield formulas of a size that is a product, with a constant or without.

    Up to ``depth`` of the factors are formulas of other sizes (``known``).
    """
    formulas = [text for text in known if not text.isidentifier()]
    for c in (0, 1, -1, 2, -2) if depth > 1 else (0,):
        rests = [(at, one - c) for at, one in points]
        if any(rest < 1 for _, rest in rests):
            continue
        roots = [(at, math.isqrt(rest)) for at, rest in rests]
        if all(a * a == b for (_, a), (_, b) in zip(roots, rests, strict=True)):
            root = choose(roots, [*propose(roots), *known])
            if root:
                yield _add(_multiply(root, root), c)
        for text in formulas:
            parts = [evaluate(text, at) for at, _ in rests]
            if any(
                not n or rest % n for n, (_, rest) in zip(parts, rests, strict=True)
            ):
                continue
            left = [
                (at, one // (n or 1)) for n, (at, one) in zip(parts, rests, strict=True)
            ]
            others = factor(left, known, depth - 1) if depth > 1 else ()
            found = choose(left, propose(left)) or choose(left, others)
            if found:
                yield _add(_multiply(found, text), c)
    if depth > 1:
        yield from propose(points, MAX_ROUNDED)


def _multiply(first: str, second: str) -> str:
    """Return the text of a product."""
    second = _in_brackets(second, " +-/")
    if second in (first, f"({first})") or first.endswith(f"*{second}"):
        return (second if first in second else first) + "**2"
    return f"{_in_brackets(first, ' ')}*{second}"


def _in_brackets(formula: str, signs: str) -> str:
    """Return a formula in brackets, if it has one of these signs outside of them."""
    outside = formula
    while outside != (outside := INNERMOST.sub("", outside)):
        pass
    return f"({formula})" if any(sign in outside for sign in signs) else formula


def _add(text: str, constant: int) -> str:
    sign = "+" if constant > 0 else "-"
    return f"{text} {sign} {abs(constant)}" if constant else text


def _propose_product(
    points: Points, movers: Movers, c: int, n_rounded: int
) -> Iterator[str]:
    """Yield a rational number times powers of names; ``c`` is what movers have more."""
    values, size = points[0]
    if size <= 0:
        return
    powers = dict[str, int]()
    for name, pairs in movers.items():
        ratios = [(Fraction(v, values[name]), one - c) for v, one in pairs]
        for power in (1, 2, -1, -2):
            grown = [(size * r**power, (size + 1) * r**power, n) for r, n in ratios]
            if all(least < n + 1 and n < most for least, most, n in grown):
                powers[name] = power
                break
        else:
            return
    products = [
        (math.prod([Fraction(at[n]) ** power for n, power in powers.items()]), one)
        for at, one in points
    ]
    least, *others = sorted(Fraction(n) / made for made, n in products)
    most = min(Fraction(n + 1) / made for made, n in products)
    near = [Fraction(math.ceil(least * n), n) for n in range(1, MAX_SHARE + 1)]
    if {*others} <= {least}:
        near = [least]
    elif len(movers) > n_rounded:
        return
    for factor in [one for one in near if one < most][:1]:
        above = [str(factor.numerator)] if factor.numerator != 1 else []
        above += [name for name, power in powers.items() for _ in range(power)]
        below = [str(factor.denominator)] if factor.denominator != 1 else []
        below += [name for name, power in powers.items() for _ in range(-power)]
        yield "*".join(above or ["1"]) + "".join(f"//{one}" for one in below)


def _write_sum(slopes: Mapping[str, int], constant: int) -> str:
    """Return the text of a sum of multiples of names."""
    text = ""
    for name, n in sorted(slopes.items(), key=lambda one: one[1] < 0):
        part = name if abs(n) == 1 else f"{abs(n)}*{name}"
        sign = ("-" if n < 0 else "") if not text else " - " if n < 0 else " + "
        text += sign + part
    return _add(text, constant)


def _propose_sum(values: Sizes, size: int, movers: Movers) -> Iterator[str]:
    """Yield a sum of multiples of names, and a constant."""
    slopes, rest = dict[str, int](), size
    for name, pairs in movers.items():
        value, one = pairs[0]
        slope, left = divmod(one - size, value - values[name])
        if left or not slope:
            return
        slopes[name] = slope
        rest -= slope * values[name]
    if slopes:
        yield _write_sum(slopes, rest)


def _propose_rounded(points: Points, movers: Movers) -> Iterator[str]:
    """Yield sums of names, divided by a number or a name, and rounded."""
    values, size = points[0]
    bounds = {  # how much a size grows by one of a name
        name: [
            sorted(Fraction(one - size + d, value - values[name]) for d in (-1, 1))
            for value, one in pairs
        ]
        for name, pairs in movers.items()
    }
    slopes = {
        name: (max(low for low, _ in found), min(high for _, high in found))
        for name, found in bounds.items()
    }
    if not slopes:
        return
    if len(slopes) == 1:
        (ends,) = slopes.values()
        widest = min(MAX_STEP, int(1 / ends[0]) + 1 if ends[0] > 0 else MAX_STEP)
    else:
        widest = MAX_SHARED
    for step in range(2, widest + 1):
        yield from _divide(points, slopes, str(step), [step] * len(points))
    for name in movers:
        others = {n: ends for n, ends in slopes.items() if n != name}
        for k in (1, 2, 4) if others else ():
            text = name if k == 1 else f"{k}//{name}"
            yield from _divide(points, others, text, [k * at[name] for at, _ in points])


def _divide(
    points: Points,
    slopes: Mapping[str, tuple[Fraction, Fraction]],
    divisor: str,
    steps: Sequence[int],
) -> Iterator[str]:
    """Yield sums of names, divided by what has the values ``steps``, and rounded."""
    tried = [
        [n for n in (1, -1, 2, -2) if low < Fraction(n, steps[0]) < high]
        for low, high in slopes.values()
    ]
    for numbers in product(*tried):
        if 1 not in numbers:
            continue
        factors = dict(zip(slopes, numbers, strict=True))
        sums = [sum(n * at[name] for name, n in factors.items()) for at, _ in points]
        for k in (0, 1, 2, -1):
            rows = [*zip(sums, steps, points, strict=True)]
            least = max((one - k) * step - total for total, step, (_, one) in rows)
            most = min(
                (one - k + 1) * step - 1 - total for total, step, (_, one) in rows
            )
            if k == 1 and least <= -1 <= most:
                yield f"ceil({_in_brackets(_write_sum(factors, 0), ' ')}/{divisor})"
            elif least <= most and (k == 0 or not divisor.isdigit()):
                nearest = min(max(least, 0), most)
                text = _in_brackets(_write_sum(factors, nearest), " ")
                yield _add(f"{text}//{divisor}", k)
