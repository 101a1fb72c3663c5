"""What differs between two designs: ``mm.diff(a, b)``, ``%%meta --diff``.

Modules are matched by name, order, class and content (``design.align``); the rest are
comparisons of plain records. Read :func:`compare` first.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, islice, takewhile
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeVar

from meta_magic.designs.design import Design, Pair, Part, align
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import (
    format_bytes,
    format_count,
    format_flops,
    format_shape,
)

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a module, or the same change of several.

    Attributes:
        kind: ``added``, ``removed``, ``moved``, ``renamed``, ``class``, ``settings``,
            ``tensors`` or ``tied``.
        before: Its name before, as ``model.h.0.mlp``; "" for what was added.
        after: Its name after; "" for what was removed.
        class_name: Its class after, or before if it was removed.
        text: What changed: ``in_features 768 -> 1024``.
        n_modules: How many modules changed so; their names have a range: ``h.0-11``.
        n_parameters: How many parameters the design has more by it.
    """

    kind: str
    before: str
    after: str
    class_name: str
    text: str
    n_modules: int = 1
    n_parameters: int = 0

    @property
    def name(self) -> str:
        """Its name after, or before if it was removed."""
        return self.after or self.before

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-"}.get(self.kind, "~")
        more = f"  {self.text}" if self.text else ""
        times = f"{self.n_modules} x " if self.n_modules > 1 else ""
        name = f"{self.name}: " if self.name else ""
        return f"{sign} {name}{times}{self.class_name}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Modules that were removed together, and where in the design after they were.

    Attributes:
        text: Their names and class: ``h.8-11: 4 x GPT2Block``.
        above: The name of the module after that they were in; "" for roots.
        previous: The sibling that was called before them, by its name after; "" for
            none.
        next: The sibling that was called after them.
    """

    text: str
    above: str
    previous: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two designs; ``print`` shows it.

    Attributes:
        text: All in a sentence.
        changes: What changed in the modules, in their order.
        numbers: Written numbers that changed, by name: before and after.
        totals: The totals of :class:`~meta_magic.designs.design.Design`, before and
            after.
        device: The device of ``seconds``.
        marks: The kind of the change by the name of each module after.
        removed: Where in the design after the modules were that it lacks.
        after: The recording that is shown with it; None if there is none.
    """

    text: str
    changes: tuple[Change, ...]
    numbers: Mapping[str, tuple[object, object]]
    totals: Mapping[str, tuple[float, float]]
    device: str
    marks: Mapping[str, str]
    removed: tuple[Removed, ...] = ()
    after: Trace | None = field(default=None, repr=False, compare=False)

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row for each change, columns named as the fields of Change."""
        import pandas as pd  # noqa: PLC0415  takes a second

        fields = [*Change.__dataclass_fields__]
        return pd.DataFrame([asdict(one) for one in self.changes], columns=fields)

    def __bool__(self) -> bool:
        return bool(self.changes or self.numbers) or any(
            old != new for old, new in self.totals.values()
        )

    def __str__(self) -> str:
        return "\n".join([self.text, *map(str, self.changes), "", *self._list_totals()])

    def _list_totals(self) -> Iterator[str]:
        for name, (old, new) in self.totals.items():
            write = FORMATS[name]
            more = "" if old == new else f" -> {write(new)}{describe_ratio(old, new)}"
            at = f" on {self.device}" if name == "seconds" else ""
            yield f"{LABELS[name]:<12} {write(old)}{more}{at}"

    def describe(self) -> dict[str, Any]:
        """Return what the browser shows: the sentence, changes, marks, what is gone."""
        lines = [str(one) for one in self.changes[:MAX_LISTED]]
        n_more = len(self.changes) - len(lines)
        return {
            "text": self.text,
            "changes": [*lines, f"{n_more} more"] if n_more else lines,
            "marks": dict(self.marks),
            "removed": [asdict(one) for one in self.removed],
        }

    def show(self) -> None:
        """Show the report of the design after, with what differs marked."""
        from meta_magic.magic.reports import show_difference  # noqa: PLC0415

        show_difference(self)

    def _ipython_display_(self) -> None:
        self.show()


MAX_LISTED: Final = 60
"""Changes that the browser lists."""

LABELS: Final = {
    "params": "parameters",
    "nbytes": "bytes",
    "flops": "FLOPs",
    "peak_nbytes": "peak",
    "seconds": "time",
    "ops": "operators",
}


def format_time(seconds: float) -> str:
    """Return seconds in the unit that suits them, such as ``1.2 ms``."""
    unit, factor = next((u for u in UNITS if seconds * u[1] >= 1), UNITS[-1])
    return f"{seconds * factor:.3g} {unit}"


UNITS: Final = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))

FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "params": lambda n: format_count(int(n)),
    "nbytes": lambda n: format_bytes(int(n)),
    "flops": lambda n: format_flops(int(n)),
    "peak_nbytes": lambda n: format_bytes(int(n)),
    "seconds": format_time,
    "ops": lambda n: f"{int(n):,}",
}


def compare(before: Design, after: Design) -> Difference:
    """Return what differs between two designs."""
    pairs = align(before.roots, after.roots)
    each = [*_list_changes(pairs)]
    changes = tuple(_fold(each))
    numbers = {
        name: (old, new)
        for name, old in before.numbers.items()
        if name in after.numbers and (new := after.numbers[name]) != old
    }
    totals = {name: (old, after.totals[name]) for name, old in before.totals.items()}
    return Difference(
        text=_describe(pairs, changes, numbers, totals),
        changes=changes,
        numbers=numbers,
        totals=totals,
        device=after.device,
        marks={one.after: one.kind for one in each if one.after},
        removed=tuple(islice(_list_removed(before.roots, pairs), MAX_REMOVED)),
    )


MAX_REMOVED: Final = 500
"""Removed modules that the browser shows, neighbours counted once."""


def _list_removed(roots: Sequence[Part], pairs: Sequence[Pair]) -> Iterator[Removed]:
    """Yield the modules that were removed, where their parent stays."""
    after = {id(old): new for old, new in pairs if old is not None}
    kept = [(old, new) for old, new in pairs if old is not None and new is not None]
    lists = [(old.children, new.path, old.name) for old, new in kept]
    for siblings, above, name in [(roots, "", ""), *lists]:
        order = sorted(siblings, key=lambda one: one.first_call)
        match = [after[id(one)] for one in order]
        paths = [
            new.path if new and new.path.rpartition(".")[0] == above else ""
            for new in match
        ]
        at = 0
        for (is_gone, class_name), same in groupby(
            zip(match, order, strict=True),
            lambda pair: (pair[0] is None, pair[1].class_name),
        ):
            own = [
                f"{name}.{old.name}" if old.name.isdecimal() else old.name
                for _, old in same
            ]
            first, at = at, at + len(own)
            if is_gone:
                times = f"{len(own)} x " if len(own) > 1 else ""
                yield Removed(
                    text=f"{fold_names(own)}: {times}{class_name}",
                    above=above,
                    previous=next(filter(None, reversed(paths[:first])), ""),
                    next=next(filter(None, paths[at:]), ""),
                )


def _list_changes(pairs: Sequence[Pair]) -> Iterator[Change]:
    """Yield the changes of modules, one by one."""
    paths = {old.path: new.path for old, new in pairs if old and new}
    known = {id(one) for pair in pairs if None not in pair for one in pair}
    for old, new in pairs:
        if old is None and new is not None:
            yield Change(
                kind="added",
                before="",
                after=new.path,
                class_name=new.class_name,
                text=write_settings(new),
                n_parameters=_count_rest(new, known),
            )
        elif new is None and old is not None:
            yield Change(
                kind="removed",
                before=old.path,
                after="",
                class_name=old.class_name,
                text=write_settings(old),
                n_parameters=-_count_rest(old, known),
            )
        elif old is not None and new is not None:
            own = _count_own(new) - _count_own(old)
            for kind, text in _compare_parts(old, new, paths):
                yield Change(
                    kind=kind,
                    before=old.path,
                    after=new.path,
                    class_name=new.class_name,
                    text=text,
                    n_parameters=own,
                )
                own = 0  # counted once


def _compare_parts(
    old: Part, new: Part, paths: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield kind and text of what differs between a module before and after."""
    above, below = (one.path.rpartition(".")[0] for one in (old, new))
    if above and paths.get(above) != below:
        yield "moved", f"from {old.path}"
    elif old.name != new.name and not (old.name.isdecimal() and new.name.isdecimal()):
        yield "renamed", f"from {old.name or 'no name'}"
    tied = [name for name in new.tensors if _is_tied(new, name) > _is_tied(old, name)]
    free = [name for name in old.tensors if _is_tied(old, name) > _is_tied(new, name)]
    if tied or free:
        now = [f"{name} is tied" for name in tied]
        yield "tied", ", ".join([*now, *(f"{name} is no longer tied" for name in free)])
    if old.class_name != new.class_name:
        yield "class", f"from {old.class_name}"
        return
    texts = [*_list_differences(old.settings, new.settings)]
    if texts:
        yield "settings", ", ".join(texts)
        return
    tensors = [
        {name: f"{format_shape(s)} {dtype}" for name, (s, dtype, _) in one.items()}
        for one in (old.tensors, new.tensors)
    ]
    texts = [*_list_differences(*tensors)]
    if texts:
        yield "tensors", ", ".join(texts)


def _is_tied(part: Part, name: str) -> bool:
    return name in part.tensors and part.tensors[name][2]


def _count_own(part: Part) -> int:
    return part.n_parameters - sum(one.n_parameters for one in part.children)


def _count_rest(part: Part, known: Collection[int]) -> int:
    """Return the parameters of a part without those of modules that moved."""
    rest = (one for one in part.children if id(one) not in known)
    return _count_own(part) + sum(_count_rest(one, known) for one in rest)


def _list_differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield what differs between the values of names."""
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        label = "" if name.isdecimal() else name
        if before is not None and after is not None:
            texts = [f"{label} {before} -> {after}"] if before != after else []
        else:
            what = "is new" if before is None else "is gone"
            texts = [f"{label}{'=' if label else ''}{after or before} {what}"]
        yield from map(str.lstrip, texts)


def write_settings(part: Part) -> str:
    """Return the settings of a module as its ``repr`` has them."""
    return ", ".join(
        value if name.isdecimal() else f"{name}={value}"
        for name, value in part.settings.items()
    )


NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


def _fold(changes: Sequence[Change]) -> Iterator[Change]:
    """Yield changes; one for those that differ in numbers of their names alone.

    What was added or removed may have settings of its own, as its number.
    """
    keys = {one: (one.kind, one.class_name, _unify(one)) for one in changes}
    for same in group_names((one.name, one, keys[one]) for one in changes):
        first = same[0]
        if len(same) == 1:
            yield first
            continue
        before = first.before and fold_names([one.before for one in same])
        text = first.text if len({one.text for one in same}) == 1 else ""
        yield replace(
            first,
            before=before,
            after=first.after and fold_names([one.after for one in same]),
            text=f"from {before}" if first.kind == "moved" else text,
            n_modules=len(same),
            n_parameters=sum(one.n_parameters for one in same),
        )


def _unify(change: Change) -> str:
    """Return what of a change must be equal in those that are one."""
    if change.kind in {"added", "removed"}:
        return ""
    return NUMBER.sub("#", change.text) if change.kind == "moved" else change.text


def group_names(items: Iterable[tuple[str, T, object]]) -> Iterator[list[T]]:
    """Yield items in groups whose names differ in numbers alone.

    Args:
        items: The name of each, the item, and what must be equal in a group.
    """
    groups: dict[object, dict[str, T]] = {}
    for name, item, key in items:
        groups.setdefault((NUMBER.sub("#", name), key), {})[name] = item
    for group in groups.values():
        numbers = zip(*map(NUMBER.findall, group), strict=True)
        # ``0.0`` and ``1.1`` are not ``0-1.0-1``, which names four.
        is_whole = prod(map(len, map(set, numbers))) == len(group)
        alike = [*group.values()]
        yield from [alike] if is_whole else ([one] for one in alike)


def fold_texts(text_by_name: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names with their texts; those that differ in numbers alone are one."""
    for names in group_names((name, name, text) for name, text in text_by_name.items()):
        yield fold_names(names), text_by_name[names[0]]


def fold_names(names: Sequence[str]) -> str:
    """Return names that differ in numbers as one: ``h.0-11.mlp``."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(map(_fold_column, columns))


MAX_RANGES: Final = 8
"""Ranges of numbers that a name has at most; those in between are left out."""


def _fold_column(parts: Sequence[str]) -> str:
    if len(set(parts)) == 1:
        return parts[0]
    numbers = sorted({int(part) for part in parts if part.isdecimal()})
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ranges = [[n for _, n in run] for _, run in runs]
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges]
    if len(texts) > MAX_RANGES:
        texts[MAX_RANGES - 2 : -1] = ["…"]
    return ",".join(texts)


def _describe(
    pairs: Sequence[Pair],
    changes: Sequence[Change],
    numbers: Mapping[str, tuple[object, object]],
    totals: Mapping[str, tuple[float, float]],
) -> str:
    """Return a difference in a sentence.

    Other sizes of modules are left out where numbers or settings of the model say why.
    """
    counts = [*_describe_counts(pairs)]
    counted = {name for names, _ in counts for name in names}
    sizes = [f"{name} {old} -> {new}" for name, (old, new) in numbers.items()]
    of_models = [c for c in changes if c.kind == "settings" and "." not in c.name]
    sizes = sizes or [c.text for c in of_models]
    known = OF_SIZES if sizes else ()
    alike = [*_list_renamed_alike(changes)]
    others = [
        one
        for one in changes
        if one.kind not in known
        and one not in alike
        and not (one.kind in {"added", "removed"} and one.class_name in counted)
    ]
    parts = [
        *dict.fromkeys(text for _, text in counts),
        *sizes,
        *_describe_changes(others),
    ]
    if alike:
        classes = "classes" if len(alike) > 1 else "class"
        parts.append(f"{len(alike)} {classes} inside renamed alike")
    old, new = totals["params"]
    if old != new:
        sign = "+" if new > old else "-"
        parts.append(f"{sign}{format_count(int(abs(new - old)))} parameters")
    old, new = totals["flops"]
    if old != new:
        ratio = describe_ratio(old, new).strip(" ()")
        parts.append(f"{ratio} FLOPs" if ratio else f"{format_flops(int(new))} now")
    old_peak, peak = (format_bytes(int(nbytes)) for nbytes in totals["peak_nbytes"])
    if old_peak != peak:
        parts.append(f"peak {old_peak} -> {peak}")
    return "; ".join(parts) or "no difference"


MAX_CHANGES: Final = 3
MANY: Final = 3
"""Modules of one class in a list; a longer list of another class replaces it."""
OF_SIZES: Final = ("settings", "tensors")


def _describe_counts(pairs: Sequence[Pair]) -> Iterator[tuple[set[str], str]]:
    """Yield classes, and ``12 Block instead of 8``, of lists of another length."""
    for pair in pairs:
        if pair[0] is None or pair[1] is None:
            continue
        listed = [
            [one.class_name for one in part.children if one.name.isdecimal()]
            for part in pair
            if part is not None
        ]
        for name in dict.fromkeys(listed[1]):
            old, new = (names.count(name) for names in listed)
            if old != new and min(old, new) > 1:
                yield {name}, f"{new} {name} instead of {old}"
        kinds = [{*names} for names in listed]
        (old, new), alone = map(len, listed), all(len(kind) == 1 for kind in kinds)
        if alone and kinds[0] != kinds[1] and old != new and max(old, new) > MANY:
            (was,), (now,) = kinds
            yield {was, now}, f"{new} {now} instead of {old} {was}"


def _list_renamed_alike(changes: Sequence[Change]) -> Iterator[Change]:
    """Yield classes that changed as their root's: ``BertLayer`` as ``BertModel``."""
    renamed = [one for one in changes if one.kind == "class"]
    for root in renamed:
        old, new = root.text[5:], root.class_name
        ends = zip(reversed(old), reversed(new), strict=False)
        end = len([*takewhile(lambda pair: pair[0] == pair[1], ends)])
        if "." in root.name or not end:
            continue
        old, new = old[:-end], new[:-end]
        for one in renamed:
            was = one.text[5:]
            is_alike = was.startswith(old) and new + was[len(old) :] == one.class_name
            if one is not root and old and is_alike:
                yield one


def _describe_changes(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the largest changes in words, and how many more there are.

    A root of another class comes first, then what is no size, then what changes most
    parameters.
    """
    ranked = sorted(
        changes,
        key=lambda one: (
            "." in one.name,
            one.kind in OF_SIZES,
            -abs(one.n_parameters),
        ),
    )
    for one in ranked[:MAX_CHANGES]:
        times = f"{one.n_modules} x " if one.n_modules > 1 else ""
        words = {
            "added": f"{times}{one.class_name} {one.name} added",
            "removed": f"{times}{one.class_name} {one.name} removed",
            "moved": f"{one.name} moved {one.text}",
            "renamed": f"{one.name} renamed {one.text}",
            "class": f"{one.name} {times}{one.class_name} instead of {one.text[5:]}",
        }
        yield words.get(one.kind, f"{one.name}: {one.text}").lstrip()
    n_more = len(changes) - MAX_CHANGES
    if n_more > 0:
        yield f"{n_more} more change{'s' if n_more > 1 else ''}"


def describe_ratio(old: float, new: float) -> str:
    """Return how much more a number is, in percent, in brackets."""
    if not old or old == new:
        return ""
    percent = 100 * (new / old - 1)
    return f" ({percent:+.{0 if abs(percent) >= 1 else 2}f} %)"
