"""``mm.replay(trace, y)`` and ``mm.verify(trace)``: run a recording for real.

``verify(world=)`` compares a plan with a real rank; that is ``trials/rank_runs.py``.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.origins import Origin, find_origin
from meta_magic.replaying.call_runner import (
    CallRunner,
    make_view,
    read_geometry,
    view_sparse,
)
from meta_magic.replaying.execution import Execution, imported_by, order_latest_first
from meta_magic.replaying.program_calls import Call, ProgramCalls
from meta_magic.replaying.steps import Request
from meta_magic.replaying.streams import Streams
from meta_magic.replaying.value_budget import free_nbytes, read_device
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

Recorded: TypeAlias = TensorMetadata | Tensor


@overload
def replay(
    trace: Trace, tensors: Recorded, device: str | torch.device = "cpu"
) -> Tensor: ...


@overload
def replay(
    trace: Trace, tensors: Sequence[Recorded], device: str | torch.device = "cpu"
) -> list[Tensor]: ...


def replay(
    trace: Trace,
    tensors: Recorded | Sequence[Recorded],
    device: str | torch.device = "cpu",
) -> Tensor | list[Tensor]:
    """Return the values that recorded tensors would have if the cell ran for real.

    Only the calls that they depend on are run, and memory is freed as early as
    possible. Random numbers are those that the cell would draw on ``device``.

    Args:
        trace: The recording.
        tensors: One or several: inputs or outputs of its calls, or meta tensors. Their
            values are those at the end of the recording, after all writes.
        device: The device to run on, instead of meta.

    Returns:
        A real tensor for each, with its shape, strides and dtype; tensors that shared
        a storage share one again. A single tensor if one was given.

    Raises:
        ReplayError: A value depends on something that was not recorded or never
            written, or a call failed.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3).sum()
        >>> replay(trace, y)
        tensor(6.)
    """
    if isinstance(tensors, Recorded):
        return replay(trace, [tensors], device)[0]
    real_device = read_device(device, ReplayError)
    wanted = [find_wanted(trace, tensor) for tensor in tensors]
    storages = frozenset(storage for storage, _ in wanted)
    request = Request(storages=storages, read=tuple(wanted))
    execution = Execution(trace.program, request, real_device)
    if execution.reads_raw() and not execution.follow_partial_writes():
        raise ReplayError(
            "the tensor, or one that it is computed from, has elements that were never "
            f"written since {execution.describe_raw()}"
        )
    made: dict[int, torch.UntypedStorage | Tensor] = {}
    with RealTorch():
        deque(execution.run(made.__setitem__), maxlen=0)
        return [build_tensor(geometry, made[storage]) for storage, geometry in wanted]


def find_wanted(trace: Trace, tensor: object) -> tuple[int, Geometry]:
    """Return the number of a tensor's storage in a trace, and its geometry."""
    if isinstance(tensor, Tensor):
        return find_storage(trace.program, tensor), read_geometry(tensor)
    if not isinstance(tensor, TensorMetadata):
        raise ReplayError(
            f"wanted tensors, or those of trace.ops, not a {type(tensor).__name__}"
        )
    if tensor.storage_id >= len(ProgramCalls(trace.program).births):
        raise ReplayError(
            f"the trace has no tensor with storage_id {tensor.storage_id}"
        )
    return tensor.storage_id, tensor.geometry


def find_storage(program: Program, tensor: Tensor) -> int:
    """Return the number of a live tensor's storage in a program."""
    found = None
    if tensor.is_meta and tensor.layout is torch.strided and not tensor.is_nested:
        found = find_origin(tensor.untyped_storage())
    found = None if found is None else trace_back(*found, program)
    if found is None or found[0].program is not program:
        raise ReplayError(
            f"the trace did not make this tensor of shape {tuple(tensor.shape)} on "
            f"{tensor.device}: give the trace of the cell that made it"
        )
    return found[1]


def build_tensor(geometry: Geometry, content: torch.UntypedStorage | Tensor) -> Tensor:
    """Return a real tensor of recorded geometry."""
    make: Any = view_sparse if isinstance(content, Tensor) else make_view
    made: Tensor = make(content, geometry)
    return made


def trace_back(origin: Origin, number: int, last: Program) -> tuple[Origin, int] | None:
    """Return which recording has a storage's content as ``program`` left it."""
    earlier = order_latest_first(last, imported_by)
    if any(each is origin.program for each in earlier):
        return origin, number
    current = origin.program
    while current is not last:
        imported = next((i for i in current.imports if i.storage == number), None)
        if imported is None:
            return None
        current, number = imported.program, imported.origin
    return Origin(program=last), number


COLUMNS: Final = [
    *("index", "op", "line", "module"),
    *("output", "field", "recorded", "real"),
]

NOT_CHECKED: Final = "not checked"

PROFILER: Final = "profiler."
"""Prefix of operators that mark a time span of the profiler, and compute nothing."""

Row = tuple[int | None, str, object, object]
"""Number of the output (None for the whole call), field, recorded and real value."""


def verify(
    trace: Trace,
    device: str | torch.device = "cpu",
    *,
    max_nbytes: int | None = None,
    world: int | None = None,
) -> "pd.DataFrame":
    """Run a recording for real, call by call, and compare each output's metadata.

    It compares shape, dtype, stride, storage offset, layout, and the argument that an
    output shares its storage with. Inputs that no recorded call made are zeros.

    With ``world``, under torchrun, the code of the trace runs as it is, on the devices
    that it names, as the rank of this process. Compared are the bytes at the peak, and
    the collectives and their order. A script that was recorded by
    :func:`record_ranks` gets this process's ``sys.argv``. An example is
    ``torchrun --nproc-per-node=4 compare.py`` with this ``compare.py``::

        rank = int(os.environ["RANK"])
        plan = meta_magic.record_ranks("train.py", world=4, ranks=[rank])
        print(meta_magic.verify(plan[rank], world=4))

    Args:
        trace: The recording; with ``world``, that of this process's rank.
        device: The device to run on, instead of meta.
        max_nbytes: The most bytes to hold at any moment; by default half of the free
            memory. Calls that need more are listed as not checked.
        world: How many processes torchrun started.

    Returns:
        One row for each difference: ``index``, ``op``, ``line`` and ``module`` of the
        call, the number of its ``output``, the ``field``, its ``recorded`` and ``real``
        value. The ``field`` is ``"not checked"`` for a call that could not be made;
        ``real`` then says why. ``attrs`` holds ``n_calls`` and ``n_checked``. With
        ``world`` the ``field`` is ``peak_nbytes`` or ``collective``, and ``attrs``
        holds ``peak_nbytes``, ``real_peak_nbytes``, ``n_sent`` and ``n_real_sent``.

    Raises:
        ReplayError: There is no such device, or one is given beside ``world``.
        WorldError: The trace is not that of this process's rank and world.

    Example:
        >>> with record() as trace: y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> len(verify(trace))  # rows that differ
        0
    """
    import pandas as pd  # noqa: PLC0415  takes a quarter of a second

    if world is not None:
        from meta_magic.trials.rank_runs import verify_rank  # noqa: PLC0415  as said

        if device != "cpu" or max_nbytes is not None:
            raise ReplayError(
                "verify(world=) runs the code on the devices that it names: leave out "
                "device= and max_nbytes="
            )
        return verify_rank(trace, world)
    real_device = read_device(device, ReplayError)
    bound = free_nbytes(real_device) // 2 if max_nbytes is None else max_nbytes
    rows, n_checked = [], 0
    for index, found in enumerate(Verifier(trace, real_device, bound).run()):
        n_checked += all(row[1] != NOT_CHECKED for row in found)
        if found:
            call = trace.ops[index]
            identity = (call.index, call.op, call.line, call.module)
            rows += [(*identity, *row) for row in found]
    frame = pd.DataFrame.from_records(rows, columns=COLUMNS)
    frame.attrs = {"n_calls": trace.program.n_calls, "n_checked": n_checked}
    return frame


class Verifier:
    """One pass over all calls of a program, in order."""

    def __init__(self, trace: Trace, device: torch.device, max_nbytes: int) -> None:
        self._recorded = ProgramCalls(trace.program)
        streams = Streams(trace.program.randomness, self._recorded.draws, (), device)
        self._runner = CallRunner(self._recorded, device, streams)
        self._max_nbytes = max_nbytes
        self._made_up: set[int] = set()

    def run(self) -> Iterator[list[Row]]:
        """Yield the differences of each call."""
        recorded, ends = self._recorded, self._find_ends()
        for index in range(len(recorded)):
            with RealTorch():
                try:
                    found = list(self._check(recorded.call(index)))
                except ReplayError as error:  # not known in this process
                    found = [(None, NOT_CHECKED, None, str(error))]
                self._runner.memory.free(ends.get(index, ()))
            yield found

    def _find_ends(self) -> dict[int, list[int]]:
        last: dict[int, int] = {}
        for index in range(len(self._recorded)):
            last.update(dict.fromkeys(self._recorded.tensors(index)[1], index))
        ends: dict[int, list[int]] = {}
        for storage, index in last.items():
            ends.setdefault(index, []).append(storage)
        return ends

    def _check(self, call: Call) -> Iterator[Row]:
        """Make a call, and yield the differences of its outputs from the record."""
        if call.operator.name.startswith(PROFILER):
            return
        runner, sizes = self._runner, self._recorded.nbytes_by_storage
        missing = {*call.inputs, *call.outputs} - runner.memory.held.keys()
        needed = runner.memory.nbytes + sum(sizes[storage] for storage in missing)
        if needed > self._max_nbytes:
            reason = f"needs {format_bytes(needed)} of {format_bytes(self._max_nbytes)}"
            yield None, NOT_CHECKED, None, reason
            return
        for storage, geometry in zip(call.inputs, call.signature.inputs, strict=True):
            if storage not in runner.memory:
                self._make_up(storage, geometry)
        is_made_up = not self._made_up.isdisjoint(call.inputs)
        held = runner.memory.held.keys()
        is_empty = call.operator.is_empty and not {*call.outputs} <= held
        yield from self._make(call, is_made_up=is_made_up)
        if is_empty or is_made_up:
            self._made_up.update(call.outputs)
        if is_empty:  # uninitialized integers may be no valid indices
            for pair in zip(call.outputs, call.signature.outputs, strict=True):
                runner.memory.tensor(*pair).zero_()

    def _make(self, call: Call, *, is_made_up: bool) -> list[Row]:
        """Make a call, keep its outputs, and return how they differ."""
        runner = self._runner
        found: list[Row] = []
        try:
            inputs = runner.read_inputs(call)
            draw = self._recorded.draws_by_call.get(call.number)
            outputs = runner.make(call, draw, inputs)
            found += compare(call, inputs, outputs)
            runner.keep_outputs(call, inputs, outputs)
        except ReplayError as error:
            if not found:  # else the differences are the cause
                is_ours = error.__cause__ is None
                kind = NOT_CHECKED if is_made_up or is_ours else "error"
                found.append((None, kind, None, str(error.__cause__ or error)))
        return found

    def _make_up(self, storage: int, geometry: Geometry) -> None:
        """Add a storage that no call made, or whose call was not checked: zeros."""
        runner, constant = self._runner, self._recorded.constants.get(storage)
        if constant is not None:
            runner.memory.load(constant)
            return
        self._made_up.add(storage)
        runner.memory.allocate(storage, geometry)
        runner.memory.tensor(storage, geometry).zero_()


def compare(call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> Iterator[Row]:
    """Yield the differences between recorded and real outputs of a call."""
    if len(outputs) != len(call.outputs):
        yield None, "outputs", len(call.outputs), len(outputs)
        return
    pairs = zip(call.signature.outputs, outputs, strict=True)
    for number, (geometry, tensor) in enumerate(pairs):
        real = {name: getattr(tensor, name) for name in ("shape", "dtype", "layout")}
        if geometry.stride is not None and tensor.layout is torch.strided:
            real["stride"] = tensor.stride()
            real["storage_offset"] = tensor.storage_offset()
        for field, value in real.items():
            recorded = getattr(geometry, field)
            if recorded != value:
                yield number, field, recorded, value
        storage, base = call.outputs[number], find_base(inputs, tensor)
        shared = call.inputs.index(storage) if storage in call.inputs else None
        if shared != base:
            yield number, "storage of input", shared, base


def find_base(inputs: Sequence[Tensor], tensor: Tensor) -> int | None:
    """Return the first input that shares its storage with a real output."""
    if tensor.layout is not torch.strided:
        return None
    address = address_of_storage(tensor.untyped_storage())
    sharing = (
        index
        for index, other in enumerate(inputs)
        if other.layout is torch.strided
        and address_of_storage(other.untyped_storage()) == address
    )
    return next(sharing, None)
