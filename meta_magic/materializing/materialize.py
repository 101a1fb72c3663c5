"""``materialize()``: make a module real in place, and say what it holds now."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.inits import INITS, Init, choose_fill, list_inits
from meta_magic.materializing.fills.protocol import STATES, State, Task
from meta_magic.materializing.preparation import Preparation, Progress
from meta_magic.materializing.report import MaterializeReport, format_names
from meta_magic.materializing.selection import choose_companions
from meta_magic.materializing.targets import (
    Held,
    Target,
    find_modules,
    find_tensors,
    group_targets,
)
from meta_magic.materializing.variables import Variables, is_recorded
from meta_magic.recording.identities.origins import find_place
from meta_magic.replaying.devices import list_devices, read_device
from meta_magic.torch_private.modes import functorch_interpreter
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.program import Program
from meta_magic.trace.trace import Trace

__all__ = ["INITS", "Init", "Preparation", "materialize", "prepare"]

running = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """What :func:`materialize` was called with; its docstring explains each."""

    root: object
    device: str | torch.device | None
    init: Init
    dtype: torch.dtype | None
    trace: Trace | None
    state: State


@list_inits
def materialize(
    module: object,
    device: str | torch.device | None = None,
    *,
    init: Init = "replay",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    state: State = "current",
    progress: Progress | None = None,
) -> MaterializeReport:
    """Make the tensors of a module real, in place, as ``Module.to_empty`` should.

    Parameters, buffers and tensor attributes on meta become real, and stay the same
    objects: ties, optimizers, hooks, ``requires_grad``, strides and parametrizations
    are kept. Tensors that are real already are not touched. What is used with them
    becomes real with them: the state of optimizers, gradients, what hooks hold.

    Args:
        module: A module or a submodule, some or all of which is on meta; or a tensor,
            or what holds some: a list, a dictionary, a scheduler, a pipeline.
        device: ``"cpu"``, or a CUDA device. By default each tensor goes to the device
            that the cell named for it, where there is such a device, else to the CPU.
        init: What the tensors get:

            INITS
        dtype: What floating-point and complex tensors are cast to.
        trace: The recording to replay, as it was at its end; by default the latest one
            that each tensor was in.
        state: What a replay gives: ``"current"``, all that was done to a tensor, or
            ``"constructed"``, all before the first call of a module that has it, and
            the first backward pass and optimizer's step that came upon it.
        progress: Called with a fraction from 0 to 1. What it raises cancels.

    Returns:
        What filled each tensor, and which are uninitialized.

    Raises:
        MaterializeError: It cannot be done as asked; all is as it was.
    """
    return run_alone(Arguments(module, device, init, dtype, trace, state), progress)


def prepare(
    module: object,
    device: str | torch.device | None = None,
    *,
    init: Init = "replay",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    state: State = "current",
) -> Preparation:
    """Find out what :func:`materialize` would do; the same arguments and errors."""
    given = Arguments(module, device, init, dtype, trace, state)
    return plan(given)


def run_alone(given: Arguments, progress: Progress | None) -> MaterializeReport:
    """Do what :func:`materialize` was called for, if nothing else does so right now."""
    if not running.acquire(blocking=False):
        raise MaterializeError(
            "another module is being materialized: wait until that is done"
        )
    try:
        with RealTorch():
            return plan(given).carry_out(progress)
    finally:
        running.release()


def plan(given: Arguments) -> Preparation:
    """Return how to do what is asked for.

    Raises:
        MaterializeError: It cannot be done.
    """
    check_dtype(given.dtype)
    check_state(given.state, given.init)
    check_surroundings(given.root)
    named = "cpu" if given.device is None else given.device
    device = read_device(named, MaterializeError)
    task = Task(
        root=given.root,
        device=device,
        held=find_held(given.root),
        targets=(),
        program=read_program(given.trace),
        state=given.state,
        modules=[*find_modules(given.root)],
    )
    own = {id(place.tensor) for place in task.held}

    def prepare_task(task: Task) -> Preparation:
        targets = group_targets([h for h in task.held if h.tensor.is_meta], given.dtype)
        for target in targets:
            target.device = device
        notes = [*spread(targets)] if given.device is None else ()
        task = replace(task, targets=targets, notes=[*task.notes, *notes])
        return Preparation(task=task, fill=choose_fill(given.init, task, own))

    is_as_it_is = given.init == INITS[0] and given.state == STATES[0]
    is_cast = given.dtype is not None
    return choose_companions(
        task, prepare_task, is_trained=is_as_it_is, is_cast=is_cast
    )


def find_held(root: object) -> list[Held]:
    """Return the tensors that are asked for.

    Raises:
        MaterializeError: There are none.
    """
    held = [*find_tensors(root)]
    if isinstance(root, Variables):
        return [place for place in held if is_recorded(place.tensor)]
    if not held and not isinstance(root, nn.Module):
        raise MaterializeError(
            "wanted a module, a tensor or an object that holds some, not a "
            f"{type(root).__name__}"
        )
    return held


def spread(targets: Sequence[Target]) -> Iterator[str]:
    """Put each target on the device that the cell named for it, if that is there.

    Yields:
        What lies elsewhere than it was planned, in words.
    """
    there, missing = list_devices(), defaultdict(list)
    for target in targets:
        place = find_place(target.storage)
        if place is not None and str(place) in there:
            target.device = place
        elif place is not None:
            missing[place].append(target.name)
    for place, names in missing.items():
        yield (
            f"there is no {place} here: what was planned on it is on the CPU, "
            f"{format_names(names)}"
        )


def read_program(trace: object) -> Program | None:
    """Return the program of a trace.

    Raises:
        MaterializeError: It is none.
    """
    if trace is None:
        return None
    if not isinstance(trace, Trace):
        raise MaterializeError(
            f"trace= takes the Trace of a recording, not a {type(trace).__name__}"
        )
    return trace.program


def check_surroundings(root: object) -> None:
    """Refuse what tensors cannot be exchanged in.

    Raises:
        MaterializeError: A module is compiled, or a transform is being taken.
    """
    for name, part in () if isinstance(root, Variables) else find_modules(root):
        if isinstance(part, torch.jit.ScriptModule):
            raise MaterializeError(
                f"{name or 'the module'} is a scripted module, which holds its tensors "
                "where Python does not see them: materialize the module, then script it"
            )
    if functorch_interpreter() is not None:
        raise MaterializeError(
            "cannot materialize inside of torch.func's transforms (grad, vmap): do it "
            "before"
        )


def check_state(state: object, init: Init) -> None:
    """Refuse what is no state, and one that says nothing.

    Raises:
        MaterializeError: It is such a one.
    """
    if state not in STATES:
        raise MaterializeError(
            f"state={state!r} is none: wanted {' or '.join(map(repr, STATES))}"
        )
    if state != STATES[0] and init in INITS[1:]:
        raise MaterializeError(
            f"state={state!r} says what a replay gives, and with init={init!r} nothing "
            "is replayed: leave one of them out"
        )


def check_dtype(dtype: object) -> None:
    """Refuse what tensors are not cast to.

    Raises:
        MaterializeError: It is no floating-point or complex dtype.
    """
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype) or not (
        dtype.is_floating_point or dtype.is_complex
    ):
        raise MaterializeError(
            f"dtype={dtype!r} is none that a module is cast to: wanted a "
            "floating-point one, such as torch.bfloat16"
        )
