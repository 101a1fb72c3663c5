"""Run the steps of a plan on a real device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import prod

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.recording.live import tensors_in
from meta_magic.recording.torch_private import DisableTorchFunction, disable_modes
from meta_magic.replaying.memory import Memory, allocate, make_view
from meta_magic.replaying.plan import (
    Columns,
    Plan,
    Request,
    Step,
    StepKind,
    plan_replay,
)
from meta_magic.replaying.streams import Streams
from meta_magic.trace.program import Geometry, Import, Program

__all__ = ["Finished", "Replay"]

Finished = Callable[[int, UntypedStorage | Tensor], None]
"""Takes the number and the content of a wanted storage; a tensor for sparse layouts."""


class Replay:
    """One replay of the calls that some storages depend on.

    Args:
        program: What was recorded.
        request: What is wanted of it.
        device: What stands for meta.

    Raises:
        ReplayError: Their content depends on something that was not recorded.

    Attributes:
        plan: What will be done.
        earlier: The replays of earlier recordings that this one goes on from.
    """

    def __init__(
        self, program: Program, request: Request, device: torch.device
    ) -> None:
        self.plan: Plan = plan_replay(Columns(program), request)
        self.earlier: list[tuple[Replay, dict[int, int]]] = []
        self._device = device
        self._memory = Memory(self.plan.columns, device)
        self._streams: Streams | None = None
        for origin, imports in group_imports(self.plan):
            numbers = {i.origin: i.storage for i in imports}
            earlier = Request(storages=frozenset(numbers))
            self.earlier.append((Replay(origin, earlier, device), numbers))

    @property
    def n_work(self) -> int:
        """Bytes that :meth:`run` will report to have made or written."""
        own = sum(step_nbytes(step) for step in self.plan.steps)
        return own + sum(replay.n_work for replay, _ in self.earlier)

    @property
    def uninitialized(self) -> set[int]:
        """Wanted storages that no recorded call ever wrote."""
        written = {s for step in self.plan.steps for s in step.call.written}
        passed = {
            numbers[origin]
            for replay, numbers in self.earlier
            for origin in replay.uninitialized
        }
        return (passed & self.plan.wanted) - written | self.plan.uninitialized

    @property
    def n_steps(self) -> int:
        """Steps of this replay and the earlier ones."""
        return len(self.plan.steps) + sum(r.n_steps for r, _ in self.earlier)

    def peak_nbytes(self, kept: dict[int, int]) -> int:
        """Return the most bytes held at any moment; see :meth:`Plan.peak_nbytes`."""
        own = self.plan.peak_nbytes(kept)
        return max([own, *(replay.peak_nbytes({}) for replay, _ in self.earlier)])

    def run(self, finished: Finished) -> Iterator[int]:
        """Do it, one step at a time.

        Args:
            finished: Given each wanted storage as soon as nothing changes it any more.

        Yields:
            The bytes that each step made or wrote.

        Raises:
            ReplayError: A step failed, or gave something else than was recorded.
        """
        plan, memory = self.plan, self._memory
        for replay, numbers in self.earlier:
            yield from replay.run(lambda n, real, at=numbers: self._take(at[n], real))  # type: ignore[misc]
        randomness = plan.columns.program.randomness
        draws = [step.draw for step in plan.steps if step.draw is not None]
        self._streams = Streams(randomness, draws, plan.end, self._device)
        used = {s for step in plan.steps for s in (*step.frees, *step.finishes)}
        with real_torch():
            self._provide()
            for storage in plan.wanted - used:
                finished(storage, memory.take(storage))
        for step in plan.steps:
            with real_torch():
                self._do(step)
                memory.free(step.frees)
                for storage in step.finishes:
                    finished(storage, memory.take(storage))
            yield step_nbytes(step)

    def end_state(self) -> Tensor | None:
        """Return where torch's default CPU generator would stand now, if it moved."""
        if self.plan.end is None or self._streams is None:
            return None
        return self._streams.state_at(self.plan.end)

    def _take(self, storage: int, real: UntypedStorage | Tensor) -> None:
        if isinstance(real, Tensor):
            self._memory.add_tensor(storage, real)
        else:
            self._memory.add(storage, real)

    def _provide(self) -> None:
        """Bring in what is there before the first step."""
        plan = self.plan
        for storage in plan.given:
            constant = plan.columns.constants.get(storage)
            if constant is not None:
                self._memory.load(constant)
        sizes = plan.columns.nbytes_by_storage
        for storage in plan.blank:
            self._memory.add(storage, allocate(sizes[storage], self._device))

    def _do(self, step: Step) -> None:
        call, memory = step.call, self._memory
        if step.kind == StepKind.ALLOCATE:
            for storage, geometry in zip(
                call.outputs, call.signature.outputs, strict=True
            ):
                if storage not in memory:
                    memory.allocate(storage, geometry)
            return
        if step.kind == StepKind.DRAW:
            tensors = self._make_scratch(step)
        else:
            tensors = [
                memory.tensor(storage, geometry)
                for storage, geometry in zip(
                    call.inputs, call.signature.inputs, strict=True
                )
            ]
        returned = self._call(step, tensors)
        if step.kind == StepKind.RUN:
            self._keep_outputs(step, tensors, returned)

    def _make_scratch(self, step: Step) -> list[Tensor]:
        sizes = self.plan.columns.nbytes_by_storage
        geometries = step.call.signature.inputs
        storages = {s: allocate(sizes[s], self._device) for s in step.call.inputs}
        return [
            make_view(storages[storage], geometry)
            for storage, geometry in zip(step.call.inputs, geometries, strict=True)
        ]

    def _call(self, step: Step, tensors: Sequence[Tensor]) -> object:
        call, generator = step.call, None
        if step.draw is not None and self._streams is not None:
            geometries = (*call.signature.inputs, *call.signature.outputs)
            device = geometries[0].device
            if device.type == "meta":
                device = self._device
            generator = self._streams.prepare(step.draw, device)
        try:
            returned = call.operator.call(
                call.signature, tensors, self._device, generator
            )
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            raise ReplayError(
                f"{self._describe(step)} failed on {self._device}: {error}"
            ) from error
        if step.draw is not None and self._streams is not None:
            self._streams.note(step.draw)
        return returned

    def _keep_outputs(
        self, step: Step, inputs: Sequence[Tensor], returned: object
    ) -> None:
        call, memory = step.call, self._memory
        outputs = tensors_in(returned)
        if len(outputs) != len(call.outputs):
            raise ReplayError(
                f"{self._describe(step)} returned {len(outputs)} tensors on "
                f"{self._device}, where {len(call.outputs)} were recorded"
            )
        for storage, geometry, tensor in zip(
            call.outputs, call.signature.outputs, outputs, strict=True
        ):
            if storage in memory:
                continue
            if tensor.shape != geometry.shape or tensor.dtype != geometry.dtype:
                raise ReplayError(
                    f"{self._describe(step)} returned {tensor.dtype} "
                    f"{tuple(tensor.shape)} on {self._device}, where {geometry.dtype} "
                    f"{geometry.shape} was recorded",
                    storage,
                )
            self._keep(storage, geometry, tensor, inputs)

    def _keep(
        self,
        storage: int,
        geometry: Geometry,
        tensor: Tensor,
        inputs: Sequence[Tensor],
    ) -> None:
        if geometry.stride is None:
            self._memory.add_tensor(storage, tensor)
            return
        real = tensor.untyped_storage()
        is_shared = any(
            real._cdata == other.untyped_storage()._cdata
            for other in inputs
            if other.layout is torch.strided
        )
        is_alike = (
            tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.storage_offset
            and real.nbytes() == self.plan.columns.nbytes_by_storage[storage]
            and tensor.is_conj() == geometry.is_conj
            and tensor.is_neg() == geometry.is_neg
        )
        if is_alike and not is_shared:
            self._memory.add(storage, real)
            return
        self._memory.allocate(storage, geometry)
        self._memory.tensor(storage, geometry).copy_(tensor)

    def _describe(self, step: Step) -> str:
        line = self.plan.columns.line(step.call.number)
        name = step.call.operator.name
        return name if line is None else f"{name} (line {line})"


def step_nbytes(step: Step) -> int:
    """Return the bytes that a step makes or writes."""
    if step.kind == StepKind.ALLOCATE:
        return 0
    return sum(prod(g.shape) * g.dtype.itemsize for g in step.call.signature.outputs)


def real_torch() -> ExitStack:
    """Return a context in which torch does as it is told: no modes, no gradients."""
    stack = ExitStack()
    stack.enter_context(disable_modes())
    stack.enter_context(DisableTorchFunction())
    stack.enter_context(torch.no_grad())
    return stack


def group_imports(plan: Plan) -> list[tuple[Program, list[Import]]]:
    """Return the storages that earlier recordings made, by the recording."""
    groups: dict[int, tuple[Program, list[Import]]] = {}
    for imported in plan.columns.program.imports:
        is_constant = imported.storage in plan.columns.constants
        if imported.storage in plan.given and not is_constant:
            program = imported.program
            groups.setdefault(id(program), (program, []))[1].append(imported)
    return list(groups.values())
