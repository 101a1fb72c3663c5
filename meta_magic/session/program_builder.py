"""Build a ``Program`` from what a recording wrote: at its end, or for a value before.

``Writers`` are the parts that write; ``make_writers`` makes them. ``ProgramBuilder``
builds the program at the end, and a snapshot for ``loss.item()`` in the middle;
``read_columns`` is cheaper than a snapshot, for a loop that reads a value in each step.

The root of a module tree is a module that the block built or called. The report names
it by its variable, ``model``, or by the way to it: ``config["models"][0]``
(``TreeFinder``).
"""

import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torch import nn

from meta_magic.recording.rows.module_trees import (
    ModuleNumbers,
    Tree,
    describe_columns,
    find_trees,
)
from meta_magic.recording.rows.writers import Diagnostics, Writers
from meta_magic.replaying.forward_replay import ReplayColumns
from meta_magic.session.operand_names import IPYTHONS, MAX_HELD, walk_held
from meta_magic.torch_private.module_internals import is_made, parameters_of
from meta_magic.trace.options import DeviceName
from meta_magic.trace.program import Growing, Program

if TYPE_CHECKING:
    from meta_magic.trace.program_facts import Assumption, Evaluation, RaisedCall
    from meta_magic.trace.signature import Signature


GAP: Final = (
    "torch's generator was used between two recordings, before the draws of the first "
    "were made (seed the second one)"
)

Found = TypeVar("Found", "Evaluation", "Assumption")


class ProgramBuilder:
    """Builds programs from what a recording wrote so far."""

    def __init__(self, written: Writers, device: DeviceName) -> None:
        self._writers = written
        self._device = device
        self.raised: RaisedCall | None = None
        self._signatures: list[Signature] = []
        self._tensors, self._deaths = Growing(), Growing()

    def snapshot(self) -> Program:
        """Return what a replay needs of the program so far; long columns as views."""
        write = self._writers
        write.rows.flush()
        views = {
            "words": write.rows.words.view(),
            "storage_by_tensor": self._tensors.follow(write.registry.storage_by_tensor),
            "deaths": self._deaths.follow(write.registry.deaths),
        }
        columns = {name: view.cast("B") for name, view in views.items()}
        nothing = {"module_rows": b"", "module_values": b"", "modules": ()}
        return self._build([], {**columns, **nothing}, omits_failures=True)

    def read_columns(self) -> ReplayColumns:
        """Return what a forward replay reads; cheaper than a snapshot."""
        write = self._writers
        write.rows.flush()
        return ReplayColumns(
            words=write.rows.words.view(),
            storage_by_tensor=write.registry.storage_by_tensor,
            signatures=self._read_signatures(),
            deaths=write.registry.deaths,
            randomness=write.draws.build_randomness,
            find_constant=write.constants.find,
        )

    def _read_signatures(self) -> "list[Signature]":
        """Return the signatures; only new ones are read."""
        known = self._signatures
        added = self._writers.rows.entries[len(known) :]
        known += [entry.signature for entry in added]
        return known

    def build(self, trees: Sequence[Tree], *, omits_failures: bool) -> Program:
        """Return the whole program; its caveats may omit failures."""
        write = self._writers
        write.rows.flush()
        nodes = (call for call, _ in write.rows.forward_by_sequence.values())
        columns = {
            "words": write.rows.words.view().tobytes(),
            "storage_by_tensor": write.registry.storage_by_tensor.tobytes(),
            "deaths": write.registry.deaths.tobytes(),
            "module_rows": write.calls.rows.tobytes(),
            "module_values": write.calls.values.tobytes(),
            "modules": _name_modules(write.numbers, trees),
            "facts": write.rows.roles.build(write.calls, nodes),
        }
        return self._build(trees, columns, omits_failures=omits_failures)

    def _build(
        self, trees: Sequence[Tree], columns: dict[str, Any], *, omits_failures: bool
    ) -> Program:
        write, diagnostics = self._writers, self._writers.diagnostics
        positions = write.sites.build_positions()
        failures = () if omits_failures else describe_failures(diagnostics)
        gaps = [GAP][: write.draws.has_gap]
        texts = [(text, None) for text in (*gaps, *write.imports.caveats)]
        n_calls = write.clock.now  # the call that runs now may have evaluations already
        owners = dict(trees[0].owner_by_storage) if trees else {}
        for tree in trees[1:]:
            for storage, number in tree.owner_by_storage.items():
                owners.setdefault(storage, number)
        return Program(
            signatures=tuple(self._read_signatures()),
            call_sites=write.sites.build_call_sites(positions),
            positions=positions,
            nbytes_by_storage=tuple(write.registry.nbytes_by_storage.items()),
            structures=tuple(write.calls.structures),
            calls_while_built=tuple(write.calls.while_built),
            owner_by_storage=tuple(owners.items()),
            randomness=write.draws.build_randomness(),
            constants=write.constants.build(),
            imports=write.imports.build(),
            written_unseen=tuple(sorted(write.constants.written_unseen)),
            caveats=(*failures, *diagnostics.caveats, *texts),
            evaluations=_list_until(n_calls, diagnostics.evaluations),
            assumptions=_list_until(n_calls, diagnostics.assumptions),
            kernels=tuple(diagnostics.kernels),
            flags=tuple(write.flags.changes),
            as_device=self._device,
            raised=self.raised,
            **columns,
        )


def _list_until(n_calls: int, found: Sequence[Found]) -> tuple[Found, ...]:
    """Return the evaluations or assumptions of the first calls, in order."""
    return tuple(found[: bisect_left(found, n_calls, key=attrgetter("call"))])


def describe_failures(diagnostics: Diagnostics) -> Iterator[tuple[str, int | None]]:
    """Yield a sentence and a line for each call that raised, and the cell went on."""
    for name, line in diagnostics.failures:
        yield f"{name} failed on meta, and the cell went on without it", line


def _name_modules(
    numbers: ModuleNumbers, trees: Sequence[Tree]
) -> tuple[tuple[int | None, str | None, str], ...]:
    """Return root, fqn and class name of each module, by its number."""
    names = numbers.class_names
    rows: list[tuple[int | None, str | None, str]]
    rows = [(None, None, name) for name in names]
    for root, tree in enumerate(trees):
        for number, fqn in tree.fqn_by_module.items():
            rows[number] = root, fqn, names[number]
    return tuple(rows)


MAX_DEPTH: Final = 3  # brackets and dots in a name

MAX_SEEN: Final = 10_000  # values that are looked at in all


class TreeFinder:
    """Knows which modules a recording built or called."""

    def __init__(self, written: Writers, namespace: Mapping[str, object]) -> None:
        self._registry = written.registry
        self._numbers = written.numbers
        self._calls = written.calls
        self._roles = written.rows.roles
        self._before = {id(m): weakref.ref(m) for m in modules_in(namespace).values()}

    def describe(self, namespace: Mapping[str, object]) -> list[Tree]:
        """Return the trees of live modules as they are, of dead ones as they were."""
        modules = modules_in(namespace)
        names = {id(module): name for name, module in reversed(modules.items())}
        for module in modules.values():
            before = self._before.get(id(module))
            if before is None or before() is not module:
                self._numbers.of(module)  # one without parameters has no number yet
        calls = self._calls.calls_by_module()
        found = find_trees(self._numbers)
        # Those of plain parameters are known from the nodes of autograd.
        held = [parameters_of(m).values() for part in found for m in part.modules]
        given = [p for part in held for p in part if p is not None]
        plain = [p for p in given if p.__class__ is not nn.Parameter]
        self._roles.note_gradients(plain)
        roots = [columns.modules[0] for columns in found]
        unnamed = {id(root) for root in roots} - names.keys()
        if unnamed:
            names |= find_names(namespace, unnamed)
        by, known = (
            (self._registry, self._numbers),
            [names.get(id(r), "") for r in roots],
        )
        pairs = zip(found, known, strict=True)
        trees = [describe_columns(*by, part, name, calls) for part, name in pairs]
        early = self._calls.early_trees
        described = set[int]().union(*(tree.fqn_by_module for tree in trees if early))
        for tree in early.values():
            # Without its root: a part that was also called alone is no second tree.
            described.update(tree.fqn_by_module.keys() - {tree.number})
        gone = (tree for number, tree in early.items() if number not in described)
        trees += [tree.with_final_calls(calls) for tree in gone]
        if len(trees) > 1:
            trees.sort(key=lambda tree: min(tree.fqn_by_module))
        return trees


def modules_in(namespace: Mapping[str, object]) -> dict[str, nn.Module]:
    """Return the variables that hold modules, but for IPython's own such as ``_``."""
    return {
        name: value
        for name, value in list(namespace.items())
        # Not isinstance first: it would ask the ``__class__`` of any object there.
        if issubclass(type(value), nn.Module) and not name.startswith("_")
        if isinstance(value, nn.Module) and is_made(value)
    }


def find_names(namespace: Mapping[str, object], wanted: set[int]) -> dict[int, str]:
    """Return the shortest way to write each module, by ``id``, if one is found."""
    names: dict[int, str] = {}
    items = [(n, v) for n, v in [*namespace.items()] if not n.startswith("_")]
    variables = [(name, value, 0) for name, value in items if name not in IPYTHONS]
    to_read = deque(variables)
    seen = {id(value) for _, value, _ in variables}
    while to_read and len(names) < len(wanted) and len(seen) < MAX_SEEN:
        name, value, depth = to_read.popleft()
        for path, held in islice(walk_held(value), MAX_HELD):
            if id(held) in seen:
                continue
            seen.add(id(held))
            if id(held) in wanted:
                names[id(held)] = name + path
            elif depth + 1 < MAX_DEPTH:
                to_read.append((name + path, held, depth + 1))
    return names
