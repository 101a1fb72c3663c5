"""Give the targets what the recorded cells would have computed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MaterializeError, ReplayError
from meta_magic.materializing.fills.protocol import Content, Put
from meta_magic.materializing.report import Filling
from meta_magic.materializing.targets import Target
from meta_magic.recording.ledger import Origin, find_origin
from meta_magic.replaying.engine import Replay, order_latest_first
from meta_magic.replaying.steps import Plan, Request, StepKind
from meta_magic.trace.program import Program

__all__ = ["ReplayFill"]

FUSED: Final = frozenset(
    {"torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"}
    | {"torch.nn.functional.scaled_dot_product_attention"}
    | {"torch.nn.functional.multi_head_attention_forward"}
)
"""Functions for which devices have a kernel that rounds in another order."""


class Located:
    """The targets that one recording makes.

    Attributes:
        origin: The recording.
        target_by_storage: The targets, by the number of their storage there.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.target_by_storage: dict[int, Target] = {}


def locate(targets: Sequence[Target], program: Program | None) -> list[Located]:
    """Return which recordings made the targets.

    Args:
        targets: What is looked for.
        program: The recording at whose end to look; None for the latest.

    Raises:
        MaterializeError: One was made by no recording, or changed outside of one.
    """
    groups: dict[int, Located] = {}
    for target in targets:
        found = find_origin(target.storage)
        if found is not None and program is not None:
            found = trace_back(*found, program)
        if found is None:
            where = (
                "a recording that has ended" if program is None else "the given trace"
            )
            raise MaterializeError(
                f"cannot replay {target.name!r}: it was not built under {where}. "
                "Build the module under %%meta or mm.record() and materialize it after "
                "that, or choose init='reset', init='empty' or a checkpoint"
            )
        origin, number = found
        if program is None and any(origin.is_stale(t, number) for t in target.tensors):
            raise MaterializeError(
                f"cannot replay {target.name!r}: it was changed in place outside of "
                "any recording. Do that under %%meta or mm.record(), too, or choose "
                "init='reset', init='empty' or a checkpoint"
            )
        group = groups.setdefault(id(origin.program), Located(origin))
        group.target_by_storage[number] = target
    return list(groups.values())


def trace_back(
    origin: Origin, number: int, program: Program
) -> tuple[Origin, int] | None:
    """Return where a storage is to be found as it was at the end of ``program``.

    Args:
        origin: The latest recording that met it.
        number: Number of the storage there.
        program: A recording, which may be an earlier or a later one.
    """
    if any(earlier is origin.program for earlier in order_latest_first(program)):
        return origin, number
    current = origin.program
    while current is not program:
        passed = next((i for i in current.imports if i.storage == number), None)
        if passed is None:
            return None
        current, number = passed.program, passed.origin
    return Origin(program=program), number


class ReplayFill:
    """Gives the targets what the recorded cells would have computed.

    Args:
        targets: What is to be made.
        device: Where.
        module: Torch's generator is to go on as after the construction of this one;
            None if it is to be left alone.
        program: The recording at whose end to look; None for the latest.

    Attributes:
        n_operators: Recorded calls that run again.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        device: torch.device,
        module: nn.Module | None,
        program: Program | None = None,
    ) -> None:
        self._device = device
        self._located = locate(targets, program)
        built = set() if module is None else {id(m) for m in module.modules()}
        self._replays = [
            self._plan(located, built, device) for located in self._located
        ]
        self.n_operators = sum(len(replay.steps) for replay in self._replays)
        self.n_work = sum(replay.n_work for replay in self._replays)
        self._uninitialized = {
            located.target_by_storage[number]
            for located, replay in zip(self._located, self._replays, strict=True)
            for number in replay.uninitialized
        }

    def filled_by(self, target: Target, _: Tensor) -> Filling:
        """Say whether anything recorded fills the target."""
        return "uninitialized" if target in self._uninitialized else "replay"

    def peak_nbytes(self) -> int:
        """Return the most bytes that will be held at any moment."""
        done = peak = 0
        for located, replay in zip(self._located, self._replays, strict=True):
            kept = {n: t.nbytes for n, t in located.target_by_storage.items()}
            peak = max(peak, done + replay.peak_nbytes(kept))
            done += sum(kept.values())
        return peak

    def run(self, put: Put) -> Iterator[int]:
        """Replay all recordings."""
        for located, replay in zip(self._located, self._replays, strict=True):
            targets = located.target_by_storage

            def finished(
                number: int, content: Content, at: Mapping[int, Target] = targets
            ) -> None:
                put(at[number], cast(at[number], content, self._device))

            try:
                yield from replay.run(finished)
            except ReplayError as error:
                target = None if error.storage is None else targets.get(error.storage)
                raise describe(error, target) from error

    def find_doubts(self) -> list[str]:
        """Say what may differ from what the same cells would build on the device."""
        doubts = dict.fromkeys(
            (text, line)
            for located, replay in zip(self._located, self._replays, strict=True)
            for text, line in (
                *located.origin.program.doubts,
                *find_fused(replay.plan),
            )
        )
        return [
            *(
                f"{text if line is None else f'line {line}: {text}'}; on "
                f"{self._device} the cell itself may give other values"
                for text, line in doubts
            ),
            *self._find_repetitions(),
        ]

    def _find_repetitions(self) -> Iterator[str]:
        """Say if two recordings drew the same numbers: meta moves no generator."""
        starts: list[bytes] = []
        for located, replay in zip(self._located, self._replays, strict=True):
            states = located.origin.program.randomness.states
            draws = (step.draw for step in replay.plan.steps)
            first = next((d for d in draws if d and d.generator == 0), None)
            if first is not None and first.source & 1:
                starts.append(states[first.source // 2])
        if len(set(starts)) < len(starts):
            yield (
                "two recordings began at the same state of torch's generator, which "
                "meta does not move, and so drew the same numbers: seed each"
            )

    def move_generator(self) -> str | None:
        """Let torch's default generator go on from where the CPU would have left it.

        Returns:
            What the user should know if it could not.
        """
        for located, replay in zip(self._located, self._replays, strict=True):
            state, origin = replay.end_state(), located.origin
            last_draw = replay.plan.last_draw
            if state is None or origin.generator_state is None:
                continue
            if last_draw <= origin.last_draw:
                continue  # another submodule, materialized before, drew further
            now = torch.get_rng_state()
            if now.numpy().tobytes() != origin.generator_state:
                return (
                    "torch's generator no longer stands where the cell left it (it was "
                    "used, seeded, or moved on for another cell), and was left alone: "
                    "what is drawn next is not what construction on the CPU would draw"
                )
            torch.set_rng_state(state)
            origin.generator_state = state.numpy().tobytes()
            origin.last_draw = last_draw
        return None

    def _plan(
        self, located: Located, modules: set[int], device: torch.device
    ) -> Replay:
        numbers = [n for n, m in located.origin.modules.items() if id(m) in modules]
        request = Request(
            storages=frozenset(located.target_by_storage), modules=frozenset(numbers)
        )
        program = located.origin.program
        try:
            return Replay(program, request, device)
        except ReplayError as error:
            target = find_culprit(program, located.target_by_storage, device)
            raise describe(error, target) from error


def find_fused(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Yield the calls, with their line, for which devices have one kernel."""
    columns = plan.columns
    for step in plan.steps:
        name = columns.function(step.call.number) or ""
        if step.kind == StepKind.RUN and name in FUSED:
            text = f"{name} is many operators on meta, and one kernel elsewhere"
            yield text, columns.line(step.call.number)


def find_culprit(
    program: Program, target_by_storage: Mapping[int, Target], device: torch.device
) -> Target | None:
    """Return the first target that cannot be replayed even alone."""
    for number, target in target_by_storage.items():
        try:
            Replay(program, Request(storages=frozenset({number})), device)
        except ReplayError:
            return target
    return None


def describe(error: ReplayError, target: Target | None) -> MaterializeError:
    """Return what a user is told when a replay is not possible."""
    what = "the module" if target is None else repr(target.name)
    return MaterializeError(
        f"cannot replay {what}: {error}. Or choose init='reset', init='empty' or a "
        "checkpoint"
    )


def cast(target: Target, content: Content, device: torch.device) -> Content:
    """Return a storage on the device and with the dtype that the target is to have."""
    if isinstance(content, Tensor):
        return content
    if target.dtype is None and content.device == device:
        return content
    dtype = torch.uint8 if target.dtype is None else target.held[0].tensor.dtype
    whole = torch.empty(0, dtype=dtype, device=content.device)
    whole.set_(content)  # type: ignore[call-overload]  # its stub wants a size, too
    return whole.to(device=device, dtype=target.dtype).untyped_storage()
