"""The search for a condition on a size, by few recordings.

:class:`SizeSearch` records a block at neighbours of its own size. :func:`find_form`
finds the step between sizes that run by its prime factors, and the limits by bisection;
a number in the code or in an error message is tried first, as a limit is often there.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from meta_magic.errors import TrialError

MAX_RECORDINGS: Final = 24
"""How many recordings are made for one name."""

NUMBER: Final = re.compile(r"\d+")
MAX_SIZE: Final = 1 << 17

MAX_OF_ONE: Final = 0.7
"""How many seconds a recording at a large size may take."""

MAX_HINTS: Final = 4
"""How many numbers of the code or of errors are tried as limits."""


class SizeVerdict(NamedTuple):
    """Whether a block runs at a size.

    Attributes:
        reason: Why it does not; "" if it runs.
        line: The line that fails; None if it is not known.
        is_raised: Whether it raises an error.
    """

    reason: str = ""
    line: int | None = None
    is_raised: bool = False
    seconds: float = 0.0


class Outcome(NamedTuple):
    """What is compared between a block and the block at another size.

    Attributes:
        error: Its error; None if it ran.
        line: The line of the error.
        dimensions: The number of dimensions of each variable that is a tensor.
        broadcasts: Line and text of each note on a broadcast.
        parameters: The shapes of the parameters and buffers that it made.
    """

    error: str | None
    line: int | None
    dimensions: Mapping[str, int]
    broadcasts: Sequence[tuple[int | None, str]]
    seconds: float
    parameters: Sequence[tuple[int, ...]] = ()


def judge(outcome: Outcome, usual: Outcome) -> SizeVerdict:
    """Return whether a block fails at a size, by its outcome at its own size."""
    seconds = outcome.seconds
    if outcome.error is not None:
        error = outcome.error.partition("\n")[0]
        return SizeVerdict(error, outcome.line, is_raised=True, seconds=seconds)
    for name, n in usual.dimensions.items():
        now = outcome.dimensions.get(name, n)
        if now != n:
            dimensions = "dimension" if now == 1 else "dimensions"
            reason = f"{name} has {now} {dimensions} instead of {n}"
            return SizeVerdict(reason, seconds=seconds)
    lines = {line for line, _ in usual.broadcasts}
    for line, text in outcome.broadcasts:
        if line not in lines:
            return SizeVerdict(text, line, seconds=seconds)
    return SizeVerdict(seconds=seconds)


class Over(Exception):  # noqa: N818  no error: the search ends with what it knows
    """Raised where no further recording may be made."""


class SizeSearch:
    """Records a block at sizes of a name, each once.

    Attributes:
        is_late: Whether the time was over before the search was.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[int]], Iterable[Outcome | TrialError]],
        size: int,
        n_most: int = MAX_RECORDINGS,
    ) -> None:
        self._ask, self._n_left = ask, n_most - 1
        self.size = size
        self.is_late = False
        self.seen: dict[int, SizeVerdict] = {}
        self.unknown: dict[int, str] = {}
        usual = next(iter(ask([size])), TrialError("one recording takes too long"))
        if isinstance(usual, TrialError):
            raise usual
        if usual.error is not None:
            raise TrialError(f"run again, it raises {usual.error}")
        self._usual = usual
        self.seen[size] = SizeVerdict(seconds=usual.seconds)

    def try_all(self, sizes: Iterable[int]) -> None:
        """Record the block at sizes, as many as may be."""
        known = {*self.seen, *self.unknown}
        todo = [n for n in dict.fromkeys(sizes) if n > 0 and n not in known]
        some = todo[: self._n_left]
        self._n_left -= len(some)
        for n, outcome in zip(some, self._ask(some), strict=False):
            if isinstance(outcome, TrialError):
                self.unknown[n] = str(outcome)
            else:
                self.seen[n] = judge(outcome, self._usual)
        self.is_late |= not {*some} <= {*self.seen, *self.unknown}
        if self.is_late or len(some) < len(todo):
            raise Over

    def runs(self, size: int) -> bool:
        """Whether the block runs at a size."""
        self.try_all([size])
        if size in self.unknown:
            raise Over
        return not self.seen[size].reason

    @property
    def failing(self) -> list[int]:
        """The sizes that fail."""
        return sorted(n for n, verdict in self.seen.items() if verdict.reason)

    @property
    def running(self) -> list[int]:
        """The sizes that run."""
        return sorted(n for n, verdict in self.seen.items() if not verdict.reason)


class Form(NamedTuple):
    """A condition on a size.

    Attributes:
        step: The distance of sizes that run.
        low: The smallest size that runs; None for no limit.
        high: The largest size that runs; None for no limit.
        rest: What is left of the size when it is divided by the step.
        width: How many rests run, counted from ``rest`` on, modulo ``step``.
        multiple: If not 0, only divisors of this number run.
        power: The power of the size that divides ``multiple``.
        small: The first and last of small sizes that run although the rest of the
            condition excludes them; None for none.
        listed: Sizes that run, where they follow no rule.
    """

    step: int = 1
    low: int | None = None
    high: int | None = None
    rest: int = 0
    width: int = 1
    multiple: int = 0
    power: int = 1
    small: tuple[int, int] | None = None
    listed: tuple[int, ...] = ()

    def holds(self, size: int) -> bool:
        """Whether a size fulfils the condition."""
        if self.listed:
            return size in self.listed
        if self.small is not None and self.small[0] <= size <= self.small[1]:
            return True
        return (
            (size - self.rest) % self.step < self.width
            and (self.low is None or size >= self.low)
            and (self.high is None or size <= self.high)
            and (not self.multiple or self.multiple % size**self.power == 0)
        )

    def write(self, name: str) -> str:
        """Return the condition as an expression of Python."""
        if self.listed[1:]:
            return f"{name} in {self.listed}"
        parts = [code for code, _ in self._walk_parts(name)]
        written = " and ".join(parts) or "True"
        if self.small is None:
            return written
        written = f"({written})" if parts[1:] else written
        return f"{written} or {_write_limits(name, *self.small)[0]}"

    def describe(self, name: str) -> str:
        """Return the condition in words."""
        if self.listed[1:]:
            listed = ", ".join(map(str, self.listed))
            return f"{name} must be one of {listed}, of the sizes that were tried"
        parts = [words for _, words in self._walk_parts(name)]
        low, high = self.listed * 2 or (self.low, self.high)
        if low is not None and low == high and self.small is None:
            return f"{name} must {': '.join(parts)}: no other size that was tried runs"
        small = "" if self.small is None else _write_limits(name, *self.small)[1]
        words = " and ".join(parts) + (small and f", or {small}")
        return f"{name} must {words}" if parts else ""

    def _walk_parts(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the parts of the condition, as an expression and in words."""
        if self.width > 1:
            size = f"({name} - {self.rest})" if self.rest else name
            rests = [(self.rest + one) % self.step for one in range(self.step)]
            has_most = 2 * self.width > self.step
            listed = rests[self.width :] if has_most else rests[: self.width]
            joint = " to " if listed[2:] else " or "
            left = joint.join(map(str, listed[:1] + listed[1:][-1:]))
            words = f"leave {left} when it is divided by {self.step}"
            code = f"{size} % {self.step} < {self.width}"
            if len(listed) == 1:
                code = f"{name} % {self.step} != {left}"
            yield code, f"not {words}" if has_most else words
        elif self.step > 1:
            rest = f"leave {self.rest} when it is divided by"
            words = rest if self.rest else "be a multiple of"
            yield f"{name} % {self.step} == {self.rest}", f"{words} {self.step}"
        if self.power > 1:
            code = f"{self.multiple} % {name}**{self.power} == 0"
            yield code, f"have a square that divides {self.multiple}"
        elif self.multiple:
            yield f"{self.multiple} % {name} == 0", f"divide {self.multiple}"
        low, high = self.listed * 2 or (self.low, self.high)
        if (low, high) != (None, None):
            yield _write_limits(name, low, high)


def _write_limits(name: str, low: int | None, high: int | None) -> tuple[str, str]:
    """Return limits of a size as an expression and in words; one must be there."""
    if low == high:
        return f"{name} == {low}", f"be {low}"
    if low is None:
        return f"{name} <= {high}", f"be at most {high}"
    if high is None:
        return f"{name} >= {low}", f"be at least {low}"
    return f"{low} <= {name} <= {high}", f"be from {low} to {high}"


def find_form(search: SizeSearch, hints: Collection[int]) -> Form:
    """Return the condition under which a block runs; ``hints`` may be its limits."""
    form = Form(listed=tuple(search.running))
    try:
        for form in _refine(search, hints):  # noqa: B007  the last one counts
            pass
    except Over:
        pass
    return check_form(search, form)


def check_form(search: SizeSearch, form: Form) -> Form:
    """Return a condition, or the sizes that run where it does not hold for all."""
    wrong = [n for n, v in search.seen.items() if form.holds(n) == bool(v.reason)]
    return Form(listed=tuple(search.running)) if wrong else form


def _refine(search: SizeSearch, hints: Collection[int]) -> Iterator[Form]:
    """Yield conditions, each nearer to what was recorded than that before."""
    n = search.size
    search.try_all([1, n - 1, n + 1, 2 * n])
    step = _find_step(search)
    if step == 0:  # no other size at a distance runs
        yield _find_multiple(search, hints) or Form(low=n, high=n)
        return
    if step > 1:
        search.try_all([n + 2 * step, n + step + 1, *([n - step] if n > step else [])])
    divided = _find_multiple(search, hints)
    if divided:
        yield divided
        return
    form = Form(step=step, rest=n % step)
    found = _find_rests(search, hints) if step == 1 else None
    if found:
        yield found
        form, step = found, found.step
        if not search.runs(found.rest or step if found.rest else 1):
            low = _find_low(search, step, hints) or n % step or step
            form = form._replace(low=low - (low - form.rest) % step)
        yield form
        form = form._replace(high=_find_high(search, step, hints))
        yield form
        yield _find_small(search, form)
        return
    yield form
    form = form._replace(low=_find_low(search, step, hints))
    yield form
    form = form._replace(high=_find_high(search, step, hints))
    yield form
    more = [n + k * step + d for k in (3, 7) for d in (0, *([1] if step > 1 else []))]
    search.try_all([*more, 2 if n % step == 1 else 1])
    yield _find_small(search, form)


def _find_small(search: SizeSearch, form: Form) -> Form:
    """Return a condition with the small sizes that run besides.

    A size of 1 is expanded to any other, so it may run where 2 and 3 do not.
    """
    extra = [n for n in search.running if n < search.size and not form.holds(n)]
    if not extra:
        return form
    fails = [n for n in search.failing if n > extra[-1]]
    first = last = extra[0]
    for size in range(extra[0] + 1, min(fails, default=search.size)):
        if not form.holds(size):
            if size not in extra[1:] and not search.runs(size):
                break
            last = size
    return form._replace(small=(first, last))


def _find_step(search: SizeSearch) -> int:
    """Return the distance of sizes that run; 0 if no other size is found."""
    n = search.size
    if search.runs(n + 1) or (n > 1 and search.runs(n - 1)):
        return 1
    widths = [n, 2, 3, *range(4, 9, 2), 5, 7, 12, 16, n - 1, n + 1, 32, 64]
    for width in dict.fromkeys(widths):
        if width <= 1:
            continue
        if search.runs(n + width) or (n > width and search.runs(n - width)):
            return _divide(search, width)
    return 0


def _divide(search: SizeSearch, width: int) -> int:
    """Return the smallest divisor of a distance at which sizes run."""
    n = search.size
    is_up = search.runs(n + width)
    for prime in _list_primes(width):
        while width % prime == 0 and width > prime:
            part = width // prime
            at = n + part if is_up or n <= part else n - part
            if not search.runs(at):
                break
            width = part
    return width


def _list_primes(number: int) -> list[int]:
    """Return the primes that divide a number."""
    found, rest = list[int](), number
    for prime in range(2, number + 1):
        if rest % prime == 0:
            found.append(prime)
        while rest % prime == 0:
            rest //= prime
        if rest == 1:
            break
    return found


def _find_rests(search: SizeSearch, hints: Collection[int]) -> Form | None:
    """Return a condition on the rest of a division; None if it is not found.

    Sizes run up to one, or from one on, although smaller and larger ones run: the last
    batch of a loader, sides that are rounded. The distance to the next such end divides
    the size, or is a number of the code.
    """
    n = search.size
    ends = []
    if not search.runs(n + 1) and search.runs(2 * n):
        ends = [(n, 1)]
    elif n > 1 and not search.runs(n - 1):
        is_rest = not search.runs(2 * n) or (n % 2 == 0 and search.runs(n // 2))
        ends = [(n, -1)] if is_rest else []
    elif search.runs(2 * n):
        near = sorted((one for one in hints if 1 < one < n), reverse=True)[:1]
        ends = [(n // one * one + one, 1) for one in near]
    for end, sign in ends:
        if search.runs(end + sign) or not search.runs(end):
            continue
        widths = [one for one in range(2, end) if end % one == 0]
        for width in dict.fromkeys([*widths[:6], *sorted(hints)]):
            is_end = 1 < width < MAX_SIZE and not search.runs(end + sign + width)
            if is_end and search.runs(end + width):
                other = _bisect(search, end + sign * (1 - width), end, 1, ())
                first, n_run = min(end, other), abs(end - other) + 1
                return Form(step=width, rest=first % width, width=n_run)
    return None


def _find_multiple(search: SizeSearch, hints: Collection[int]) -> Form | None:
    """Return that exactly the sizes run that divide a number, or whose squares do."""
    numbers = sorted({*hints, *_list_reported(search)}, reverse=True)
    for one, power in [(one, power) for power in (1, 2) for one in numbers]:
        form = Form(multiple=one, power=power)
        known = search.seen.items()
        if any(form.holds(size) is bool(verdict.reason) for size, verdict in known):
            continue
        divisors = [d for d in range(2, one + 1) if form.holds(d)]
        running = [d for d in divisors if d not in search.seen][:1] + divisors[-1:]
        others = (d for d in range(3, one) if not form.holds(d))
        failing = [d for d in others if d not in search.seen][:1]
        failing.append(2 * one)
        if all(map(search.runs, running)) and not any(map(search.runs, failing)):
            return form
    return None


def _list_reported(search: SizeSearch) -> list[int]:
    """Return the numbers that errors name, the most frequent first."""
    found = [
        int(number)
        for n, verdict in search.seen.items()
        if verdict.reason
        for number in {*NUMBER.findall(verdict.reason)} - {str(n)}
        if int(number) < MAX_SIZE
    ]
    return sorted({*found}, key=lambda one: -found.count(one))


def _find_low(search: SizeSearch, step: int, hints: Collection[int]) -> int | None:
    """Return the smallest size that runs; None if every size of the step runs."""
    n = search.size
    first = n % step or step
    if search.runs(first):
        return None
    low = _bisect(search, first, min(n, *search.running), step, hints)
    gaps = [m for m in search.failing if low < m < n and (n - m) % step == 0]
    return _bisect(search, max(gaps), n, step, ()) if gaps else low


def _find_high(search: SizeSearch, step: int, hints: Collection[int]) -> int | None:
    """Return the largest size that runs; None if none was found."""
    n, low = search.size, max(search.running)
    above = [m for m in search.failing if m > n and (m - n) % step == 0]
    largest = max((one for one in hints if one < MAX_SIZE), default=0)
    tried = [8 * n, 64 * n, largest + step]
    for size in (n + (one - n + step - 1) // step * step for one in tried):
        if above:
            break
        seconds, usual = search.seen[low].seconds, search.seen[n].seconds
        is_growing = low > 2 * n and seconds > 2 * usual
        if size <= low or (is_growing and seconds * size / low > MAX_OF_ONE):
            continue
        if search.runs(size):
            low = size
        else:
            above = [size]
    if not above:
        return None
    low = max(m for m in search.running if m < min(above))
    return _bisect(search, min(above), low, step, hints)


def _bisect(
    search: SizeSearch, fails: int, runs: int, step: int, hints: Collection[int]
) -> int:
    """Return the last size that runs, on the way to one that fails."""
    sign = 1 if fails > runs else -1
    tries = [*_list_reported(search), *sorted(hints, key=lambda one: -one)]

    for hint in tries[:MAX_HINTS]:
        near = search.size + (hint - search.size) // step * step
        for size in (near, near + step):
            if min(runs, fails) < size < max(runs, fails):
                fails, runs = (fails, size) if search.runs(size) else (size, runs)
    while abs(fails - runs) > step:
        middle = runs + (fails - runs) // (2 * step) * step
        middle = middle if middle != runs else runs + sign * step
        fails, runs = (fails, middle) if search.runs(middle) else (middle, runs)
    return runs
