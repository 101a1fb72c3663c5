"""``init="replay"``: what the recorded cells would have computed."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import ClassVar, Final

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.materializing.doubts import find_doubts, find_uncounted
from meta_magic.materializing.fills.protocol import Content, Put, Task
from meta_magic.materializing.fills.shares import describe, find_waiting, plan_shares
from meta_magic.materializing.forecast import Forecast, forecast_replays
from meta_magic.materializing.located import find_redrawn
from meta_magic.materializing.report import DRAWN_OTHERWISE, UNINITIALIZED
from meta_magic.materializing.targets import Target, group_targets
from meta_magic.recording.identities.left_generators import (
    LeftGenerator,
    forget_left,
    keep_left,
    mark_state,
    move_own,
)
from meta_magic.recording.identities.origins import Origin
from meta_magic.replaying.execution import Execution, Finished
from meta_magic.replaying.generator_ends import find_skipped
from meta_magic.replaying.part import Part
from meta_magic.replaying.rates import estimate_seconds, measure_rates
from meta_magic.trace.program import EarlierEnd

__all__ = ["ReplayFill"]

DEFAULT_LEFT: Final = (
    "torch's generator no longer stands where the cell left it (it was used, seeded, "
    "or moved on for another cell), and was left alone: what is drawn next is not what "
    "construction on the CPU would draw"
)
DEFAULT_BEFORE: Final = (
    "torch's generator was left before {}, which nothing needs and which draws as many "
    "numbers as values say: what is drawn next is not what the CPU would draw"
)
OWN_LEFT: Final = (
    "a generator of the cell's own was left where it is, for not all that the cell "
    "drew from it was made: what it draws next is not what it would draw on the CPU"
)


class ReplayFill:
    """Gives the targets what the recorded cells would have computed.

    What those cells drew for real is drawn again, and torch's generator then goes on as
    after the construction of the module.

    Args:
        task: What is to be filled.
        rest: The targets that something else leaves over; None if all are replayed.
            For a rest, what is real stays, and so does torch's generator.
    """

    gives: ClassVar = (
        "what the recorded cell would have computed, to the bit on the CPU; also a "
        "submodule alone gets what it has within the whole"
    )

    def __init__(self, task: Task, *, rest: Sequence[Target] | None = None) -> None:
        self.targets = find_all_targets(task) if rest is None else rest
        self._device = task.device
        self._uncounted = [*find_uncounted(self.targets)]
        self._moves_generator = rest is None and task.device.type == "cpu"
        walked = task.modules if self._moves_generator else ()
        built = {id(module) for _, module in walked}
        self._shares, self._late = plan_shares(
            task, self.targets, built, moves_generator=self._moves_generator
        )
        self.n_operators = sum(len(share.replay.steps) for share in self._shares)
        self._filled_by = {
            share.located.target_by_storage[number]: filled_by
            for share in self._shares
            for filled_by, numbers in (
                (DRAWN_OTHERWISE, share.replay.drawn_elsewhere),
                (UNINITIALIZED, share.replay.uninitialized),
            )
            for number in numbers
        }

    @cached_property
    def n_work(self) -> int:
        """About how many nanoseconds it takes: the steps, as far as can be told."""
        return sum(map(sum, self._costs))

    @cached_property
    def _costs(self) -> list[list[int]]:
        """About how many nanoseconds each step of each share takes."""
        device = self._device
        rates = measure_rates(device)
        return [
            [int(1e9 * estimate_seconds(s, rates, device)) for s in share.replay.steps]
            for share in self._shares
        ]

    def forecast(self) -> Forecast:
        """Return what is replayed, for what, and about how long that takes."""
        replays = [(s.replay, s.located.target_by_storage) for s in self._shares]
        return forecast_replays(replays, self._device)

    def peak_nbytes(self) -> int:
        """Return the most bytes that will be held at any moment."""
        done = peak = 0
        for share in self._shares:
            target_by_storage = share.located.target_by_storage
            kept = {n: target.nbytes for n, target in target_by_storage.items()}
            peak = max(peak, done + share.replay.peak_nbytes(kept))
            done += sum(kept.values())
        return peak

    def run(self, put: Put) -> Iterator[int]:
        """Replay all recordings; what a step yields is nothing if nobody asked."""
        is_asked = "_costs" in self.__dict__
        costs = chain.from_iterable(self._costs) if is_asked else repeat(0)
        for share in self._shares:
            targets = share.located.target_by_storage
            try:
                for _ in share.replay.run(self._passing_on(targets, put)):
                    yield next(costs)
            except ReplayError as error:
                target = None if error.storage is None else targets.get(error.storage)
                raise describe(error, target) from error

    def finish(self) -> Sequence[str]:
        """Let torch's generator go on; say what may differ from the cell itself."""
        notes = self._move_generators() if self._moves_generator else ()
        plans = [share.replay.plan for share in self._shares]
        doubts = find_doubts(plans, self._device)
        return [*doubts, *self._uncounted, *self._late, *notes]

    def filled_by(self, target: Target, _tensor: Tensor, /) -> str:
        """Say whether anything recorded fills the target."""
        return self._filled_by.get(target, "replay")

    def _passing_on(self, targets: Mapping[int, Target], put: Put) -> Finished:
        """Return what takes the content of storages out of a replay."""

        def take(number: int, content: Content) -> None:
            target = targets[number]
            put(target, cast(target, content))

        return take

    def _move_generators(self) -> Iterator[str]:
        """Let generators go on from where the CPU would have left them.

        Yields:
            What the user should know where they could not.
        """
        shares = [share for share in self._shares if share.moves_generator]
        parts = [part for share in shares for part in share.replay.parts]
        if False in {move_own(part.program, part.state_at) for part in parts}:
            yield OWN_LEFT
        moved = {move_generator(s.located.origin, s.replay) for s in shares}
        moved |= {move_earlier(share.replay) for share in shares}
        is_behind = False in moved or is_left_by_another(parts)
        if is_behind and True not in moved:
            yield DEFAULT_LEFT
        for replay in (s.replay for s in shares if s.located.until is None):
            is_end_known = replay.end_state() is not None
            skipped = find_skipped(replay.plan, is_end_known=is_end_known)
            if skipped is not None:
                yield DEFAULT_BEFORE.format(skipped)


def find_all_targets(task: Task) -> list[Target]:
    """Return the targets, and the real storages that are to be drawn again."""
    return [*task.targets, *group_targets(find_redrawn(task.held), None)]


def move_generator(origin: Origin, replay: Execution) -> bool | None:
    """Let torch's default generator go on from where a replay would have left it.

    Returns:
        False if it no longer stands where the recording left it, or that is not known,
        and so stays; None if there is nothing to do.
    """
    state, last_draw = replay.end_state(), replay.plan.last_draw
    if state is not None and origin.program is not replay.plan.recorded.program:
        return False
    if state is None or origin.generator_state is None:
        return None
    if last_draw <= origin.last_draw:
        return None  # another submodule, materialized before, drew further
    if torch.get_rng_state().numpy().tobytes() != origin.generator_state:
        return False
    program = origin.program
    forget_left(program)
    end = program.randomness.ends[0]
    if replay.plan.end != end:
        # What follows in the program is still to be drawn before anything else.
        state = mark_state(state)
        earlier = EarlierEnd(program=program, source=end)
        keep_left(LeftGenerator(state.numpy().tobytes(), earlier, own=None))
    torch.set_rng_state(state)
    origin.generator_state = state.numpy().tobytes()
    origin.last_draw = last_draw
    return True


def move_earlier(replay: Execution) -> bool | None:
    """Let it go on where an earlier recording left it, of which all draws are made.

    Returns:
        False if some are still to be made, and so it stays; None if there is nothing
        to do.
    """
    waiting = find_waiting()
    for part in replay.parts[:-1]:
        program, state, plan = part.program, part.end_state(), part.plan
        if program is not waiting or plan.last_draw < 0:
            continue
        if state is None or plan.end != program.randomness.ends[0]:
            return False
        forget_left(program)
        torch.set_rng_state(state)
        return True
    return None


def is_left_by_another(parts: Sequence[Part]) -> bool:
    """Whether torch's generator waits for what a recording drew after these."""
    waiting = find_waiting()
    is_drawn = any(part.plan.last_draw >= 0 for part in parts)
    is_another = all(part.program is not waiting for part in parts)
    return is_drawn and waiting is not None and is_another


def cast(target: Target, content: Content) -> Content:
    """Return a storage on the device and with the dtype that the target is to have."""
    device = target.device
    if isinstance(content, Tensor):
        return content
    if target.dtype is None and content.device == device:
        return content
    dtype = torch.uint8 if target.dtype is None else target.held[0].tensor.dtype
    whole = torch.empty(0, dtype=dtype, device=content.device)
    whole.set_(content)
    return whole.to(device=device, dtype=target.dtype).untyped_storage()
