"""Shapes by name: ``[B, T, 3*D]`` for a block that names ``B``, ``T`` and ``D``.

The block is recorded again with each name moved alone, and with several at once. A
formula of a size must hold in all these recordings, so two names of one value are
distinguished; ``size_formulas`` proposes them. Read :func:`find_dims` first.

A :class:`NamedTrace` shows them. Calls that share a signature may differ in names: (4,
4) is (B, H) in one and (H, B) in another, so its program has a signature for each.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations, groupby, islice, takewhile
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from meta_magic.errors import TrialError
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.notes import Note
from meta_magic.trace.program import HEADER, MODULE_HEADER, Program, Structure
from meta_magic.trace.signature import Geometry, Signature
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import NamedSize
from meta_magic.trials.blocks import Sizes, as_size, label, parse_block
from meta_magic.trials.conditions import (
    SECONDS,
    Turns,
    check_unlooped,
    find_conditions,
)
from meta_magic.trials.fit import Recordings
from meta_magic.trials.size_formulas import choose, evaluate, factor, propose
from meta_magic.trials.trial import check_rerun

STEPS: Final = (((2, 0),), ((1, 1), (3, 0)), ((1, 2), (1, -1)))
"""Values to try for a name n: k * n + c for each (k, c). A row is tried if no value of
the rows before it ran."""

MORE: Final = (1, 7, 19)
"""What is added to a name whose sizes have no formula yet."""

SHARE: Final = 0.75
"""The share of the time that recordings take; formulas are looked for in the rest."""

MAX_AUTO: Final = 8
"""How many names ``auto`` takes."""

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[tuple[Shape, ...], tuple[Shape, ...]]
"""What a call reads, and what it returns."""

SizeSeries: TypeAlias = tuple[int | None, ...]
"""A size in each recording; None where its call is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The names of sizes in a block, and the formulas of its tensors' sizes.

    Attributes:
        values: By name the value in the block.
        shapes: By number of a tensor and its shape, which a write in place may change,
            each size as a formula, or as its number if it depends on no name.
        moving: How many sizes of tensors depend on a name.
        named: How many of these have a formula.
        caveats: Sentences on names that have no formulas, and why.
    """

    values: Mapping[str, int]
    shapes: Mapping[tuple[int, Shape], tuple[str, ...]] = field(repr=False)
    moving: int = 0
    named: int = 0
    caveats: tuple[str, ...] = ()

    def name(self, tensor: int | None, shape: Sequence[int]) -> tuple[str, ...]:
        """Return the sizes of a tensor as formulas, numbers where it is not known."""
        known = None if tensor is None else self.shapes.get((tensor, tuple(shape)))
        return tuple(map(str, shape)) if known is None else known

    def __str__(self) -> str:
        listed = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return "\n".join([listed, *self.caveats])


class Calls(NamedTuple):
    """The operators of a recording, and the shapes that they read and return.

    Attributes:
        signatures: Which of ``kinds`` each call has.
        kinds: The operator and the shapes of each signature.
        lines: The line that made each call.
    """

    signatures: Sequence[int]
    kinds: Sequence[tuple[str, Shapes]]
    lines: Sequence[int | None]

    def list_ops(self) -> list[str]:
        """Return the operator of each call."""
        return [self.kinds[number][0] for number in self.signatures]

    def align(self, usual: "Calls") -> list[Shapes | None]:
        """Return the shapes of each call of the block; None for one that is not there.

        Where the number of calls depends on a size, lines are compared from the front,
        and then from the back; and so are the calls of a line that come together.
        """
        own: Sequence[object] = self.list_ops()
        wanted: Sequence[object] = usual.list_ops()
        if own == wanted:
            return [self.kinds[n][1] for n in self.signatures]
        parts, others = self.list_parts(), usual.list_parts()
        if len(others) > 1:
            own, wanted = ([one.lines[0] for one in some] for some in (parts, others))
        n_front = count_equal(wanted, own)
        n_back = count_equal(wanted[n_front:][::-1], own[n_front:][::-1])
        left = range(n_front, len(wanted) - n_back)
        if len(others) < 2:  # noqa: PLR2004  one line
            shapes = [self.kinds[n][1] for n in self.signatures]
            back = shapes[len(own) - n_back :]
            return [*shapes[:n_front], *[None] * len(left), *back]
        before = zip(parts[:n_front], others, strict=False)
        after = [*zip(parts[::-1][:n_back], others[::-1], strict=False)][::-1]
        n_lost = sum(len(others[k].lines) for k in left)
        found = [
            [one for p, o in pairs for one in p.align(o)] for pairs in (before, after)
        ]
        return [*found[0], *[None] * n_lost, *found[1]]

    def cut(self, start: int, end: int) -> "Calls":
        """Return some of the calls."""
        return Calls(self.signatures[start:end], self.kinds, self.lines[start:end])

    def list_parts(self) -> list["Calls"]:
        """Return the calls of each line that come one after the other."""
        rows = range(len(self.lines))
        parts = [[*part] for _, part in groupby(rows, self.lines.__getitem__)]
        return [self.cut(part[0], part[-1] + 1) for part in parts]


def count_equal(some: Sequence[object], others: Sequence[object]) -> int:
    """Return how many items two sequences share at their beginning."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def read_calls(again: Trace, _variables: object = None) -> Calls:
    """Return the calls of a recording; runs in a child."""
    program = again.program
    words = memoryview(program.words).cast("I")
    kinds = [
        (one.op, (list_shapes(one.inputs), list_shapes(one.outputs)))
        for one in program.signatures
    ]
    numbers = [words[offset] for offset in program.offsets[:-1]]
    sites = [words[offset + 1] - 1 for offset in program.offsets[:-1]]
    positions = [site.position for site in program.call_sites]
    lines = [None if at is None else at.line for at in positions]
    return Calls(numbers, kinds, [None if at < 0 else lines[at] for at in sites])


def list_shapes(geometries: Iterable[Geometry]) -> tuple[Shape, ...]:
    """Return the shapes of tensors."""
    return tuple(tuple(geometry.shape) for geometry in geometries)


class Variation(NamedTuple):
    """A recording with other values.

    Attributes:
        moved: The names that have another value.
        shapes: The shapes of each call of the block; None for one that is not there.
    """

    moved: tuple[str, ...]
    sizes: Sizes
    shapes: Sequence[Shapes | None]


class Moves:
    """Recordings of a block with other values of its names.

    Attributes:
        runs: The recordings; the first one is the block's own.
        reasons: By name, why there is no recording with another value.
    """

    def __init__(self, trace: Trace, values: Sizes) -> None:
        self.values = values
        self.turns = Turns(trace, read_calls, SHARE * SECONDS)
        self.is_over = False
        self.reasons: dict[str, str] = {}
        usual = next(self.turns.ask([{}]), TrialError("it takes too long to record"))
        if isinstance(usual, TrialError):
            raise usual
        self.usual = usual
        self.runs = [Variation((), values, usual.align(usual))]

    def record(self, moved: Sequence[Sizes]) -> list[bool]:
        """Record the block at other values; return at which of them it runs."""
        known = [run.sizes for run in self.runs]
        todo = [one for one in moved if one and {**self.values, **one} not in known]
        n_asked = 0
        for one, answer in zip(todo, self.turns.ask(todo), strict=False):
            n_asked += 1
            if isinstance(answer, TrialError):
                self.reasons.setdefault(next(iter(one)), str(answer))
            else:
                sizes = {**self.values, **one}
                shapes = answer.align(self.usual)
                self.runs.append(Variation(tuple(one), sizes, shapes))
        self.is_over |= n_asked < len(todo)
        ran = [run.sizes for run in self.runs]
        return [{**self.values, **one} in ran for one in moved]

    def list_moves(self, name: str) -> list[int]:
        """Return the values of one name alone at which the block ran."""
        return [run.sizes[name] for run in self.runs if run.moved == (name,)]

    def see(self, use: "FirstUse") -> Iterator[SizeSeries]:
        """Yield each size of a tensor, in each recording."""
        shapes = [use.find(run.shapes[use.call]) for run in self.runs]
        for dim in range(len(use.shape)):
            yield tuple(None if shape is None else shape[dim] for shape in shapes)

    def find_movers(self, seen: SizeSeries) -> set[str]:
        """Return the names with which a size moves."""
        return {
            run.moved[0]
            for run, size in zip(self.runs, seen, strict=True)
            if len(run.moved) == 1 and size not in (None, seen[0])
        }

    def is_tested(self, seen: SizeSeries) -> bool:
        """Whether a size is known where several names have other values."""
        n_most = min(2, sum(1 for name in self.values if self.list_moves(name)))
        return any(
            size is not None and len(run.moved) >= n_most
            for run, size in zip(self.runs[1:], seen[1:], strict=True)
        )

    def move_each(self, trace: Trace) -> Iterator[str]:
        """Record each name moved alone; yield sentences on names that do not move."""
        values = self.values
        for steps in STEPS:
            still = [name for name in values if not self.list_moves(name)]
            tried = [(name, k * values[name] + c) for name in still for k, c in steps]
            self.record([{name: n} for name, n in tried if n])
        for name in values:
            if self.list_moves(name):
                continue
            rest = min(SECONDS / 2, self.turns.find_rest())
            if self.is_over or rest <= 0:
                yield f"{label(name)} has no formulas: {SECONDS:g} s were over"
                continue
            (found,) = find_conditions(trace, {name: None}, rest)
            others = [n for n in found.search.running if n != values[name]]
            if not any(self.record([{name: n} for n in others[:2]])):
                only = f"{label(name)} has no formulas, as only {values[name]} runs"
                reason = self.reasons.get(name, "").partition("\n")[0]
                yield f"{only}: {reason}"

    def move_together(self) -> None:
        """Record several names moved at once."""
        moving = {n: moves for n in self.values if (moves := self.list_moves(n))}
        rare = {run.moved[0] for run in self.runs[1:] if None in run.shapes}
        for names in dict.fromkeys(
            ((*moving,), (*(n for n in moving if n not in rare),))
        ):
            n_before = len(self.runs)
            one_more = {name: self.values[name] + 1 for name in names}
            mixed = {name: moving[name][i % 2 - 1] for i, name in enumerate(names)}
            threefold = {name: 3 * self.values[name] for name in names}
            _, has_run, _ = self.record([threefold, one_more, mixed])
            if not has_run:
                self.record([{name: value} for name, value in one_more.items()])
            if len(self.runs) == n_before:  # names that depend on each other
                pairs = islice(combinations(names, 2), MAX_AUTO)
                self.record([{a: moving[a][0], b: moving[b][-1]} for a, b in pairs])


def find_dims(trace: Trace, specs: Sequence[str]) -> Dims:
    """Return the names of sizes in a block, and its shapes by these names.

    ``specs`` are names, ``NAME=VALUE`` for a literal, or ``auto`` for all variables and
    fields of classes.
    """
    recordings = Recordings(trace)
    if [*specs] == ["auto"]:
        known = dict.fromkeys(recordings.list_sizes())
        known |= dict.fromkeys(list_fields(parse_block(check_rerun(trace))))
        specs = [*known][:MAX_AUTO]
    runs = recordings.find_trace(*specs)
    block = parse_block(check_rerun(runs))
    for spec in specs:
        check_unlooped(block, spec)
    values = {spec: recordings.read_size(spec) for spec in specs}
    moves = Moves(runs, values)
    own, usual = read_calls(trace), moves.usual
    if own.list_ops() != usual.list_ops():
        raise TrialError("the block does not do the same when it runs again")
    pairs = zip(own.align(own), usual.align(usual), strict=True)
    drawn = {row for row, (one, other) in enumerate(pairs) if one != other}
    caveats = [*moves.move_each(trace)]
    moves.move_together()
    every = list_tensors(trace.program)
    tensors = [use for use in every if use.call not in drawn]  # sizes by value
    fitted = fit_all(moves, tensors)
    poor = {
        n for seen, text in fitted.items() if not text for n in moves.find_movers(seen)
    }
    if poor and not moves.is_over:
        moves.record(
            [{n: values[n] + step} for n in values if n in poor for step in MORE]
        )
        fitted = fit_all(moves, tensors)
    shapes, texts, used = {}, list[str](), set[str]()
    for use in tensors:
        seen_by_dim = [*moves.see(use)]
        formulas = [fitted.get(seen) for seen in seen_by_dim]
        shapes[use.tensor, use.shape] = tuple(
            text or str(size) for text, size in zip(formulas, use.shape, strict=True)
        )
        texts += [text for text in formulas if text is not None]
        used |= {name for seen in seen_by_dim for name in moves.find_movers(seen)}
    caveats += [
        f"no size depends on {label(name)}"
        for name in values
        if name not in used and moves.list_moves(name)
    ]
    if drawn:
        caveats.append("sizes that depend on values are shown as numbers")
    if moves.is_over and not all(fitted.values()):
        n = sum(not text for text in fitted.values())
        caveats.append(
            f"{SECONDS:g} s were over after {len(moves.runs)} recordings: {n:,} sizes "
            "are shown as numbers"
        )
    return Dims(
        values={label(name): value for name, value in values.items()},
        shapes=shapes,
        moving=len(texts),
        named=sum(map(bool, texts)),
        caveats=(*caveats,),
    )


def list_fields(block: ast.Module) -> list[str]:
    """Return the fields that classes of a block annotate, and give a size."""
    return [
        field.target.id
        for node in ast.walk(block)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(field.value, ast.Constant)
        and as_size(field.value.value)
    ]


class FirstUse(NamedTuple):
    """Where a tensor is first seen.

    Attributes:
        side: 0 if the call reads it, 1 if it returns it.
        slot: Its index among these.
    """

    tensor: int
    call: int
    side: int
    slot: int
    shape: Shape

    def find(self, shapes: Shapes | None) -> Shape | None:
        """Return its shape in another recording; None if it is not there."""
        found = () if shapes is None else shapes[self.side][self.slot :]
        is_there = bool(found) and len(found[0]) == len(self.shape)
        return found[0] if is_there else None


WORKSPACE: Final = ("aten.mkldnn_rnn_layer.default", 1, 3)
"""The operator, the side and the slot of a workspace of oneDNN."""


def list_tensors(program: Program) -> Iterator[FirstUse]:
    """Yield where each tensor of a program is first seen, with each of its shapes.

    How many bytes a workspace of oneDNN has is a choice of that library.
    """
    words, known = memoryview(program.words).cast("I"), set[tuple[int, Shape]]()
    for call, offset in enumerate(program.offsets[:-1]):
        signature = program.signatures[words[offset]]
        at = offset + HEADER
        for side, geometries in enumerate((signature.inputs, signature.outputs)):
            for slot, shape in enumerate(list_shapes(geometries)):
                key = words[at], shape
                at += 1
                is_workspace = (signature.op, side, slot) == WORKSPACE
                if key not in known and not is_workspace:
                    yield FirstUse(key[0], call, side, slot, shape)
                known.add(key)


def fit_all(moves: Moves, tensors: Sequence[FirstUse]) -> dict[SizeSeries, str]:
    """Return the formula of each size that is seen to move; "" for none."""
    every = dict.fromkeys(seen for use in tensors for seen in moves.see(use))
    named = [{label(n): v for n, v in run.sizes.items()} for run in moves.runs]
    points = {
        seen: [(at, n) for at, n in zip(named, seen, strict=True) if n is not None]
        for seen in every
        if any(size not in (None, seen[0]) for size in seen[1:])
    }
    found = dict.fromkeys(points, "")
    for seen, known in points.items():
        if moves.is_tested(seen):
            found[seen] = choose(known, propose(known))
    for seen, known in points.items():
        if not found[seen] and moves.is_tested(seen):
            found[seen] = choose(known, factor(known, {*found.values()} - {""}))
    return found


@dataclass(frozen=True, kw_only=True)
class NamedTrace(Trace):
    """A trace with shapes by name.

    Attributes:
        plain: The trace with numbers, whose notes it has.
        texts: Which names have no formulas, and why.
    """

    plain: Trace
    texts: tuple[str, ...] = ()

    @property
    def named(self) -> Trace:
        """Return itself."""
        return self

    @property
    def dims(self) -> Dims | None:
        """The names of sizes."""
        return self.plain.dims

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of the trace, and which names have no formulas."""
        own = (Note(kind="dims", text=text, line=None) for text in self.texts)
        return (*self._name(self.plain.notes), *own)

    @property
    def wrong(self) -> tuple[Note, ...]:
        """What runs and is wrong."""
        return self._name(self.plain.wrong)

    def _name(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        """Return notes with the texts that the rules write of shapes by name."""
        found = {(one.kind, one.line): one for one in super().wrong} if notes else {}
        texts = [found.get((one.kind, one.line), one).text for one in notes]
        pairs = zip(notes, texts, strict=True)
        return tuple(replace(one, text=text) for one, text in pairs)


def name_trace(trace: Trace) -> Trace:
    """Return a trace with shapes by name; notes say which names have no formulas."""
    own = {one.name: getattr(trace, one.name) for one in fields(trace)}
    try:
        dims = trace.dims
    except TrialError as error:
        return NamedTrace(**own, plain=trace, texts=(f"no sizes have names: {error}",))
    if dims is None:
        return trace
    own["program"] = Naming(trace.program, dims).name_program()
    own["modules"] = tuple(name_module(node, trace, dims) for node in trace.modules)
    return NamedTrace(**own, plain=trace, texts=dims.caveats)


def find_shape(trace: Trace, tensor: int | None, shape: Sequence[int]) -> str:
    """Return the shape of a tensor by name."""
    dims = trace.dims
    if dims is None:
        raise TrialError('the recording has no names: use record(dims="B,T")')
    if tensor is None:
        raise TrialError("the recording has no such tensor")
    return f"[{', '.join(dims.name(tensor, shape))}]"


class Naming:
    """Gives the shapes of a program names."""

    def __init__(self, program: Program, dims: Dims) -> None:
        self._program, self._dims = program, dims
        self._known: dict[tuple[Geometry, tuple[str, ...]], Geometry] = {}

    def name_geometry(self, geometry: Geometry, tensor: int) -> Geometry:
        """Return the metadata of a tensor with named sizes."""
        texts = self._dims.name(tensor, geometry.shape)
        key = geometry, texts
        if key not in self._known:
            pairs = zip(geometry.shape, texts, strict=True)
            shape = tuple(NamedSize(size, text) for size, text in pairs)
            self._known[key] = replace(geometry, shape=shape)
        return self._known[key]

    def name_program(self) -> Program:
        """Return the program with named sizes."""
        program = self._program
        words = np.frombuffer(program.words, np.uint32).copy()
        numbers: dict[tuple[int, tuple[tuple[str, ...], ...]], int] = {}
        signatures: list[Signature] = []
        for offset, end in zip(program.offsets[:-1], program.offsets[1:], strict=True):
            old = int(words[offset])
            tensors = words[offset + HEADER : end].tolist()
            one = program.signatures[old]
            pairs = zip(tensors, (*one.inputs, *one.outputs), strict=True)
            key = old, tuple(self._dims.name(n, g.shape) for n, g in pairs)
            if key not in numbers:
                numbers[key] = len(signatures)
                signatures.append(self._name(program.signatures[old], tensors))
            words[offset] = numbers[key]
        values, structures = self._name_modules()
        raised = program.raised
        if raised is not None:
            named = self._name(raised.signature, raised.tensors)
            raised = replace(raised, signature=named)
        return replace(
            program,
            words=words.tobytes(),
            signatures=tuple(signatures),
            module_values=values,
            structures=structures,
            raised=raised,
        )

    def _name(
        self, signature: Signature, tensors: "list[int] | tuple[int, ...]"
    ) -> Signature:
        given = (*signature.inputs, *signature.outputs)
        named = tuple(map(self.name_geometry, given, tensors))
        n = len(signature.inputs)
        return replace(signature, inputs=named[:n], outputs=named[n:])

    def _name_modules(self) -> tuple[bytes, tuple[Structure, ...]]:
        """Return the tensors of module calls, and their named structures."""
        program = self._program
        values = np.frombuffer(program.module_values, np.uint32).copy()
        rows = np.frombuffer(program.module_rows, np.uint32)
        structures: dict[Structure, int] = {}
        for start in rows[MODULE_HEADER - 1 :: MODULE_HEADER].tolist():
            sides, at = [], start + 1
            for side in program.structures[int(values[start])]:
                tensors = (values[at : at + len(side)] >> 1).tolist()
                at += len(side)
                sides.append(
                    tuple(
                        (path, self.name_geometry(geometry, tensor))
                        for (path, geometry), tensor in zip(side, tensors, strict=True)
                    )
                )
            structure = sides[0], sides[1]
            values[start] = structures.setdefault(structure, len(structures))
        return values.tobytes(), tuple(structures)


def name_module(node: ModuleNode, trace: Trace, dims: Dims) -> ModuleNode:
    """Return a module whose tensors have named sizes."""
    storages = np.frombuffer(trace.program.storage_by_tensor, np.uint32).tolist()
    by_storage: dict[int, list[tuple[str, ...]]] = {}
    for (tensor, _), texts in dims.shapes.items():
        by_storage.setdefault(storages[tensor], []).append(texts)

    def name_shape(shape: tuple[int, ...], storage: int) -> tuple[int, ...]:
        for texts in by_storage.get(storage, ()):
            if tuple(evaluate(text, dims.values) for text in texts) == shape:
                return tuple(map(NamedSize, shape, texts))
        return shape

    def name_node(one: ModuleNode) -> ModuleNode:
        tensors = tuple(
            replace(tensor, shape=name_shape(tensor.shape, storage))
            for tensor, storage in zip(one.tensors, one.storages, strict=False)
        )
        children = tuple(map(name_node, one.children))
        return replace(one, tensors=tensors or one.tensors, children=children)

    return name_node(node)
