"""Operators that write, or choose, where values say, and read nothing of the rest.

What they leave of memory without content is known while they run, and not before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.replaying.contents import follow, reads_raw
from meta_magic.replaying.program_calls import Call
from meta_magic.replaying.raw_memory import RawMemory
from meta_magic.replaying.steps import Plan, Step, StepKind

__all__ = ["RawFollower", "has_partial_writes"]

WHERE: Final = "aten.where.self"

Given = Mapping[str, Any]
Mark = Callable[[Tensor, Given], object]


def mark_along(which: Tensor, given: Given) -> None:
    """Mark what an operator writes that takes positions along one dimension."""
    which.index_fill_(given["dim"], given["index"], value=True)


def mark_at(which: Tensor, given: Given) -> None:
    """Mark what one writes that takes positions or masks for the first dimensions."""
    torch.ops.aten.index_put_(which, given["indices"], torch.tensor(data=True))


def mark_under(which: Tensor, given: Given) -> None:
    """Mark what one writes that takes a mask."""
    which.masked_fill_(given["mask"], value=True)


def mark_scattered(which: Tensor, given: Given) -> None:
    """Mark what one writes that takes a position for each element."""
    which.scatter_(given["dim"], given["index"], value=True)


MARK_BY_NAMES: Final[Mapping[Mark, str]] = {
    mark_along: "index_copy_.default index_fill_.int_Scalar index_fill_.int_Tensor",
    mark_at: "index_put_.default _index_put_impl_.default",
    mark_under: "masked_fill_.Scalar masked_fill_.Tensor masked_scatter_.default",
    mark_scattered: "scatter_.src scatter_.value",
}
MARKS: Final = {
    f"aten.{name}": mark
    for mark, names in MARK_BY_NAMES.items()
    for name in names.split()
}


def has_partial_writes(plan: Plan) -> bool:
    """Whether a plan writes or chooses something where values say."""
    names = {step.call.operator.name for step in plan.steps}
    return WHERE in names or not names.isdisjoint(MARKS)


class RawFollower:
    """Follows, step by step as a plan runs, what holds what lay in memory before.

    Args:
        plan: What is done.
        raw: The storages that do so before the first step.
    """

    def __init__(self, plan: Plan, raw: dict[int, RawMemory]) -> None:
        self._plan = plan
        self.raw = raw

    def check(
        self, step: Step, read_inputs: Callable[[Call], Sequence[Tensor]]
    ) -> None:
        """Note what a step, the next one, makes of memory without content.

        Args:
            step: The step.
            read_inputs: Returns what a call is given.

        Raises:
            ReplayError: It reads what nothing was written to.
        """
        call, raw, plan = step.call, self.raw, self._plan
        if step.kind == StepKind.DRAW:
            return
        mark = find_mark(call, raw)
        if call.operator.name == WHERE and call.inputs[0] not in raw:
            self._choose(call, read_inputs(call)[0])
            return
        if step.kind == StepKind.RUN and reads_raw(
            call, raw, but_first=mark is not None
        ):
            raise ReplayError(
                "nothing was written to some of what it comes from, which "
                f"{plan.recorded.describe(call)} reads"
            )
        if step.kind == StepKind.ALLOCATE or mark is None:
            follow(call, raw, plan, is_made=step.kind == StepKind.ALLOCATE)
            return
        geometry = call.signature.inputs[0]
        given = call.usage.arguments.fill(read_inputs(call), torch.device("cpu"))
        which = torch.zeros(geometry.shape, dtype=torch.bool, device="cpu")
        mark(which, given)
        raw[call.inputs[0]].write_some(geometry, which.numpy())

    def _choose(self, call: Call, condition: Tensor) -> None:
        """Note what a call takes of two tensors."""
        raw, (storage,), (made,) = self.raw, call.outputs, call.signature.outputs
        whole = RawMemory(0, is_written=True)
        pairs = zip(call.inputs, call.signature.inputs, strict=True)
        _, chosen, other = [raw.get(s, whole).find_written(g) for s, g in pairs]
        which = torch.where(
            condition, torch.from_numpy(chosen), torch.from_numpy(other)
        )
        if not which.all():
            raw[storage] = RawMemory(self._plan.recorded.nbytes_by_storage[storage])
            raw[storage].write_some(made, which.numpy())


def find_mark(call: Call, raw: Mapping[int, RawMemory]) -> Mark | None:
    """Return what marks that which a call writes of raw memory, where values say."""
    adds = dict(call.signature.arguments).get("accumulate")
    is_met = call.operator.name in MARKS and call.inputs[0] in raw
    return MARKS[call.operator.name] if is_met and not adds else None
