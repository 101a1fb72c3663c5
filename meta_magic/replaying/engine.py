"""Run the steps of a plan on a real device."""

from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor, UntypedStorage

from meta_magic.replaying.machine import Machine
from meta_magic.replaying.memory import allocate, make_view
from meta_magic.replaying.plan import (
    Call,
    Columns,
    Plan,
    Request,
    Step,
    StepKind,
    plan_replay,
    split_draw,
)
from meta_magic.replaying.streams import Streams
from meta_magic.trace.program import Import, Program

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
        earlier: The replays of earlier recordings that this one goes on from, each
            with the numbers of its storages here.
    """

    def __init__(
        self, program: Program, request: Request, device: torch.device
    ) -> None:
        self.plan: Plan = plan_replay(Columns(program), request)
        self.earlier: list[tuple[Replay, dict[int, int]]] = []
        draws = [step.draw for step in self.plan.steps if step.draw is not None]
        streams = Streams(program.randomness, draws, self.plan.end, device)
        self._machine = Machine(self.plan.columns, device, streams)
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
    def n_steps(self) -> int:
        """Steps of this replay and the earlier ones."""
        return len(self.plan.steps) + sum(r.n_steps for r, _ in self.earlier)

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

    def peak_nbytes(self, kept: Mapping[int, int]) -> int:
        """Return the most bytes held at any moment; see :meth:`Plan.peak_nbytes`."""
        is_cpu = self._machine.device.type == "cpu"
        own = self.plan.peak_nbytes(kept, can_split=is_cpu)
        return max([own, *(replay.peak_nbytes({}) for replay, _ in self.earlier)])

    def run(self, finished: Finished) -> Iterator[int]:
        """Do it, one step at a time; under :func:`real_torch`.

        Args:
            finished: Given each wanted storage as soon as nothing changes it any more.

        Yields:
            The bytes that each step made or wrote.

        Raises:
            ReplayError: A step failed, or gave something else than was recorded.
        """
        for replay, numbers in self.earlier:
            yield from replay.run(self._taking(numbers))
        plan, memory = self.plan, self._machine.memory
        used = {s for step in plan.steps for s in (*step.frees, *step.finishes)}
        self._provide()
        for storage in plan.wanted - used:
            finished(storage, memory.take(storage))
        for step in plan.steps:
            self._do(step)
            memory.free(step.frees)
            for storage in step.finishes:
                finished(storage, memory.take(storage))
            yield step_nbytes(step)

    def end_state(self) -> Tensor | None:
        """Return where torch's default CPU generator would stand now, if it moved."""
        if self.plan.end is None:
            return None
        return self._machine.streams.state_at(self.plan.end)

    def _taking(self, numbers: Mapping[int, int]) -> Finished:
        """Return what takes the content that an earlier recording made."""

        def take(number: int, real: UntypedStorage | Tensor) -> None:
            memory, storage = self._machine.memory, numbers[number]
            if isinstance(real, Tensor):
                memory.add_tensor(storage, real)
            else:
                memory.add(storage, real)

        return take

    def _provide(self) -> None:
        """Bring in what is there before the first step."""
        columns, machine = self.plan.columns, self._machine
        for storage in self.plan.given:
            constant = columns.constants.get(storage)
            if constant is not None:
                machine.memory.load(constant)
        for storage in self.plan.blank:
            nbytes = columns.nbytes_by_storage[storage]
            machine.memory.add(storage, allocate(nbytes, machine.device))

    def _do(self, step: Step) -> None:
        call, machine = step.call, self._machine
        if step.kind == StepKind.ALLOCATE:
            for pair in zip(call.outputs, call.signature.outputs, strict=True):
                if pair[0] not in machine.memory:
                    machine.memory.allocate(*pair)
        elif step.kind == StepKind.DRAW:
            if step.draw is not None:
                machine.use_up(call, step.draw, self._make_scratch(call))
        else:
            inputs = machine.read_inputs(call)
            machine.keep(call, inputs, machine.make(call, step.draw, inputs))

    def _make_scratch(self, call: Call) -> Iterator[list[Tensor]]:
        """Yield arguments for a call of which only the draw matters."""
        device, sizes = self._machine.device, self.plan.columns.nbytes_by_storage
        pieces = split_draw(call) if device.type == "cpu" else []
        if pieces:
            dtype = call.signature.inputs[0].dtype
            scratch = torch.empty(max(pieces), dtype=dtype, device=device)
            yield from ([scratch[:numel]] for numel in pieces)
            return
        storages = {s: allocate(sizes[s], device) for s in call.inputs}
        yield [
            make_view(storages[storage], geometry)
            for storage, geometry in zip(
                call.inputs, call.signature.inputs, strict=True
            )
        ]


def step_nbytes(step: Step) -> int:
    """Return the bytes that a step makes or writes."""
    if step.kind == StepKind.ALLOCATE:
        return 0
    return sum(prod(g.shape) * g.dtype.itemsize for g in step.call.signature.outputs)


def group_imports(plan: Plan) -> list[tuple[Program, list[Import]]]:
    """Return the storages that earlier recordings made, by the recording."""
    groups: dict[int, tuple[Program, list[Import]]] = {}
    for imported in plan.columns.program.imports:
        is_constant = imported.storage in plan.columns.constants
        if imported.storage in plan.given and not is_constant:
            program = imported.program
            groups.setdefault(id(program), (program, []))[1].append(imported)
    return list(groups.values())
