"""What a block builds and costs, as a small record, and which modules are the same.

Two traces hold thousands of calls; what people compare is the module tree, the numbers
that the code names, and a few totals. Names alone do not identify a module: a layer
that is put into a ``Sequential`` renumbers all after it, and a renamed block keeps its
content. The children of two matched modules are aligned in order, as texts are, at the
least cost; what is then left on both sides with the same content has moved. Read
:func:`read_design` and :func:`align` first.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from typing import Final, TypeAlias

from meta_magic.errors import TrialError
from meta_magic.trace.modules import ModuleNode, count_bytes, count_elements
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import list_named, parse_block

Tensors: TypeAlias = Mapping[str, tuple[tuple[int, ...], str, bool]]
"""By name: shape, dtype, and whether the tensor is tied to an earlier one."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module of a design, with those below it.

    Attributes:
        name: Name within its parent; for a root, its variable.
        path: Name with that of the root, as ``model.h.0``.
        class_name: Its class.
        home: The Python module that has the class.
        settings: Its ``extra_repr`` by name: ``{"in_features": "3"}``; what has no
            name has its position.
        tensors: Its own parameters and buffers.
        output: Shape that its first call returned; None if it was not called.
        n_parameters: Numbers in all parameters below it, tied ones counted once.
        children: The modules in it.
        first_call: The number of the first call of it or of what is in it; -1 for none.
    """

    name: str
    path: str
    class_name: str
    home: str
    settings: Mapping[str, str]
    tensors: Tensors
    output: tuple[int, ...] | None
    n_parameters: int
    children: tuple["Part", ...]
    first_call: int = -1

    @cached_property
    def structure(self) -> int:
        """A hash of the classes and names, not of sizes."""
        below = tuple((one.name, one.structure) for one in self.children)
        return hash((self.class_name, below))

    @cached_property
    def content(self) -> int:
        """A hash of classes, names and sizes; not of the part's own name."""
        below = tuple((one.name, one.content) for one in self.children)
        own = tuple(self.settings.items()), tuple(self.tensors.items())
        return hash((self.class_name, own, below))

    def walk(self) -> Iterator["Part"]:
        """Yield this part and all below it, parents first."""
        stack = [self]
        while stack:
            part = stack.pop()
            yield part
            stack.extend(reversed(part.children))


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a block builds and costs.

    Attributes:
        roots: Its modules.
        numbers: Plain values that its code gives to names, as written.
        totals: ``params`` (numbers in parameters), ``nbytes`` (bytes of parameters and
            buffers), ``flops``, ``peak_nbytes`` (most bytes at once, of the device that
            needs most), ``seconds`` (a roofline's, on ``device``), and ``ops``.
        device: The device of ``seconds``, by its name in ``devices.toml``.
    """

    roots: tuple[Part, ...]
    numbers: Mapping[str, object]
    totals: Mapping[str, float]
    device: str


DEVICE: Final = "h100-sxm"


def read_design(
    trace: Trace, numbers: Mapping[str, object] | None = None, device: str = DEVICE
) -> Design:
    """Return the design of a trace.

    Args:
        trace: The recording.
        numbers: Values of names that replace those in the block's text.
        device: Of the estimated time, by its name in ``devices.toml``.

    Raises:
        UnknownDeviceError: There is no such device.
    """
    cost, memory = trace.cost, trace.memory
    roots = tuple(_read_part(trace, node, node.name) for node in trace.modules)
    return Design(
        roots=roots,
        numbers={**_read_numbers(trace), **(numbers or {})},
        totals={
            "params": count_elements(trace.modules, "parameter"),
            "nbytes": count_bytes(trace.modules, "parameter")
            + count_bytes(trace.modules, "buffer"),
            "flops": cost.flops,
            "peak_nbytes": max(memory.peak_by_place.values(), default=0),
            "seconds": cost.seconds(device),
            "ops": trace.program.n_calls,
        },
        device=device,
    )


def _read_part(trace: Trace, node: ModuleNode, path: str) -> Part:
    """Return a module of a trace as a part of its design."""
    call = None if node.first_call is None else trace.module_calls[node.first_call]
    shared = {"same module as": node.shared_with} if node.shared_with else {}
    children = tuple(
        _read_part(trace, child, f"{path}.{child.name}" if path else child.name)
        for child in node.children
    )
    own = [t for t in node.tensors if t.kind == "parameter" and t.tied_to is None]
    called = [one.first_call for one in children if one.first_call >= 0]
    if node.first_call is not None:
        called.append(node.first_call)
    return Part(
        name=node.name,
        path=path,
        class_name=node.class_name,
        home=node.definition.path.rpartition(".")[0] if node.definition else "",
        settings={**read_settings(node.settings), **shared},
        tensors={
            one.name: (one.shape, str(one.dtype)[6:], one.tied_to is not None)
            for one in node.tensors
        },
        output=call.outputs[0][1].shape if call and call.outputs else None,
        n_parameters=sum(t.numel for t in own) + sum(c.n_parameters for c in children),
        children=children,
        first_call=min(called, default=-1),
    )


@cache
def read_settings(text: str) -> Mapping[str, str]:
    """Return the text of an ``extra_repr`` by name; without a name by position."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    settings: dict[str, str] = {}
    for at, part in enumerate(parts if text else ()):
        name, equals, value = part.partition("=")
        key, written = (name.strip(), value) if equals else (str(at), name)
        settings[key] = written.strip()
    return settings


def _read_numbers(trace: Trace) -> dict[str, object]:
    """Return the plain values that a block's code gives to names, as written.

    A name with several values is left out.
    """
    found: dict[str, set[object]] = {}
    with suppress(TrialError, SyntaxError):
        block = None if trace.rerun is None else parse_block(trace.rerun)
        for node in ast.walk(block or ast.parse(trace.source)):
            for name, value in list_named(node):
                if isinstance(value, ast.Constant) and type(value.value) in PLAIN:
                    found.setdefault(name, set()).add(value.value)
    return {name: next(iter(one)) for name, one in found.items() if len(one) == 1}


PLAIN: Final = (int, float, bool, str)


Pair: TypeAlias = tuple[Part | None, Part | None]
"""A module before and after; None where it was added, or removed."""

# Costs are integers: their sums are compared.
GAP: Final = 60
"""The cost of a module that was added or removed."""

SIZES: Final = 20
"""The cost of other sizes, with the same classes and names below."""

BELOW: Final = 50
"""The cost of other modules below, in a module of the same class."""

CLASS: Final = 70
ALIKE: Final = 55
"""The cost of another class, and of another one that the same file defines, as ``GELU``
instead of ``ReLU``. If the name differs, too, the modules are matched only if they have
mostly the same modules below."""

NAME: Final = 25
NUMBER: Final = 2
"""The cost of another name, and of another number in a list."""

MAX_CELLS: Final = 250_000
"""Lists whose lengths have a larger product are matched by name."""


def align(before: Sequence[Part], after: Sequence[Part]) -> list[Pair]:
    """Return the roots of two designs and all below them, each with its match.

    Parents come first. What is below a module that was added or removed is left out,
    unless it has moved.
    """
    for root in (*before, *after):
        for part in reversed([*root.walk()]):  # hashes of children come first
            _ = part.content, part.structure
    pairs: list[Pair] = []
    todo = _align_lists(before, after, are_roots=True)[::-1]
    while todo:
        old, new = todo.pop()
        pairs.append((old, new))
        if old is not None and new is not None:
            todo += _align_lists(old.children, new.children)[::-1]
    return _join_moved(pairs)


def _align_lists(
    before: Sequence[Part], after: Sequence[Part], *, are_roots: bool = False
) -> list[Pair]:
    """Return the pairs of two lists of siblings, in their order."""
    if [one.name for one in before] == [one.name for one in after] and all(
        old.class_name == new.class_name for old, new in zip(before, after, strict=True)
    ):
        return [*zip(before, after, strict=True)]
    head = _count_equal(before, after)
    tail = _count_equal(before[head:][::-1], after[head:][::-1])
    old, new = (one[head : len(one) - tail] for one in (before, after))
    if len(old) * len(new) > MAX_CELLS:
        middle = _match_names(old, new)
    else:
        middle = _find_cheapest(old, new, are_roots=are_roots)
    ends = [*zip(before[:head], after[:head], strict=True)]
    rest = zip(before[len(before) - tail :], after[len(after) - tail :], strict=True)
    return [*ends, *_join_named(middle), *rest]


def _join_named(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield pairs in which siblings of one name and class are one, in any order."""
    removed = {
        (old.name, old.class_name): old
        for old, new in pairs
        if old is not None and new is None and not old.name.isdecimal()
    }
    added = {(new.name, new.class_name) for old, new in pairs if old is None and new}
    for old, new in pairs:
        if old is None and new is not None:
            yield removed.get((new.name, new.class_name)), new
        elif new is not None or old is None or (old.name, old.class_name) not in added:
            yield old, new


def _count_equal(before: Sequence[Part], after: Sequence[Part]) -> int:
    """Return how many modules at the beginning of two lists are the same."""
    pairs = zip(before, after, strict=False)
    same = (
        old.content == new.content and (old.name == new.name or _are_numbered(old, new))
        for old, new in pairs
    )
    return sum(1 for _ in takewhile(bool, same))


def _are_numbered(old: Part, new: Part) -> bool:
    return old.name.isdecimal() and new.name.isdecimal()


def _match_names(before: Sequence[Part], after: Sequence[Part]) -> list[Pair]:
    by_name = {one.name: one for one in before}
    pairs: list[Pair] = [(by_name.pop(new.name, None), new) for new in after]
    return pairs + [(old, None) for old in by_name.values()]


def _find_cheapest(
    before: Sequence[Part], after: Sequence[Part], *, are_roots: bool
) -> list[Pair]:
    """Return the alignment of two lists that costs least."""
    n, m = len(before), len(after)
    names = [{(one.name, one.class_name) for one in each} for each in (before, after)]
    kept = {name for name in names[0] & names[1] if not name[0].isdecimal()}
    # By how many modules of each list are left.
    costs = {(0, j): GAP * j for j in range(m + 1)}
    costs |= {(i, 0): GAP * i for i in range(n + 1)}
    matched = {}
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            old, new = before[n - i], after[m - j]
            matched[i, j] = costs[i - 1, j - 1] + _cost(
                old, new, kept, are_roots=are_roots
            )
            gap = GAP + min(costs[i - 1, j], costs[i, j - 1])
            costs[i, j] = min(matched[i, j], gap)
    pairs: list[Pair] = []
    i, j = n, m
    while i or j:
        if i and j and costs[i, j] == matched[i, j]:
            pairs.append((before[n - i], after[m - j]))
            i, j = i - 1, j - 1
        elif i and costs[i, j] == GAP + costs[i - 1, j]:
            pairs.append((before[n - i], None))
            i -= 1
        else:
            pairs.append((None, after[m - j]))
            j -= 1
    return pairs


def _cost(
    old: Part, new: Part, kept: Collection[tuple[str, str]], *, are_roots: bool
) -> int:
    """Return how unlikely it is that a module became another one.

    Args:
        old: The module before.
        new: The module after.
        kept: Names and classes that both lists have: one stays what it was.
        are_roots: Whether the names are those of variables.
    """
    is_number = are_roots or _are_numbered(old, new)
    name = 0 if old.name == new.name else NUMBER if is_number else NAME
    if old.content == new.content:
        return name
    if name == NAME and any((one.name, one.class_name) in kept for one in (old, new)):
        return name + 2 * GAP
    if old.structure == new.structure:
        return name + SIZES
    if old.class_name == new.class_name:
        return name + BELOW
    if name >= NAME and not _have_much_in_common(old, new):
        return name + 2 * GAP
    return name + (ALIKE if old.home == new.home else CLASS)


def _have_much_in_common(old: Part, new: Part) -> bool:
    """Whether two containers have mostly equal modules below, names aside."""
    counts = [
        Counter(part.content for part in one.walk() if not part.children)
        for one in (old, new)
        if one.children
    ]
    return len(counts) > 1 and (counts[0] & counts[1]).total() * 2 >= min(
        map(Counter.total, counts)
    )


def _join_moved(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs in which a module that moved is one, not removed and added.

    Only what has parameters is looked for: a second ``ReLU`` is no sign of a move. What
    stayed below one module is joined before what moved further, in order.
    """
    removed = [old for old, new in pairs if old is not None and new is None]
    added = [new for old, new in pairs if old is None and new is not None]
    tops = {id(one) for one in (*removed, *added)}
    matches = {new.path: old.path for old, new in pairs if old and new} | {"": ""}
    alike: dict[tuple[str, int], tuple[list[Part], list[Part]]] = {}
    for side, parts in enumerate((removed, added)):
        for part in (one for top in parts for one in top.walk() if one.n_parameters):
            for above in list_above(part.path):
                path = matches.get(above) if side else above
                if path is not None:
                    key = path, part.content
                    alike.setdefault(key, ([], []))[side].append(part)
    known, moved = set[int](), list[tuple[Part, Part]]()
    both = [(path, *sides) for (path, _), sides in alike.items() if all(sides)]
    for _, *sides in sorted(both, key=_rank_path):
        left = [[one for one in side if id(one) not in known] for side in sides]
        if len(left[0]) != len(left[1]):
            left = [sorted(side, key=lambda one: id(one) not in tops) for side in left]
        for old, new in zip(*left, strict=False):
            if tops & {id(old), id(new)}:
                moved.append((old, new))
                known |= {id(one) for part in (old, new) for one in part.walk()}
    ends = {id(one) for pair in moved for one in pair}
    kept = [pair for pair in pairs if not any(id(one) in ends for one in pair)]
    order = {id(one): at for at, top in enumerate(added) for one in top.walk()}
    return [*kept, *sorted(moved, key=lambda pair: order[id(pair[1])])]


def _rank_path(one: tuple[str, list[Part], list[Part]]) -> tuple[int, int]:
    """Return what puts deep paths first, and large modules in them."""
    path, (old, *_), _ = one
    return -len(path.split(".")) if path else 0, -old.n_parameters


def list_above(path: str) -> Iterator[str]:
    """Yield the paths of the modules above one, the nearest first, and "" at last."""
    while path:
        path = path.rpartition(".")[0]
        yield path
