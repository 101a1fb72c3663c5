"""Put the parts of a recording together, run code under them, and build the trace."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from types import CodeType, MappingProxyType
from typing import Any, Final, TypeVar

from torch import nn

from meta_magic.recording.as_device.attention import AttentionOf
from meta_magic.recording.as_device.autocast import AutocastOf
from meta_magic.recording.as_device.chunked_losses import ChunkedLossesOf
from meta_magic.recording.as_device.composites import CompositesOf
from meta_magic.recording.as_device.meta_kernels import KernelsOf
from meta_magic.recording.as_device.optimizers import OptimizersOf
from meta_magic.recording.as_device.oracle.refused_calls import Refusals
from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.left_versions import look_for_versions
from meta_magic.recording.identities.origins import Origin, has_origins, keep_origins
from meta_magic.recording.identities.storages import StorageRef
from meta_magic.recording.intercept.backward_passes import BackwardPasses
from meta_magic.recording.intercept.compiled_functions import EagerStance
from meta_magic.recording.intercept.data_sources import DataSources
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.intercept.kernel_calls import KernelCalls
from meta_magic.recording.intercept.leaf_modules import LeafModules
from meta_magic.recording.intercept.lifted.lending import Lending
from meta_magic.recording.intercept.lifted.lifting import Lifting
from meta_magic.recording.intercept.loading import Loader
from meta_magic.recording.intercept.new_parameters import NewParameters
from meta_magic.recording.intercept.operator_runner import OperatorRunner
from meta_magic.recording.intercept.planned.planned_devices import stand_in_for
from meta_magic.recording.intercept.read_storages import ReadStorages
from meta_magic.recording.intercept.saving import Saver
from meta_magic.recording.intercept.served_functions import ServedFunctions
from meta_magic.recording.intercept.served_makers import ServedMakers
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.intercept.shown_tensors import ShownTensors
from meta_magic.recording.intercept.special_tensors import SpecialTensors
from meta_magic.recording.rows.module_trees import Tree, read_versions
from meta_magic.recording.rows.real_memory import RealMemory
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.replaying.value_progress import Show, show_line
from meta_magic.session.checked_values import make_checks
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.session.failed_calls import describe_error, find_failed_call
from meta_magic.session.guard import Guard
from meta_magic.session.note_finders import Outside, find_notes
from meta_magic.session.program_builder import ProgramBuilder, Written, make_written
from meta_magic.session.raised_calls import find_raised
from meta_magic.session.threads import ProcessWatch, TaskWatch, ThreadWatch
from meta_magic.session.trees import TreeFinder, modules_in, refer_to
from meta_magic.session.values_on_demand import ValuesOnDemand
from meta_magic.torch_private.dispatcher import kernels_put_in
from meta_magic.torch_private.modes import dispatch_mode_stack
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.notes import CellSource, Note
from meta_magic.trace.options import Options, ValueLimits
from meta_magic.trace.program import Program
from meta_magic.trace.table import paused_collector
from meta_magic.trace.trace import Trace

NO_SOURCE: Final = CellSource()
OPTIONS: Final = Options()


class Recording:
    """One recording: run code under it in one or more stretches, then finish it.

    Args:
        cell_file: File name of the code whose lines are the cell's.
        top: Code object of the outermost frame of interest; None for a module's.
        options: What the user chose.
        entry_points: Functions that enter and leave the guard, as it needs to know.
        namespace: Variables as they are before; a module that is there already is
            described only if it is called.
        is_probe: Whether calls are only tried; see ``Refusals``.
        show: Shows how far a value is that takes long to compute.

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
        is_probe: bool = False,
        show: Show = show_line,
    ) -> None:
        cache, self._clock = pick_cache(options), Clock()
        self._written = write = make_written(cache, self._clock, cell_file, top)
        self._trees = TreeFinder(write.registry, write.numbers, write.calls, namespace)
        self._programs = ProgramBuilder(write, self._clock, options.device)
        self._real_memory = RealMemory(write.places, write.findings)
        self._plan = plan = DevicePlan(
            write.registry, write.places, options, write.findings.note
        )
        self._lifting = Lifting(
            write.registry, write.constants, write.findings, write.places
        )
        self._lending = Lending(self._lifting, plan)
        write.calls.meet = self._lending.meet
        self._refusals = Refusals(is_probe=is_probe, is_patient=options.is_patient)
        self._threads = ThreadWatch()
        self._tasks = TaskWatch()
        self._composites = CompositesOf(plan, write.constants.note_values)
        self._autocast = AutocastOf(plan, self._composites)
        self._values = ValuesOnDemand(
            write, self._clock, self._programs.snapshot, options, show
        )
        self._shared = SharedMemory(
            write.registry, write.places, write.constants, write.findings, self._values
        )
        self.guard = Guard(self._make_contexts(options, cache), entry_points)
        self._started = time.perf_counter()

    def _make_contexts(
        self, options: Options, cache: SignatureCache
    ) -> tuple[AbstractContextManager[Any], ...]:
        """Return what is entered around the code, in order."""
        write, plan = self._written, self._plan
        kernels, note = write.findings.kernels, write.findings.note
        composites, autocast = self._composites, self._autocast
        attention = AttentionOf(plan, self._clock, autocast, kernels, composites)
        saver = Saver(write.registry, self._values, note)
        loader = Loader(note, plan, self._lending)
        return (
            RARE_COLLECTION,
            EagerStance(),
            self._threads,
            self._tasks,
            ProcessWatch(note),
            DataSources(note, saver, loader, self._shared, self._lifting),
            *stand_in_for(
                plan, note, write.draws, partial(saver.compute, can_wait=False)
            ),
            NewParameters(write.registry.forget),
            self._lending,
            attention,
            composites,
            self._autocast,
            OptimizersOf(options.device),
            ChunkedLossesOf(options.device),
            KernelsOf(plan),
            write.flags,
            write.draws,
            write.calls,
            write.rows.roles,
            *self._make_modes(cache, attention, options),
        )

    def _make_modes(
        self, cache: SignatureCache, attention: AttentionOf, options: Options
    ) -> tuple[AbstractContextManager[Any], ...]:
        """Return what meets each text of a tensor, call of torch, and operator."""
        write, plan = self._written, self._plan
        registry, places, rows = write.registry, write.places, write.rows
        special = SpecialTensors(places, write.findings, self._plan)
        kernels = self._make_kernels(cache, special, options)
        runner = OperatorRunner(places, special, attention, kernels)
        dispatch = DispatchMode(registry, rows, cache, special, runner)
        functions = FunctionMode(
            registry=registry,
            places=places,
            constants=write.constants,
            findings=write.findings,
            attention=attention,
            plan=plan,
            dispatch=dispatch,
            served=ServedFunctions(registry, rows, cache, attention, kernels.checks),
            lifting=self._lifting,
            refusals=self._refusals,
            shared=self._shared,
            makers=ServedMakers(registry, rows, cache.entry_by_maker, plan),
        )
        shown = ShownTensors(registry, self._values, plan)
        stored = ReadStorages(registry, self._values, self._shared)
        modes = self._modes = functions, dispatch
        leaves = LeafModules(functions, write.calls, rows)
        self._shared.modes = *modes, leaves
        return shown, stored, BackwardPasses(*modes), *modes, self._shared, leaves

    def _make_kernels(
        self, cache: SignatureCache, special: SpecialTensors, options: Options
    ) -> KernelCalls:
        """Return what runs operators that are not served, and records them."""
        write = self._written
        return KernelCalls(
            registry=write.registry,
            rows=write.rows,
            cache=cache,
            constants=write.constants,
            real_memory=self._real_memory,
            special=special,
            findings=write.findings,
            values=self._values,
            plan=self._plan,
            lifting=self._lifting,
            refusals=self._refusals,
            checks=make_checks(write, self._programs.snapshot, options),
        )

    @property
    def n_operators(self) -> int:
        """Operator calls recorded so far; may be read from another thread."""
        return self._clock.now

    @paused_collector()
    def finish(
        self,
        error: BaseException | None = None,
        namespace: Mapping[str, object] | None = None,
        source: CellSource = NO_SOURCE,
    ) -> Trace:
        """Build the trace, and let go of everything that was held.

        Args:
            error: What ended the block, if anything did.
            namespace: Where to look for names of root modules.
            source: The cell, if one was.
        """
        seconds = time.perf_counter() - self._started
        write = self._written
        if isinstance(error, KeyboardInterrupt):  # perhaps while it entered a region
            self._autocast.restore()
        write.calls.close_open_calls()
        self._doubt_foreign_casts()
        trees = self._describe(namespace or {})
        self._programs.raised = find_raised(error, self._modes, write, self._lending)
        program = self._programs.build(trees, has_failed=error is not None)
        write.draws.keep_ends(program)
        living = dict(write.numbers.living())
        trace = Trace(
            program=program,
            modules=tuple(tree.node for tree in trees),
            notes=self._find_notes(program, trees, has_failed=error is not None),
            error=None if error is None else describe_error(error),
            nbytes_real=self._real_memory.nbytes,
            seconds=seconds,
            cell=source,
            error_line=write.places.find_error_line(error),
            roots=tuple(refer_to(living.get(tree.number)) for tree in trees),
            failed=find_failed_call(error, self._modes, write.registry, self._lending),
        )
        keep_origin(write, program, trees, living, modules_in(namespace or {}))
        self._values.hand_over(program)
        self._close()
        return trace

    def _close(self) -> None:
        """Let go of what was held."""
        write = self._written
        for part in (write.calls, write.numbers, write.registry, self._lending):
            part.close()

    def _describe(self, namespace: Mapping[str, object]) -> list[Tree]:
        """Return the module trees as the block had them."""
        with RealTorch() if self._lending.has_lent else nullcontext():
            self._lending.exchange()
            try:
                trees = self._trees.describe(namespace)
            finally:
                self._lending.give_back()
        self._lifting.finish()
        return trees

    def _doubt_foreign_casts(self) -> None:
        """Note the operators that a library would have cast by a kernel of its own."""
        for entry in self._written.rows.entries if self._autocast.foreign else ():
            op = entry.signature.op
            namespace, _, name = op.removesuffix(".default").partition(".")
            if f"{namespace}::{name}" in self._autocast.foreign:
                text = f"{op} casts by a kernel of its own under autocast, not on meta"
                self._written.findings.doubts[text, None] = None

    def _find_notes(
        self, program: Program, trees: Sequence[Tree], *, has_failed: bool
    ) -> tuple[Note, ...]:
        threads = (*self._threads.names, *self._written.calls.threads)
        outside = Outside(self.guard.odd, threads, tuple(self._tasks.names), has_failed)
        return find_notes(self._written, program, trees, outside)


MAX_SHARED_SIGNATURES: Final = 100_000

shared_cache_by_device: dict[str, SignatureCache] = {}
"""The same call of attention is other operators on another device."""

known_kernels: set[str] = set()
"""Those that libraries had put in when the caches were used last."""


def pick_cache(options: Options) -> SignatureCache:
    """Return the cache to record with: a shared one, or a private one that runs all.

    Under another dispatch mode every kernel must run, so that this mode sees it: a
    served call would look to it like ``empty_strided``.
    """
    if not options.cache or dispatch_mode_stack():
        return SignatureCache(is_serving=False)
    if known_kernels != kernels_put_in:
        forget_replaced_kernels()
    shared_cache = shared_cache_by_device.get(options.device)
    if shared_cache is None:
        shared_cache = SignatureCache(is_serving=True)
        shared_cache_by_device[options.device] = shared_cache
    if shared_cache.n_entries > MAX_SHARED_SIGNATURES:
        shared_cache.clear()
    return shared_cache


def forget_replaced_kernels() -> None:
    """Clear the caches if a library changed what an operator of torch's own runs."""
    changed = known_kernels ^ kernels_put_in
    if any(name.startswith("aten/") for name in changed):
        for cache in shared_cache_by_device.values():
            cache.clear()
    known_kernels.symmetric_difference_update(changed)


def keep_origin(
    write: Written,
    program: Program,
    trees: Sequence[Tree],
    living: Mapping[int, nn.Module],
    namespace: Mapping[str, nn.Module],
) -> None:
    """Remember a program for as long as something that it made lives.

    Args:
        write: What its recording wrote.
        program: It.
        trees: Its module trees.
        living: Modules by their number.
        namespace: The modules that variables hold.
    """
    refs = write.registry.living()
    versions = dict(chain.from_iterable(tree.versions.items() for tree in trees))
    roots = {id(living.get(tree.number)) for tree in trees}
    for module in (m for m in namespace.values() if id(m) not in roots):
        versions |= read_versions(write.registry, module)
    aliased = frozenset(write.registry.aliased)
    if write.imports.aliased:
        aliased |= write.imports.aliased & program.n_writes_by_storage.keys()
    counters = look_for_versions(program, refs, aliased, versions)
    owned = set[int]().union(*(tree.owner_by_storage for tree in trees))
    origin = Origin(
        program=program,
        generator_state=write.draws.state_left(),
        modules=dict(zip(living, map(weakref.ref, living.values()), strict=True)),
        versions=versions,
        aliased=aliased,
        counters=counters,
        places={r.number: r.place for r in refs if r.place is not None},
        checksums=write.constants.sum_made(ref for ref in refs if ref.number in owned),
    )
    refs = list_changed(program, refs, aliased)
    origin.met = write.registry.list_tensors({ref.number for ref in refs})
    keep_origins(origin, refs)


def list_changed(
    program: Program, refs: list[StorageRef], aliased: AbstractSet[int]
) -> list[StorageRef]:
    """Return the storages but those that were only read.

    These are as they were made, by the same tensors.
    """
    passed = {imported.storage for imported in program.imports}
    if passed:
        passed -= program.n_writes_by_storage.keys() | aliased
    if not passed:
        return refs
    return [ref for ref in refs if ref.number not in passed]


T = TypeVar("T")


def run_with_values(
    block: Callable[[], T], limits: ValueLimits, *, has_places: bool
) -> T:
    """Run what writes texts: those of tensors on meta have values, if they take little.

    As in a recording, of which nothing else is there: all runs as it would.

    Args:
        block: Writes them.
        limits: What the value of one may take.
        has_places: Whether they say the device that a recorded cell named, not meta.
    """
    if not has_origins():
        return block()
    clock, options = Clock(), Options(limits=limits)
    write = make_written(pick_cache(options), clock, "", None)
    programs = ProgramBuilder(write, clock, options.device)
    values = ValuesOnDemand(write, clock, programs.snapshot, options)
    texts = ShownTensors(write.registry, values, None, has_places=has_places)
    try:
        return Guard((texts,)).run(block)
    finally:
        write.registry.close()
