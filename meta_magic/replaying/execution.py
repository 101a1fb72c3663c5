"""Run the steps of a plan on a real device."""

from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor, UntypedStorage

from meta_magic.replaying.call_runner import CallRunner
from meta_magic.replaying.contents import find_uninitialized
from meta_magic.replaying.memory import allocate, make_view
from meta_magic.replaying.plan import plan_replay
from meta_magic.replaying.program_calls import Call, ProgramCalls, split_draw
from meta_magic.replaying.steps import Plan, Request, Step, StepKind
from meta_magic.replaying.streams import Streams
from meta_magic.trace.program import Import, Program

__all__ = ["Execution", "Finished", "order_latest_first"]

Finished = Callable[[int, UntypedStorage | Tensor], None]
"""Takes the number and the content of a wanted storage; a tensor for sparse layouts."""


class Execution:
    """One replay of the calls that some storages depend on.

    What earlier recordings made is replayed first, each recording once.

    Args:
        program: What was recorded.
        request: What is wanted of it.
        device: What stands for meta.
        read: Returns the columns of a program.

    Raises:
        ReplayError: Their content depends on something that was not recorded.

    Attributes:
        plan: What will be done of the program itself.
    """

    def __init__(
        self,
        program: Program,
        request: Request,
        device: torch.device,
        read: Callable[[Program], ProgramCalls] = ProgramCalls,
    ) -> None:
        requests = {id(program): request}
        parts: list[Part] = []
        for current in order_latest_first(program):
            if id(current) not in requests:
                continue
            part = Part(read(current), requests[id(current)], device)
            parts.append(part)
            for imported in part.imports:
                known = requests.get(id(imported.program), Request())
                storages = known.storages | {imported.origin}
                requests[id(imported.program)] = Request(
                    storages=storages, can_assume=request.can_assume
                )
        self._last = parts[0]
        self._parts = parts[::-1]
        self.plan = self._last.plan
        self._takers: dict[tuple[int, int], list[tuple[Part, int]]] = {}
        for part in self._parts:
            for i in part.imports:
                key = (id(i.program), i.origin)
                self._takers.setdefault(key, []).append((part, i.storage))

    @property
    def n_work(self) -> int:
        """Bytes that :meth:`run` will report to have made or written."""
        return sum(step_nbytes(step) for part in self._parts for step in part.steps)

    @property
    def steps(self) -> list[Step]:
        """Steps of all recordings, in order."""
        return [step for part in self._parts for step in part.steps]

    @property
    def uninitialized(self) -> set[int]:
        """Wanted storages of which some holds what lay in memory before."""
        raw: dict[int, set[int]] = {}
        found: set[int] = set()
        for part in self._parts:
            found = find_uninitialized(part.plan, raw.get(id(part), ()))
            for storage in found:
                for taker, number in self._takers_of(part, storage):
                    raw.setdefault(id(taker), set()).add(number)
        return found

    def peak_nbytes(self, kept: Mapping[int, int]) -> int:
        """Return the most bytes held at any moment; see :meth:`Plan.peak_nbytes`."""
        peak = 0
        waiting: dict[int, int] = {}
        for part in self._parts:
            waiting.pop(id(part), None)  # what it was given counts in its own peak
            own = part.peak_nbytes(kept if part is self._last else {})
            peak = max(peak, own + sum(waiting.values()))
            for storage in part.plan.wanted:
                nbytes = part.plan.recorded.nbytes_by_storage.get(storage, 0)
                for taker, _ in self._takers_of(part, storage):
                    waiting[id(taker)] = waiting.get(id(taker), 0) + nbytes
        return peak

    def run(self, finished: Finished) -> Iterator[int]:
        """Do it, one step at a time; under :func:`RealTorch`.

        Args:
            finished: Given each wanted storage as soon as nothing changes it any more.

        Yields:
            The bytes that each step made or wrote.

        Raises:
            ReplayError: A step failed, or gave something else than was recorded.
        """
        for part in self._parts:
            is_last = part is self._last
            yield from part.run(finished if is_last else self._passing_on(part))

    def end_state(self) -> Tensor | None:
        """Return where torch's default CPU generator would stand now, if it moved."""
        return self._last.end_state()

    def _takers_of(self, part: "Part", storage: int) -> list[tuple["Part", int]]:
        return self._takers.get((id(part.program), storage), [])

    def _passing_on(self, part: "Part") -> Finished:
        """Return what gives the content of storages to later recordings."""

        def take(storage: int, real: UntypedStorage | Tensor) -> None:
            takers = self._takers_of(part, storage)
            for index, (taker, number) in enumerate(takers):
                # Each may write it: all but one get a copy.
                taker.give(number, real.clone() if index else real)

        return take


class Part:
    """What is replayed of one recording.

    Attributes:
        program: The recording.
        plan: What is done of it.
        imports: The storages that earlier recordings make for it.
    """

    def __init__(
        self, recorded: ProgramCalls, request: Request, device: torch.device
    ) -> None:
        program = self.program = recorded.program
        self.plan: Plan = plan_replay(recorded, request)
        self.imports: list[Import] = [
            imported
            for imported in program.imports
            if imported.storage in self.plan.given
            and imported.storage not in self.plan.recorded.constants
        ]
        draws = [step.draw for step in self.plan.steps if step.draw is not None]
        streams = Streams(program.randomness, draws, self.plan.end, device)
        self._runner = CallRunner(self.plan.recorded, device, streams)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the plan."""
        return self.plan.steps

    def peak_nbytes(self, kept: Mapping[int, int]) -> int:
        """Return the most bytes held at any moment, given storages included."""
        is_cpu = self._runner.device.type == "cpu"
        return self.plan.peak_nbytes(kept, can_split=is_cpu)

    def give(self, storage: int, real: UntypedStorage | Tensor) -> None:
        """Take in what an earlier recording made."""
        if isinstance(real, Tensor):
            self._runner.memory.add_tensor(storage, real)
        else:
            self._runner.memory.add(storage, real)

    def end_state(self) -> Tensor | None:
        """Return where torch's default CPU generator would stand now, if it moved."""
        end = self.plan.end
        return None if end is None else self._runner.streams.state_at(end)

    def run(self, finished: Finished) -> Iterator[int]:
        """Do the steps; yield the bytes that each made or wrote."""
        memory = self._runner.memory
        used = {s for step in self.steps for s in (*step.frees, *step.finishes)}
        self._provide()
        for storage in self.plan.wanted - used:
            finished(storage, memory.take(storage))
        for step in self.steps:
            self._do(step)
            memory.free(step.frees)
            for storage in step.finishes:
                finished(storage, memory.take(storage))
            yield step_nbytes(step)

    def _provide(self) -> None:
        """Bring in what is there before the first step."""
        recorded, runner = self.plan.recorded, self._runner
        for storage in self.plan.given:
            constant = recorded.constants.get(storage)
            if constant is not None:
                runner.memory.load(constant)
        for storage in self.plan.blank:
            nbytes = recorded.nbytes_by_storage[storage]
            runner.memory.add(storage, allocate(nbytes, runner.device))

    def _do(self, step: Step) -> None:
        call, runner = step.call, self._runner
        if step.kind == StepKind.ALLOCATE:
            for pair in zip(call.outputs, call.signature.outputs, strict=True):
                if pair[0] not in runner.memory:
                    runner.memory.allocate(*pair)
        elif step.kind == StepKind.DRAW:
            if step.draw is not None:
                runner.use_up(call, step.draw, self._make_scratch(call))
        else:
            inputs = runner.read_inputs(call)
            outputs = runner.make(call, step.draw, inputs)
            runner.keep(call, inputs, outputs, unneeded=step.frees)

    def _make_scratch(self, call: Call) -> Iterator[list[Tensor]]:
        """Yield arguments for a call of which only the draw matters."""
        device, sizes = self._runner.device, self.plan.recorded.nbytes_by_storage
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


def order_latest_first(program: Program) -> list[Program]:
    """Return a recording and all that it goes on from, each before those it needs."""
    done: dict[int, Program] = {}
    stack = [(program, iter(sources_of(program)))]
    while stack:
        current, rest = stack[-1]
        following = next((p for p in rest if id(p) not in done), None)
        if following is not None:
            stack.append((following, iter(sources_of(following))))
        else:
            done.setdefault(id(current), current)
            stack.pop()
    return list(done.values())[::-1]


def sources_of(program: Program) -> list[Program]:
    """Return the recordings from which one went on directly."""
    return list({id(i.program): i.program for i in program.imports}.values())
