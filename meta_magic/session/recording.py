"""Put the parts of a recording together, run code under them, and build the trace.

``%%meta``, ``record()`` and the pytest plugin each make a ``Recording``. Its ``guard``
enters the modes and replacements around the user's code; ``finish`` turns what they
wrote into a ``Trace``. Read ``Recording.__init__``, ``_make_contexts`` and ``finish``.
"""

import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from types import CodeType
from typing import Any, Final, TypeVar

from torch import Tensor, nn

from meta_magic.recording.as_device.attention import DeviceAttention
from meta_magic.recording.as_device.autocast import DeviceAutocast, DeviceChoices
from meta_magic.recording.as_device.composites import DeviceComposites
from meta_magic.recording.as_device.oracle.cpu_refusals import Refusals
from meta_magic.recording.identities.call_sites import WarningLines
from meta_magic.recording.identities.origins import (
    Origin,
    add_uncounted_versions,
    has_origins,
    keep_origins,
)
from meta_magic.recording.intercept.data_readers import ReadStorages, ShownTensors
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.factories import NewOfSubclass
from meta_magic.recording.intercept.function_mode import BackwardPasses, FunctionMode
from meta_magic.recording.intercept.higher_order import EagerStance
from meta_magic.recording.intercept.kernel_calls import KernelCalls
from meta_magic.recording.intercept.planned.gpu_types import GeneratorStates
from meta_magic.recording.intercept.planned.planned_devices import make_device_contexts
from meta_magic.recording.intercept.real_tensors.borrowed_modules import BorrowedModules
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.saving import DataSources, Loader, Saver
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.rows.module_trees import Tree, read_versions
from meta_magic.recording.rows.writers import Writers, make_writers
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.session.failed_calls import describe_error, find_failed_call
from meta_magic.session.guard import Guard, LibraryImports, ProcessWatch, ThreadWatch
from meta_magic.session.note_finders import Outside, find_notes
from meta_magic.session.program_builder import ProgramBuilder, TreeFinder, modules_in
from meta_magic.session.raised_calls import find_raised
from meta_magic.session.values_on_demand import ValuesOnDemand, make_checks
from meta_magic.torch_private.dispatcher import kernels_put_in
from meta_magic.torch_private.modes import DisableTorchFunction, dispatch_mode_stack
from meta_magic.torch_private.replacing import ImportedNames
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Options, ValueLimits
from meta_magic.trace.program import Program, StoragesOnMeta
from meta_magic.trace.summary import paused_collector
from meta_magic.trace.trace import Trace

NO_SOURCE: Final = CellSource()
OPTIONS: Final = Options()
MAX_SHARED_SIGNATURES: Final = 100_000

T = TypeVar("T")

shared_cache_by_device: dict[str, SignatureCache] = {}
"""One cache for each device: on another device a call may run other operators."""

known_kernels: set[str] = set()
"""Kernels that libraries had registered when the caches were used last."""


class Recording:
    """One recording: run code under its guard, once or in several parts, then finish.

    Args:
        top: Code object of the outermost frame of interest; None for a module's.
        namespace: Variables before the block: a module that is there already is
            described only if it is called.
        is_probe: Whether the caller only asks if the block runs, as for an edit that is
            tried: a refusal of meta is final, and no error is described.

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
        namespace: Mapping[str, object] = {},
        is_probe: bool = False,
    ) -> None:
        cache = pick_cache(options)
        self._writers = write = make_writers(options, cache, cell_file, top)
        self._trees = TreeFinder(write, namespace)
        self._programs = ProgramBuilder(write, options.device)
        self._threads = ThreadWatch()
        self._world, self._is_checked = options.world, options.is_checked
        self._capture = ConstantCapture(write)
        self._borrowed = BorrowedModules(write, self._capture)
        self._composites = DeviceComposites(write)
        self._autocast = DeviceAutocast(write, self._composites)
        self._values = ValuesOnDemand(write, self._programs, options)
        self._shared = SharedMemory(write, self._values)
        self._is_probe = is_probe
        self._imported = ImportedNames(sys.modules.get(str(namespace.get("__name__"))))
        refusals = Refusals(is_probe=is_probe, is_patient=options.is_check)
        contexts = self._make_contexts(options, cache, refusals)
        self.guard = Guard(contexts, entry_points)
        self._started = time.perf_counter()

    def _make_contexts(
        self, options: Options, cache: SignatureCache, refusals: Refusals
    ) -> tuple[AbstractContextManager[Any], ...]:
        """Return the context managers around the code, in order; modes come last."""
        write, plan, values = self._writers, self._writers.plan, self._values
        registry, capture, shared = write.registry, self._capture, self._shared
        on_meta, take = StoragesOnMeta(), self._programs.snapshot
        plan.find_derived = lambda: on_meta.follow(take(), registry.on_meta)
        attention = DeviceAttention(write, self._autocast, self._composites)
        checks = make_checks(write, self._programs, options, values)
        parts = attention, values, capture, refusals, checks
        dispatch = DispatchMode(write, cache, KernelCalls(write, cache, *parts))
        functions = FunctionMode(write, attention, dispatch, capture, refusals, shared)
        self._modes = functions, dispatch
        # A call of a real module borrows it, and borrowing reads what calls wrote.
        write.calls.on_older_module = self._borrowed.borrow_called
        shared.modes = self._modes  # they check shared arrays once one exists
        saver = Saver(write, values, in_world=options.world is not None)
        loader = Loader(write, self._borrowed)
        compute = partial(saver.compute, can_wait=False)
        return (  # entered in this order; a later mode sees a call first
            RARE_COLLECTION,
            EagerStance(),
            self._threads,
            WarningLines(),
            ProcessWatch(write),
            LibraryImports(),
            DataSources(write, saver, loader, shared, capture),
            *make_device_contexts(write, compute),
            *make_world_contexts(options, write, values, saver, capture, dispatch),
            NewOfSubclass(write),
            GeneratorStates(write, values, saver.compute),
            self._borrowed,
            attention,
            self._composites,
            self._autocast,
            DeviceChoices(write),
            write.flags,
            write.draws,
            write.calls,
            write.rows.roles,
            ShownTensors(write, values),
            ReadStorages(write, values, shared),
            BackwardPasses(*self._modes),
            self._imported,
            *self._modes,
            shared,
        )

    @property
    def n_operators(self) -> int:
        """Operator calls recorded so far; may be read from another thread."""
        return self._writers.clock.now

    @paused_collector()
    def finish(
        self,
        error: BaseException | None = None,
        namespace: Mapping[str, object] | None = None,
        source: CellSource = NO_SOURCE,
    ) -> Trace:
        """Build the trace, and release everything that the recording held."""
        seconds = time.perf_counter() - self._started
        write, has_failed, is_probe = self._writers, error is not None, self._is_probe
        namespace = namespace or {}
        if isinstance(error, KeyboardInterrupt):  # perhaps in the middle of a change
            self._autocast.reset()
        write.calls.close_open_calls()
        self._note_foreign_casts()
        trees = self._describe(namespace)
        if not is_probe:
            raised = find_raised(error, self._modes, write, self._borrowed)
            self._programs.raised = raised
        program = self._programs.build(trees, omits_failures=has_failed)
        write.draws.keep_ends(program)
        module_by_number = dict(write.numbers.live())
        roots = [module_by_number.get(tree.number) for tree in trees]
        threads = (*self._threads.names, *write.calls.threads)
        outside = Outside(self.guard.left_open, threads, has_failed)
        trace = Trace(
            program=program,
            modules=tuple(tree.node for tree in trees),
            recorded_notes=find_notes(write, program, trees, outside),
            error=None if error is None else describe_error(error),
            nbytes_real=write.diagnostics.nbytes_real,
            seconds=seconds,
            cell=source,
            error_line=write.sites.find_error_line(error),
            roots=tuple(None if root is None else weakref.ref(root) for root in roots),
            failed=find_failed_call(
                error, self._modes, write.registry, self._borrowed, is_probe=is_probe
            ),
            world=self._world,
            is_checked=self._is_checked,
        )
        keep_origin(write, program, trees, module_by_number, modules_in(namespace))
        self._values.evaluator.keep_contents(program)
        write.diagnostics.drop_unasked()
        for part in (write.calls, write.numbers, write.registry, self._borrowed):
            part.close()
        return trace

    def _describe(self, namespace: Mapping[str, object]) -> list[Tree]:
        """Return the module trees as the block had them: borrowed modules on meta."""
        with RealTorch() if self._borrowed.has_borrowed else nullcontext():
            self._borrowed.exchange()
            try:
                trees = self._trees.describe(namespace)
            finally:
                self._borrowed.give_back()
        self._capture.finish()
        return trees

    def _note_foreign_casts(self) -> None:
        """Note the operators that a library would have cast by a kernel of its own."""
        for entry in self._writers.rows.entries if self._autocast.foreign else ():
            op = entry.signature.op
            namespace, _, name = op.removesuffix(".default").partition(".")
            if f"{namespace}::{name}" in self._autocast.foreign:
                text = f"{op} casts by a kernel of its own under autocast, not on meta"
                self._writers.diagnostics.caveats[text, None] = None


def make_world_contexts(
    options: Options,
    write: Writers,
    values: ValuesOnDemand,
    saver: Saver,
    capture: ConstantCapture,
    mode: DispatchMode,
) -> tuple[AbstractContextManager[Any], ...]:
    """Return the context managers that give a block its world; () if it has none."""
    if options.world is None:
        return ()
    registry = write.registry
    # A block of one process imports nothing of torch.distributed.
    from meta_magic.recording.intercept.world import (  # noqa: PLC0415
        checkpoints,
        messages,
        planned_world,
        torch_on_meta,
    )

    def read(tensor: Tensor) -> tuple[Tensor | None, bool]:
        with DisableTorchFunction():
            return values.peek_to_send(tensor, registry.read(tensor))

    def hold(values: Tensor) -> Tensor:
        """Return a meta tensor with these values that takes no planned memory."""
        made = capture.capture(values, is_noted=False)
        ref = registry.storage_of(made)
        if ref is not None:
            registry.note_size(ref, 0)
        return made

    def note_received(tensor: Tensor) -> None:
        with DisableTorchFunction():
            values.note_received(registry.read(tensor))

    def check_saved(tensors: Sequence[Tensor], what: str) -> None:
        with DisableTorchFunction():
            values.check_saved([(t, registry.read(t)) for t in tensors], what)

    rank, peers = options.world.rank, options.peers
    saves = checkpoints.Checkpoints(rank, peers, check_saved, saver)
    kept = checkpoints.Skeletons(rank, peers, saver)

    def watch_libraries() -> None:
        saves.watch_libraries()
        kept.watch_libraries()

    contexts = (
        planned_world.PlannedWorld(options.world, peers, watch_libraries),
        torch_on_meta.TorchOnMeta(write.plan),
        saves,
        kept,
    )
    if peers is None:
        return contexts
    handed = messages.Messages(options.world, peers, read, hold, note_received, mode)
    return *contexts, handed


def pick_cache(options: Options) -> SignatureCache:
    """Return the shared cache of a device, or a private one that runs every kernel.

    Under another dispatch mode every kernel must run, so that this mode sees it: a
    cache hit would look to it like ``empty_strided``.
    """
    if not options.cache or dispatch_mode_stack():
        return SignatureCache(uses_fast_paths=False)
    changed = known_kernels ^ kernels_put_in
    if changed:
        # A library registered a kernel for an operator of torch's own, or took it back.
        if any(name.startswith("aten/") for name in changed):
            for cache in shared_cache_by_device.values():
                cache.clear()
        known_kernels.symmetric_difference_update(changed)
    shared_cache = shared_cache_by_device.get(options.device)
    if shared_cache is None:
        shared_cache = SignatureCache(uses_fast_paths=True)
        shared_cache_by_device[options.device] = shared_cache
    if shared_cache.n_entries > MAX_SHARED_SIGNATURES:
        shared_cache.clear()
    return shared_cache


def keep_origin(
    write: Writers,
    program: Program,
    trees: Sequence[Tree],
    module_by_number: Mapping[int, nn.Module],
    namespace: Mapping[str, nn.Module],
) -> None:
    """Keep a program for as long as one of its storages is live."""
    refs = write.registry.live()
    versions = dict(chain.from_iterable(tree.versions.items() for tree in trees))
    roots = {id(module_by_number.get(tree.number)) for tree in trees}
    for module in (m for m in namespace.values() if id(m) not in roots):
        versions |= read_versions(write.registry, module)
    aliased = frozenset(write.registry.aliased)
    if write.imports.aliased:
        aliased |= write.imports.aliased & program.n_writes_by_storage.keys()
    add_uncounted_versions(program, refs, aliased, versions)
    owned = set[int]().union(*(tree.owner_by_storage for tree in trees))
    origin = Origin(
        program=program,
        generator_state=write.draws.end_state(),
        modules={n: weakref.ref(module) for n, module in module_by_number.items()},
        versions=versions,
        aliased=aliased,
        n_unrecorded=write.registry.n_unrecorded,
        placements={r.number: r.placement for r in refs if r.placement is not None},
        checksums=write.constants.sum_made(ref for ref in refs if ref.number in owned),
    )
    # A storage that this recording only read belongs to the one that made it.
    only_read = {imported.storage for imported in program.imports}
    if only_read:
        only_read -= program.n_writes_by_storage.keys() | aliased
    refs = [ref for ref in refs if ref.number not in only_read] if only_read else refs
    keep_origins(origin, refs)


def run_with_values(
    block: Callable[[], T], limits: ValueLimits, *, has_placements: bool
) -> T:
    """Run code that formats tensors outside of a recording, as in a plain cell."""
    if not has_origins():
        return block()
    options = Options(limits=limits)
    write = make_writers(options, pick_cache(options), "", None)
    programs = ProgramBuilder(write, options.device)
    values = ValuesOnDemand(write, programs, options)
    texts = ShownTensors(
        write, values, is_recording=False, has_placements=has_placements
    )
    try:
        return Guard((texts,)).run(block)
    finally:
        write.registry.close()
