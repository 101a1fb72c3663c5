"""Values on demand: what tensors of a recording hold now, if that takes little."""

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MissingValueError, ReplayError, ValueLimitError
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.replay import build_tensor
from meta_magic.replaying.steps import Request, Step, StepKind
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.flops import count_flops
from meta_magic.trace.program import Program
from meta_magic.trace.provenance import Evaluation, ValueLimits
from meta_magic.trace.signature import Geometry
from meta_magic.trace.units import format_bytes, format_flops

__all__ = ["Evaluator"]

CPU: Final = torch.device("cpu")


class Evaluator:
    """Computes values for one recording as it goes on, and so reads each call once."""

    def __init__(self) -> None:
        self._recorded: ProgramCalls | None = None
        self._earlier: dict[int, ProgramCalls] = {}

    def evaluate(
        self,
        program: Program,
        wanted: Sequence[tuple[int, Geometry]],
        limits: ValueLimits,
        *,
        can_assume: bool = True,
    ) -> tuple[list[Tensor], Evaluation]:
        """Return the values that tensors would have on the CPU now.

        Where the program assumed a size, those that they would have with that.

        Args:
            program: All that was recorded so far.
            wanted: Storage and geometry of each tensor.
            limits: What it may take.
            can_assume: Whether they may rest on what was assumed.

        Returns:
            The tensors, and what they took, as of the call that comes next.

        Raises:
            MissingValueError: It would take more, or depends on what was not recorded.
        """
        storages = frozenset(storage for storage, _ in wanted)
        made: dict[int, UntypedStorage | Tensor] = {}
        try:
            request = Request(storages=storages, can_assume=can_assume)
            replay = self._plan(program, request)
            cost = weigh(replay, len(program.offsets) - 1)
            if cost.nbytes > limits.nbytes or cost.flops > limits.flops:
                raise ValueLimitError(explain_cost(cost, limits))
            with RealTorch():
                for _ in replay.run(made.__setitem__):
                    pass
                tensors = [build_tensor(g, made[storage]) for storage, g in wanted]
        except ReplayError as error:
            raise MissingValueError(str(error)) from error
        return tensors, cost

    def state_at(
        self, program: Program, source: int, limits: ValueLimits
    ) -> Tensor | None:
        """Return where a CPU generator would stand; None if it takes too much.

        Args:
            program: All that was recorded so far.
            source: The place, as the source of a draw.
            limits: What it may take.
        """
        try:
            replay = self._plan(program, Request(sources=frozenset({source})))
            cost = weigh(replay, 0)
            if cost.nbytes > limits.nbytes or cost.flops > limits.flops:
                return None
            with RealTorch():
                for _ in replay.run(lambda *_: None):
                    pass
        except ReplayError:
            return None
        return replay.state_at(source)

    def _plan(self, program: Program, request: Request) -> Execution:
        if self._recorded is None:
            self._recorded = ProgramCalls(program)
        else:
            self._recorded.read(program)
        known = self._earlier | {id(program): self._recorded}

        def read(other: Program) -> ProgramCalls:
            recorded = known.get(id(other))
            if recorded is None:
                recorded = self._earlier[id(other)] = ProgramCalls(other)
            return recorded

        replay = Execution(program, request, CPU, read)
        if not replay.plan.storages.isdisjoint(program.torn):
            raise MissingValueError(
                "a real tensor that it comes from was written unseen by torch, as "
                "numpy does it"
            )
        if replay.uninitialized:
            # Kernels that trust sizes and positions would write anywhere.
            raise MissingValueError(
                "nothing was written to it since torch.empty made it"
            )
        return replay


def weigh(replay: Execution, call: int) -> Evaluation:
    """Return what a replay takes."""
    steps = [step for step in replay.steps if step.kind != StepKind.ALLOCATE]
    return Evaluation(
        call=call,
        n_calls=len(steps),
        nbytes=replay.peak_nbytes({}),
        flops=sum(map(count_step, steps)),
    )


def count_step(step: Step) -> int:
    """Return the operations of a step; one for each element that it makes or writes."""
    signature = step.call.signature
    written = [signature.inputs[i] for i in signature.writes]
    n_elements = sum(prod(g.shape) for g in (*signature.outputs, *written))
    return count_flops(signature) or n_elements


def explain_cost(cost: Evaluation, limits: ValueLimits) -> str:
    """Return in words that a value takes too much."""
    return (
        f"to compute it would take {format_bytes(cost.nbytes)} and "
        f"{format_flops(cost.flops)} in {cost.n_calls:,} operator calls "
        f"(allowed are {format_bytes(limits.nbytes)} and {format_flops(limits.flops)}: "
        "see --value-nbytes, --value-flops and record(limits=))"
    )
