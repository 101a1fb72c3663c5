"""Assemble the modes and hooks, run code under them, and build the trace."""

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any, Final

from torch import nn

from meta_magic.recording.attention import AttentionOf
from meta_magic.recording.autocast import AutocastOf
from meta_magic.recording.collector import RareCollection
from meta_magic.recording.compiler import EagerStance
from meta_magic.recording.corrections import ANSWERS
from meta_magic.recording.dispatch import DispatchRecorder
from meta_magic.recording.draws import Draws
from meta_magic.recording.functions import FunctionRecorder
from meta_magic.recording.guard import Guard
from meta_magic.recording.kernels import KernelsOf
from meta_magic.recording.ledger import Origin, keep_origins
from meta_magic.recording.lints import (
    find_attributes,
    find_evaluated,
    find_math,
    find_silent_broadcasts,
    find_sizes_assumed,
    find_untied,
)
from meta_magic.recording.loading import DataSources
from meta_magic.recording.module_calls import ModuleCalls
from meta_magic.recording.module_numbers import ModuleNumbers
from meta_magic.recording.module_trees import (
    Tree,
    describe_tree,
    find_roots,
    read_versions,
)
from meta_magic.recording.optimizers import OptimizersOf
from meta_magic.recording.options import Options
from meta_magic.recording.places import Places
from meta_magic.recording.rows import RowWriter
from meta_magic.recording.signatures import SignatureCache
from meta_magic.recording.tensors import TensorRegistry
from meta_magic.recording.threads import ThreadWatch
from meta_magic.recording.torch_private import dispatch_mode_stack
from meta_magic.recording.values import Values
from meta_magic.trace.program import Program
from meta_magic.trace.records import CellSource, Note
from meta_magic.trace.trace import Trace

__all__ = ["Recording"]

NO_SOURCE: Final = CellSource()
MAX_SHARED_SIGNATURES: Final = 100_000

shared_cache_by_device: dict[str, SignatureCache] = {}
"""The same call of attention is other operators on another device."""

OPTIONS: Final = Options()


def pick_cache(options: Options) -> SignatureCache:
    """Return the cache to record with: a shared one, or a private one that runs all.

    Under another dispatch mode every kernel must run, so that this mode sees it: a
    served call would look to it like ``empty_strided``.
    """
    if not options.cache or dispatch_mode_stack():
        return SignatureCache(is_serving=False)
    shared_cache = shared_cache_by_device.setdefault(
        options.device, SignatureCache(is_serving=True)
    )
    if shared_cache.n_entries > MAX_SHARED_SIGNATURES:
        shared_cache.clear()
    return shared_cache


class Recording:
    """One recording: run code under it in one or more stretches, then finish it.

    Args:
        cell_file: File name of the code whose lines are the cell's.
        top: Code object of the outermost frame of interest; None for a module's.
        options: What the user chose.
        entry_points: Functions that enter and leave the guard, as it needs to know.
        namespace: Variables as they are before; a module that is there already is
            described only if it is called.

    Attributes:
        guard: Enters the recording, and restores torch when it is left.
    """

    def __init__(
        self,
        cell_file: str,
        top: CodeType | None = None,
        options: Options = OPTIONS,
        *,
        entry_points: Sequence[Callable[..., Any]] = (),
        namespace: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        signatures = pick_cache(options)
        self._before = {id(m): weakref.ref(m) for m in modules_in(namespace).values()}
        self._registry = TensorRegistry(signatures.geometries)
        self._numbers = ModuleNumbers()
        self._calls = ModuleCalls(self._registry, self._numbers)
        self._places = Places(cell_file, top, self._numbers.of)
        self._calls.places = self._places
        self._draws = Draws()
        self._device = options.device
        autocast = self._autocast = AutocastOf(options.device)
        self._attention = AttentionOf(options.device, self._registry.clock, autocast)
        self._rows = RowWriter(self._registry, self._places, self._calls, self._draws)
        self._dispatch = DispatchRecorder(
            self._registry, self._places, self._rows, signatures
        )
        self._dispatch.answers = ANSWERS[options.device]
        self._functions = FunctionRecorder(
            self._registry, self._places, self._dispatch, signatures
        )
        self._functions.attention = self._dispatch.attention = self._attention
        self._threads = ThreadWatch()
        self._dispatch.values = Values(
            self._places, self._registry.clock, self._snapshot, options
        )
        self.guard = Guard(
            (
                *(RareCollection(), EagerStance(), self._threads),
                DataSources(self._functions.note),
                *(self._attention, autocast, OptimizersOf(options.device)),
                KernelsOf(options.device),
                self._draws,
                *(self._calls, self._functions, self._dispatch),
            ),
            entry_points,
        )
        self._started = time.perf_counter()

    @property
    def n_operators(self) -> int:
        """Operator calls recorded so far; may be read from another thread."""
        return self._registry.clock[0]

    def finish(
        self,
        error: BaseException | None = None,
        namespace: Mapping[str, object] | None = None,
        source: CellSource = NO_SOURCE,
    ) -> Trace:
        """Build the trace, and let go of everything that was held.

        Args:
            error: What ended the block, if anything did.
            namespace: Where to look for the names of root modules.
            source: The cell as written, if one was.
        """
        seconds = time.perf_counter() - self._started
        if isinstance(error, KeyboardInterrupt):  # perhaps while it entered a region
            self._autocast.restore()
        self._calls.close_open_calls()
        self._registry.note_deaths()
        self._rows.flush()
        trees = self._describe_trees(namespace or {})
        program = self._build_program(trees, error)
        living = dict(self._numbers.living())
        trace = Trace(
            program=program,
            modules=tuple(tree.node for tree in trees),
            notes=tuple(sorted(self._find_notes(program, trees, error), key=by_line)),
            error=None if error is None else f"{type(error).__name__}: {error}",
            nbytes_real=self._dispatch.nbytes_real,
            seconds=seconds,
            cell=source,
            error_line=self._places.find_error_line(error),
            roots=tuple(
                weakref.ref(living[tree.number]) if tree.number in living else None
                for tree in trees
            ),
        )
        self._keep_origin(program, trees, living, modules_in(namespace or {}))
        for part in (self._calls, self._numbers, self._registry):
            part.close()
        return trace

    def _keep_origin(
        self,
        program: Program,
        trees: list[Tree],
        living: dict[int, nn.Module],
        namespace: Mapping[str, nn.Module],
    ) -> None:
        """Remember the program for as long as something that it made lives."""
        refs = self._registry.living()
        versions = {s: v for tree in trees for s, v in tree.versions.items()}
        roots = {id(living.get(tree.number)) for tree in trees}
        for module in namespace.values():
            if id(module) not in roots:
                versions |= read_versions(self._registry, module)
        owned = {storage for tree in trees for storage in tree.owner_by_storage}
        origin = Origin(
            program=program,
            generator_state=self._draws.state_left(),
            modules=weakref.WeakValueDictionary(living),
            versions=versions,
            checksums=self._dispatch.constants.sum_made(
                ref for ref in refs if ref.number in owned
            ),
        )
        passed = {imported.storage for imported in program.imports}
        if passed:  # what was only read is as it was made
            passed -= program.n_writes_by_storage.keys()
        keep_origins(origin, (ref for ref in refs if ref.number not in passed))

    def _describe_trees(self, namespace: Mapping[str, object]) -> list[Tree]:
        """Describe the modules that live, and take those that do not as they were."""
        modules = modules_in(namespace)
        names = {id(module): name for name, module in reversed(modules.items())}
        for module in modules.values():
            before = self._before.get(id(module))
            if before is None or before() is not module:
                self._numbers.of(module)  # one without parameters was not met else
        calls = self._calls.calls_by_module()
        trees = [
            describe_tree(
                self._registry, self._numbers, root, names.get(id(root), ""), calls
            )
            for root in find_roots(self._numbers)
        ]
        met = {number for tree in trees for number in tree.fqn_by_module}
        gone = [
            tree.with_calls(calls)
            for number, tree in self._calls.early_trees.items()
            if number not in met
        ]
        return sorted((*trees, *gone), key=lambda tree: min(tree.fqn_by_module))

    def _snapshot(self) -> Program:
        """Return what was recorded so far, as far as a replay needs it."""
        self._rows.flush()
        return self._build_program([], None)

    def _build_program(self, trees: list[Tree], error: BaseException | None) -> Program:
        root_and_fqn = {
            number: (root, fqn)
            for root, tree in enumerate(trees)
            for number, fqn in tree.fqn_by_module.items()
        }
        owners: dict[int, int] = {}
        for tree in trees:
            for storage, number in tree.owner_by_storage.items():
                owners.setdefault(storage, number)
        positions = self._places.build_positions()
        return Program(
            words=self._rows.words.tobytes(),
            signatures=tuple(entry.signature for entry in self._rows.entries),
            places=self._places.build_places(positions),
            positions=positions,
            storage_by_tensor=self._registry.storage_by_tensor.tobytes(),
            deaths=self._registry.deaths.tobytes(),
            nbytes_by_storage=tuple(self._registry.nbytes_by_storage.items()),
            module_rows=self._calls.rows.tobytes(),
            module_values=self._calls.values.tobytes(),
            structures=tuple(self._calls.structures),
            modules=tuple(
                (*root_and_fqn.get(number, (None, None)), class_name)
                for number, class_name in enumerate(self._numbers.class_names)
            ),
            owner_by_storage=tuple(owners.items()),
            randomness=self._draws.build_randomness(),
            constants=self._dispatch.constants.build_constants(),
            imports=self._dispatch.constants.build_imports(),
            torn=tuple(sorted(self._dispatch.constants.torn)),
            doubts=(
                *(self._describe_failures() if error is None else ()),
                *self._functions.doubts,
                *self._dispatch.doubts,
            ),
            evaluations=tuple(self._dispatch.values.evaluations),
            assumptions=tuple(self._dispatch.values.assumptions),
            kernels=tuple(self._attention.choices),
            as_device=self._device,
        )

    def _describe_failures(self) -> Iterator[tuple[str, int | None]]:
        """Yield in words, with their line, the calls that raised."""
        for name, line in self._dispatch.failures:
            yield f"{name} failed on meta, and the cell went on without it", line

    def _find_notes(
        self, program: Program, trees: list[Tree], error: BaseException | None
    ) -> Iterator[Note]:
        yield from self._dispatch.notes
        yield from self._functions.notes
        yield from find_silent_broadcasts(program)
        yield from find_evaluated(program)
        yield from find_sizes_assumed(program)
        yield from find_math(program)
        yield from find_untied(
            self._calls.registered, self._numbers, self._registry, program
        )
        for tree in trees:
            yield from find_attributes(tree.attributes, program)
        for text, line in self._describe_failures() if error is None else ():
            yield Note(kind="failed", text=text, line=line)
        for text in self.guard.odd:
            yield Note(kind="state", text=text, line=None)
        for name in {**self._threads.names, **dict.fromkeys(self._calls.threads)}:
            yield Note(
                kind="thread",
                text=f"what thread {name!r} did was not recorded, and was real: "
                "torch's modes belong to one thread",
                line=None,
            )
        for class_name, count in self._dispatch.n_foreign.items():
            yield Note(
                kind="foreign",
                text=f"{count:,} operators on {class_name} were not recorded",
                line=None,
            )


def modules_in(namespace: Mapping[str, object]) -> dict[str, nn.Module]:
    """Return the variables that hold modules, but for IPython's own such as ``_``."""
    return {
        name: value
        for name, value in list(namespace.items())
        # Not isinstance: that would ask the ``__class__`` of whatever lies there.
        if issubclass(type(value), nn.Module) and not name.startswith("_")
        if isinstance(value, nn.Module)
    }


def by_line(note: Note) -> int:
    """Order notes by line, those without one last."""
    return note.line if note.line is not None else sys.maxsize
