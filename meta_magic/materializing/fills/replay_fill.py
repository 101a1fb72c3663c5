"""``init="replay"``: the values that the recorded cells would have computed.

``plan_shares`` plans one replay for each recording that made some of the tensors;
``ReplayFill`` runs them, and then gives torch's generator the state that construction
on the CPU would give it, so that the user's next draw is the CPU's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, repeat
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.errors import MaterializeError, ReplayError
from meta_magic.materializing.fills.protocol import Content, Put, Task
from meta_magic.materializing.located import (
    Located,
    Read,
    find_redrawn,
    locate,
    locate_constructed,
    make_reader,
)
from meta_magic.materializing.report import (
    DRAWN_OTHERWISE,
    UNINITIALIZED,
    Forecast,
    forecast_replays,
    format_names,
)
from meta_magic.materializing.targets import Target, group_targets
from meta_magic.recording.identities.generator_carryover import (
    CarriedGenerator,
    find_carried_end,
    forget_carried,
    keep_carried,
    kept,
    list_own,
    mark_state,
)
from meta_magic.recording.identities.origins import Origin
from meta_magic.replaying.execution import Execution, ProgramReplay
from meta_magic.replaying.plan import find_before, find_skipped
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Plan, Request, StepKind
from meta_magic.replaying.uses import USES, find_phases
from meta_magic.replaying.value_budget import estimate_seconds, measure_rates
from meta_magic.torch_private.tensor_internals import has_version
from meta_magic.trace.program import EarlierEnd, Program
from meta_magic.trace.signature import Phase

NAMES: Final[Mapping[Phase, str]] = {
    "forward": "a call of a module",
    "backward": "a backward pass",
    "optimizer": "an optimizer's step",
}

UNKNOWN_START: Final = (
    "it is not known what {!r} was when it was constructed: what wrote it rests on "
    "what {} computed. Choose state='current', or give the trace= of a recording that "
    "ended before that"
)
LATE: Final = (
    "{}: neither parameter nor buffer, and made by a use of the module; it has its "
    "value after the cell"
)
DEFAULT_UNMOVED: Final = (
    "torch's generator was used, seeded, or moved on for another cell since this cell "
    "ended, and stays as it is: what is drawn next is not what construction on the CPU "
    "would draw"
)
DEFAULT_BEFORE: Final = (
    "torch's generator stays before {}, as how many numbers that draws depends on "
    "values: what is drawn next is not what the CPU would draw"
)
OWN_UNMOVED: Final = (
    "a generator of your code stays as it is, because only a part of what a cell drew "
    "from it was made: what it draws next is not what the CPU would draw"
)
UNCOUNTED: Final = (
    "{!r} was made in inference mode, where torch does not count writes: a write "
    "outside of recordings since then is not in it"
)

# Recorded as the CPU runs them, or with a caveat of their own.
RECURRENT: Final = frozenset(
    {"torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"}
)

# Functions for which devices have a kernel that rounds in another order.
FUSED: Final = RECURRENT | {
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
}


class Share(NamedTuple):
    """What one recording contributes."""

    located: Located
    replay: Execution
    moves_generator: bool


class ReplayFill:
    """Gives the targets the values that the recorded cells would have computed.

    Random numbers that those cells drew for real are drawn again. Then torch's
    generator has the state that it has after the construction of the module.

    Args:
        rest: The targets to replay, where another fill fills the others: real tensors
            and torch's generator then stay as they are. None to replay all.
    """

    gives: ClassVar = (
        "what the recorded cell would have computed, to the bit on the CPU; also a "
        "submodule alone gets what it has within the whole"
    )

    def __init__(self, task: Task, *, rest: Sequence[Target] | None = None) -> None:
        self._moves_generator = rest is None and task.device.type == "cpu"
        if rest is None:
            rest = [*task.targets, *group_targets(find_redrawn(task.held), None)]
        self.targets = rest
        self._device = task.device
        uncounted = [t.name for t in rest if not all(map(has_version, t.tensors))]
        self._uncounted = [*map(UNCOUNTED.format, uncounted)]
        walked = task.modules if self._moves_generator else ()
        built = {id(module) for _, module in walked}
        self._shares, self._late = plan_shares(
            task, self.targets, built, moves_generator=self._moves_generator
        )
        self._draws: list[Execution] = []
        if self._moves_generator and task.state == "current":
            parts = chain.from_iterable(share.replay.parts for share in self._shares)
            self._draws = [*plan_draws([*parts], task.device)]
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
        """The work in nanoseconds, as far as it can be estimated."""
        return sum(map(sum, self._costs))

    @cached_property
    def _costs(self) -> list[list[int]]:
        device = self._device
        rates = measure_rates(device)
        return [
            [int(1e9 * estimate_seconds(s, rates, device)) for s in share.replay.steps]
            for share in self._shares
        ]

    def forecast(self) -> Forecast:
        """Return what will be replayed, why, and about how long it takes."""
        replays = [(s.replay, s.located.target_by_storage) for s in self._shares]
        return forecast_replays(replays, self._device)

    def peak_nbytes(self) -> int:
        """Return the most bytes that are held at any moment."""
        done = peak = 0
        for share in self._shares:
            target_by_storage = share.located.target_by_storage
            kept = {n: target.nbytes for n, target in target_by_storage.items()}
            peak = max(peak, done + share.replay.peak_nbytes(kept))
            done += sum(kept.values())
        return peak

    def run(self, put: Put) -> Iterator[int]:
        """Replay all recordings; yield the work of each step, 0 if nobody asked."""
        is_asked = "_costs" in self.__dict__
        costs = chain.from_iterable(self._costs) if is_asked else repeat(0)
        for share in self._shares:
            targets = share.located.target_by_storage
            try:
                for _ in share.replay.run(partial(put_cast, targets, put)):
                    yield next(costs)
            except ReplayError as error:
                target = None if error.storage is None else targets.get(error.storage)
                raise describe_error(error, target) from error
        for draws in self._draws:
            for _ in draws.run(lambda *_: None):
                pass

    def finish(self) -> Sequence[str]:
        """Move the generators; return how the values may differ from the cell's."""
        notes = self._move_generators() if self._moves_generator else ()
        plans = [share.replay.plan for share in self._shares]
        caveats = find_caveats(plans, self._device)
        return [*caveats, *self._uncounted, *self._late, *notes]

    def filled_by(self, target: Target, _tensor: Tensor, /) -> str:
        """Return whether recorded calls fill the target."""
        return self._filled_by.get(target, "replay")

    def _move_generators(self) -> Iterator[str]:
        """Move generators to their state after the cell; yield notes on others."""
        shares = [share for share in self._shares if share.moves_generator]
        replays = chain((share.replay for share in shares), self._draws)
        parts = [part for replay in replays for part in replay.parts]
        if False in [*map(partial(advance_own, parts), list_own())]:
            yield OWN_UNMOVED
        moved = {move_generator(s.located.origin, s.replay) for s in shares}
        moved |= {move_earlier(share.replay.parts[:-1]) for share in shares}
        moved |= {move_earlier(replay.parts) for replay in self._draws}
        waiting = find_waiting()  # for draws, perhaps of a recording after these
        is_drawn = any(part.plan.last_draw >= 0 for part in parts)
        is_another = waiting and all(part.program is not waiting for part in parts)
        if (False in moved or (is_drawn and is_another)) and True not in moved:
            yield DEFAULT_UNMOVED
        for replay in (s.replay for s in shares if s.located.until is None):
            is_end_known = replay.parts[-1].end_state() is not None
            skipped = find_skipped(replay.plan, is_end_known=is_end_known)
            if skipped is not None:
                yield DEFAULT_BEFORE.format(skipped)


def plan_shares(
    task: Task, targets: Sequence[Target], modules: set[int], *, moves_generator: bool
) -> tuple[list[Share], list[str]]:
    """Return the replays that make targets, and notes on those made by a use."""
    read = make_reader()
    late: set[Target] = set()
    while True:
        if task.state == "current":
            groups, at_end = locate(targets, task.program), list[Target]()
        else:
            groups, at_end = locate_constructed(targets, task.program, read, late)
        shares = []
        for located in groups.values():
            goes_on = moves_generator
            replay = plan_execution(located, modules, task, read, goes_on=goes_on)
            is_asked = task.state == "current" or located.until is not None
            shares.append(Share(located, replay, moves_generator and is_asked))
        used = find_used(share for share in shares if share.located.until is not None)
        if not used:
            names = format_names([target.name for target in at_end])
            return shares, [LATE.format(names)] if at_end else []
        late |= used


def plan_execution(
    located: Located, modules: set[int], task: Task, read: Read, *, goes_on: bool
) -> Execution:
    """Return the replay that makes the targets of a recording."""
    origin, program = located.origin, located.program
    known = origin.modules if origin.program is program else {}
    goes_on = goes_on and task.state == "current"
    request = Request(
        storages=frozenset(located.target_by_storage),
        modules=frozenset(n for n, m in known.items() if id(m()) in modules),
        continues_draws=goes_on,
        waiting=find_waiting() if goes_on else None,
        until=located.until,
        may_reorder=True,
    )
    try:
        return Execution(program, request, task.device, read)
    except ReplayError as error:
        target = find_unreplayable(located, task.device, read)
        raise describe_error(error, target) from error


def find_used(shares: Iterable[Share]) -> set[Target]:
    """Return the targets that depend on a use of a module, though made before it."""
    used = set()
    for share in shares:
        phases = share.replay.follow(find_phases)[id(share.replay.parts[-1])]
        for number, target in share.located.target_by_storage.items():
            kinds = {item.kind for item in target.held}
            if phases.get(number) and kinds & {"parameter", "buffer"}:
                uses = [NAMES[use] for use in USES if use in phases[number]]
                text = UNKNOWN_START.format(target.name, " and ".join(uses))
                raise MaterializeError(text, target)
            if phases.get(number):
                used.add(target)
    return used


def find_unreplayable(part: Located, device: torch.device, read: Read) -> Target | None:
    """Return the first target that cannot be replayed even alone."""
    for number, target in part.target_by_storage.items():
        request = Request(storages=frozenset({number}), until=part.until)
        try:
            Execution(part.program, request, device, read)
        except ReplayError:
            return target
    return None


def describe_error(error: ReplayError, target: Target | None) -> MaterializeError:
    """Return the error for a replay that is not possible."""
    what = "all of it" if target is None else repr(target.name)
    return MaterializeError(
        f"cannot replay {what}: {error}. Or choose init='reset', init='empty' or a "
        "checkpoint",
        target,
    )


def plan_draws(
    parts: Sequence[ProgramReplay], device: torch.device
) -> Iterator[Execution]:
    """Yield replays of what else recordings drew, for generators to go on after it.

    ``torch.rand(3)`` in one cell and a module of zeros in another: nothing of the first
    cell is made, and yet torch's generator is past its draw on the CPU.
    """
    done = {id(part.program) for part in parts}
    planned = {(id(p.program), end) for p in parts for end in p.plan.sources}
    waiting = find_waiting()
    if waiting is not None and id(waiting) not in done:
        yield Execution(waiting, Request(continues_draws=True), device)
    for program, source in [(c.end.program, c.end.source) for c in list_own()]:
        recorded = ProgramCalls(program)
        before = [*find_before(recorded, source)]
        is_blind = all(
            draw.source and recorded.call(draw.call).operator.draws_blindly
            for draw in before
        )
        if is_blind and (id(program), source) not in planned:
            request = Request(sources=frozenset({source}))
            yield Execution(program, request, device)


def advance_own(parts: Sequence[ProgramReplay], carried: CarriedGenerator) -> bool:
    """Set a user's generator past what recordings drew from it; return if it is."""
    program, source = carried.end.program, carried.end.source
    states = (p.streams.state_at(source) for p in parts if p.program is program)
    state = next((state for state in states if state is not None), None)
    if state is None or carried.own is None:
        return False
    carried.own.set_state(state)
    kept.remove(carried)
    return True


def find_waiting() -> Program | None:
    """Return the recording whose draws torch's generator waits for, if any."""
    left = find_carried_end(torch.get_rng_state().numpy().tobytes())
    return None if left is None else left.program


def move_generator(origin: Origin, replay: Execution) -> bool | None:
    """Move torch's default generator to where a replay ends.

    Return False if it stays as it is, because its state is not the one at the end of
    the recording, or that one is not known; None if there is nothing to do.
    """
    state, last_draw = replay.parts[-1].end_state(), replay.plan.last_draw
    if state is not None and origin.program is not replay.plan.recorded.program:
        return False
    if state is None or origin.generator_state is None:
        return None
    if last_draw <= origin.last_draw:
        return None  # another submodule, materialized before, drew further
    if torch.get_rng_state().numpy().tobytes() != origin.generator_state:
        return False
    program = origin.program
    forget_carried(program)
    end = program.randomness.ends[0]
    if replay.plan.end != end:
        # The rest of the program is still to be drawn before anything else.
        state = mark_state(state)
        earlier = EarlierEnd(program=program, source=end)
        keep_carried(CarriedGenerator(state.numpy().tobytes(), earlier, own=None))
    torch.set_rng_state(state)
    origin.generator_state = state.numpy().tobytes()
    origin.last_draw = last_draw
    return True


def move_earlier(parts: Sequence[ProgramReplay]) -> bool | None:
    """Move torch's generator to the end of an earlier recording that is drawn."""
    waiting = find_waiting()
    for part in parts:
        program, state, plan = part.program, part.end_state(), part.plan
        if program is not waiting or plan.last_draw < 0:
            continue
        if state is None or plan.end != program.randomness.ends[0]:
            return False
        forget_carried(program)
        torch.set_rng_state(state)
        return True
    return None


def put_cast(targets: Mapping[int, Target], put: Put, key: int, real: Content) -> None:
    """Put the content of a storage on the device and with the dtype of its target."""
    target = targets[key]
    is_there = target.dtype is None and real.device == target.device
    if isinstance(real, Tensor) or is_there:
        put(target, real)
        return
    dtype = torch.uint8 if target.dtype is None else target.held[0].tensor.dtype
    whole = torch.empty(0, dtype=dtype, device=real.device)
    whole.set_(real)
    cast = whole.to(device=target.device, dtype=target.dtype)
    put(target, cast.untyped_storage())


def find_caveats(plans: Sequence[Plan], device: torch.device) -> list[str]:
    """Return why values on a device may differ from those of the cell."""
    caveats = dict.fromkeys(
        (text, line)
        for plan in plans
        for text, line in (*plan.recorded.program.caveats, *find_fused(plan))
    )
    return [
        f"{text if line is None else f'line {line}: {text}'}; on {device} the cell "
        "itself may give other values"
        for text, line in caveats
    ]


def find_fused(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Yield the calls, with their line, for which devices have one kernel."""
    recorded = plan.recorded
    for step in plan.steps:
        name = recorded.function(step.call.number) or ""
        is_known = recorded.program.as_device == "cpu" and name in RECURRENT
        if step.kind == StepKind.RUN and name in FUSED and not is_known:
            text = f"{name} is many operators on meta, and one kernel elsewhere"
            yield text, recorded.line(step.call.number)
