"""Run the steps of one recording's plan on a real device."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, UntypedStorage

from meta_magic.replaying.call_runner import CallRunner
from meta_magic.replaying.flags_in_force import FlagsOf, needs_flags
from meta_magic.replaying.kept import Content
from meta_magic.replaying.memory import allocate, make_view
from meta_magic.replaying.plan import plan_replay
from meta_magic.replaying.program_calls import Call, ProgramCalls
from meta_magic.replaying.raw_memory import RawMemory
from meta_magic.replaying.results import Result
from meta_magic.replaying.split_draws import split_draw
from meta_magic.replaying.steps import Plan, Request, Step, StepKind
from meta_magic.replaying.streams import Streams

if TYPE_CHECKING:
    from meta_magic.replaying.partial_writes import RawFollower

__all__ = ["Finished", "Part"]

Finished = Callable[[int, UntypedStorage | Tensor], None]
"""Takes the number and the content of a wanted storage; a tensor for sparse layouts."""


class Part:
    """What is replayed of one recording.

    Attributes:
        program: The recording.
        plan: What is done of it.
        imports: The storages that earlier recordings make for it.
        follower: Finds out what is written where values say, if that is asked.
    """

    def __init__(
        self, recorded: ProgramCalls, request: Request, device: torch.device
    ) -> None:
        program = self.program = recorded.program
        self.plan: Plan = plan_replay(recorded, request, device)
        self.imports = [
            imported
            for imported in program.imports
            if imported.storage in self.plan.given
            and imported.storage not in self.plan.recorded.constants
        ]
        draws = [step.draw for step in self.plan.steps if step.draw is not None]
        streams = Streams(program.randomness, draws, self.plan.sources, device)
        streams.go_on_from(recorded.kept, keeps=request.keeps)
        self._runner = CallRunner(self.plan.recorded, device, streams)
        self.follower: RawFollower | None = None

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
        return None if end is None else self.state_at(end)

    def state_at(self, source: int, device: str = "cpu") -> Tensor | None:
        """Return where a generator on a device stood at a requested source."""
        return self._runner.streams.state_at(source, device)

    def go_on_from(self, done: Mapping[int, "Part"]) -> None:
        """Take in where earlier recordings brought generators, by their programs."""
        for number, end in self.plan.earlier_ends.items():
            told = partial(done[id(end.program)].state_at, end.source)
            self._runner.streams.give(number, told)

    def run(self, finished: Finished) -> Iterator[None]:
        """Do the steps; yield after each."""
        memory = self._runner.memory
        used = {s for step in self.steps for s in (*step.frees, *step.finishes)}
        has_flags = needs_flags(self.program)
        self._provide()
        for storage in self.plan.wanted - used:
            finished(storage, memory.take(storage))
        for step in self.steps:
            if self.follower is not None:
                self.follower.check(step, self._runner.read_inputs)
            if not has_flags:
                self._do(step)
            else:
                with FlagsOf(self.program, step.call.number):
                    self._do(step)
            if step.frees:
                memory.free(self._find_freed(step) if self.plan.spared else step.frees)
            for storage in step.finishes:
                finished(storage, memory.take(storage))
            yield

    def drop_idle(self, *, is_all: bool) -> int:
        """Forget what was kept and the plan does not go on from.

        Args:
            is_all: Whether all of that, or what belongs to storages that were freed.

        Returns:
            The bytes that are left of it.
        """
        kept, held = self.plan.recorded.kept, self.plan.held
        if kept is None:
            return 0
        idle = {s for s in kept.storages if s not in held}
        kept.drop(idle if is_all else idle & self.plan.recorded.dead)
        return kept.nbytes - kept.nbytes_of(held)

    @property
    def kept_nbytes(self) -> int:
        """Bytes that are kept of the recording, whether the plan needs them or not."""
        kept = self.plan.recorded.kept
        return 0 if kept is None else kept.nbytes

    def writes(self, storage: int) -> bool:
        """Whether the recording writes a storage that was there before."""
        return storage in self.plan.recorded.writers

    def keep(
        self,
        made: Mapping[int, UntypedStorage | Tensor],
        results: Mapping[int, Result],
        raw: Mapping[int, RawMemory],
    ) -> None:
        """Leave to later replays what this one made and what still lives.

        Args:
            made: What was handed over.
            results: Since which call each storage holds what it holds.
            raw: Storages of which some holds what lay in memory before.
        """
        recorded, kept, runner = (
            self.plan.recorded,
            self.plan.recorded.kept,
            self._runner,
        )
        if kept is None:
            return
        for draw, state in runner.streams.saved_states():
            kept.put_state(recorded.draws[draw].generator, draw, state)
        tainted = {storage for storage, memory in raw.items() if memory.is_tainted}
        for storage in self.plan.spared & results.keys() - tainted:
            real = made.get(storage, runner.memory.find(storage))
            constant = recorded.constants.get(storage)
            is_read_anew = constant is not None and constant.tensor is not None
            if isinstance(real, UntypedStorage) and not is_read_anew:
                kept.put(storage, Content(real, *results[storage], raw.get(storage)))

    def _find_freed(self, step: Step) -> list[int]:
        return [s for s in step.frees if s not in self.plan.spared]

    def _provide(self) -> None:
        """Bring in what is there before the first step."""
        recorded, runner = self.plan.recorded, self._runner
        kept = recorded.kept
        if kept is not None:
            for storage in self.plan.held:
                runner.memory.add(storage, kept.take(storage))
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
            runner.keep(call, inputs, outputs, step.frees, self.plan.spared)

    def _make_scratch(self, call: Call) -> Iterator[list[Tensor]]:
        """Yield arguments for a call of which only the draw matters."""
        device, sizes = self._runner.device, self.plan.recorded.nbytes_by_storage
        pieces = split_draw(call) if device.type == "cpu" else []
        if pieces:
            whole = torch.empty(max(pieces), dtype=call.drawn.dtype, device=device)
            yield from ([whole[:numel]] for numel in pieces)
            return
        storages = {s: allocate(sizes[s], device) for s in call.inputs}
        pairs = zip(call.inputs, call.signature.inputs, strict=True)
        scratch = [
            make_view(storages[storage], geometry) for storage, geometry in pairs
        ]
        if call.operator.draws_by_shape:
            for tensor in scratch:
                tensor.fill_(1)  # a probability, a mean, a deviation, a weight
        yield scratch
