"""Plans and replays of some tensors of a recording."""

import torch

from meta_magic import record
from meta_magic.recording.identities.origins import find_origin
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.plan import plan_replay
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request

CPU = torch.device("cpu")


def storages_of(trace, *tensors):
    """Return the numbers of the storages of meta tensors, while these live."""
    numbers = []
    for tensor in tensors:
        origin, number = find_origin(tensor.untyped_storage())
        assert origin.program is trace.program
        numbers.append(number)
    return numbers


def plan(trace, *tensors, **options):
    wanted = frozenset(storages_of(trace, *tensors))
    request = Request(storages=wanted, **options)
    return plan_replay(ProgramCalls(trace.program), request, CPU)


def ops(made):
    """Return the short names of the operators that a plan runs, with their kinds."""
    return [
        f"{step.call.operator.name.split('.')[1]}{'' if not step.kind else '!'}"
        for step in made.steps
    ]


def replay(trace, *tensors):
    """Return the real tensors for some of a recording's."""
    numbers = storages_of(trace, *tensors)
    contents = {}
    for _ in Execution(trace.program, Request(storages=frozenset(numbers)), CPU).run(
        contents.__setitem__
    ):
        pass
    return [
        torch.empty(0, dtype=t.dtype).set_(
            contents[n], t.storage_offset(), t.shape, t.stride()
        )
        for t, n in zip(tensors, numbers, strict=True)
    ]


def both(build, *, seed=0):
    """Return what ``build`` returns for real, and its replay."""
    torch.manual_seed(seed)
    real = build()
    torch.manual_seed(seed)
    with record() as trace:
        made = build()
    return real, replay(trace, made)[0]
