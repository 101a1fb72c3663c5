"""``mm.materialize(model)``: plan which tensors become real.

``prepare`` finds the tensors of the module, and ``choose_companions`` those that are
used with them, such as an optimizer's state. A companion that cannot be replayed, or
takes far longer than the module, stays on meta; the report names it. Read ``prepare``
first.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.companions import find_clearable_states, find_companions
from meta_magic.materializing.fills.inits import (
    INITS,
    Init,
    choose_fill,
    document_inits,
)
from meta_magic.materializing.fills.protocol import STATES, State, Task
from meta_magic.materializing.located import find_made_by_use
from meta_magic.materializing.preparation import Preparation, Progress
from meta_magic.materializing.report import (
    MaterializeReport,
    format_names,
    format_seconds,
)
from meta_magic.materializing.targets import (
    Held,
    Target,
    Variables,
    address_of,
    check_makeable,
    find_modules,
    find_tensors,
    group_targets,
    is_recorded,
    write_path,
)
from meta_magic.recording.identities.origins import find_recorded_placement
from meta_magic.replaying.value_budget import free_nbytes, list_devices, read_device
from meta_magic.torch_private.modes import functorch_interpreter
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes

running = threading.Lock()

# Companions that stay on meta if they add more than ``PATIENCE`` to the module's time.
COSTLY: Final = ("gradient", "attribute")
PATIENCE: Final = 10.0  # seconds

MAX_TRIES: Final = 8

Prepare: TypeAlias = Callable[[Task], Preparation]


@document_inits
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
    """Make the tensors of a module real, in place, and give them their values.

    Parameters, buffers and tensor attributes on meta become real, and stay the same
    objects: ties, optimizers, hooks, ``requires_grad``, strides and parametrizations
    are kept. Tensors that are real already are not touched. The state of optimizers,
    gradients and tensors that hooks hold become real, too. Of a DTensor, this process's
    shard becomes real: under torchrun, build the model and call ``fully_shard`` (or
    ``parallelize_module`` with ``src_data_rank=None``) in one recorded block, after
    ``init_process_group``. Of a checkpoint in safetensors, or in a folder that
    ``torch.distributed.checkpoint`` wrote, each process reads its shards alone.

    Args:
        module: A module or a submodule, some or all of which is on meta; or a tensor,
            or an object with tensors: a list, a dictionary, a scheduler, a pipeline.
        device: ``"cpu"``, or a CUDA device. By default each tensor goes to the device
            that the cell named for it, where there is such a device, else to the CPU.
        init: What the tensors of the module get:

            INITS

            Companions, such as the state of an optimizer, are replayed: with
            ``init="replay"`` to their values after the cell, else to those when they
            were made.
        dtype: What floating-point and complex tensors are cast to.
        trace: The recording to replay, as it was at its end; by default the latest one
            that each tensor was in.
        state: What a replay gives: ``"current"``, the values after the cell, or
            ``"constructed"``, those before the first call of a module that has the
            tensor, the first backward pass and the first optimizer step that used it.
        progress: Called with a fraction from 0 to 1. An exception that it raises
            cancels.

    Returns:
        A report of what filled each tensor, and which tensors are uninitialized.

    Raises:
        MaterializeError: It cannot be done as asked; nothing has changed.
    """
    if not running.acquire(blocking=False):
        raise MaterializeError(
            "another module is being materialized: wait until that is done"
        )
    try:
        with RealTorch():
            prepared = prepare(
                module, device, init=init, dtype=dtype, trace=trace, state=state
            )
            return prepared.carry_out(progress)
    finally:
        running.release()


def prepare(
    module: object,
    device: str | torch.device | None = None,
    *,
    init: Init = "replay",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    state: State = "current",
) -> Preparation:
    """Plan what :func:`materialize` would do; the same arguments and errors."""
    check_arguments(init, dtype, trace, state)
    check_surroundings(module)
    target_device = read_device("cpu" if device is None else device, MaterializeError)
    seen: set[int] = set()
    task = Task(
        root=module,
        device=target_device,
        held=find_held(module, seen),
        targets=(),
        program=None if trace is None else trace.program,
        state=state,
        modules=[*find_modules(module)],
    )
    own = {id(held.tensor) for held in task.held}

    def prepare_task(task: Task) -> Preparation:
        targets = group_targets([h for h in task.held if h.tensor.is_meta], dtype)
        for target in targets:
            target.device = target_device
        notes = [*assign_devices(targets)] if device is None else ()
        task = replace(task, targets=targets, notes=[*task.notes, *notes])
        return Preparation(task=task, fill=choose_fill(init, task, own))

    is_trained = init == INITS[0] and state == STATES[0]
    found = find_companions(task.held, task.modules, seen, is_cast=dtype is not None)
    return choose_companions(task, found, prepare_task, is_trained=is_trained)


def check_arguments(init: Init, dtype: object, trace: object, state: object) -> None:
    """Refuse a wrong ``dtype``, ``trace`` or ``state``."""
    if dtype is not None and not (
        isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    ):
        raise MaterializeError(
            f"dtype={dtype!r}: a module cannot be cast to it; choose a "
            "floating-point one, such as torch.bfloat16"
        )
    if trace is not None and not isinstance(trace, Trace):
        raise MaterializeError(
            f"trace= takes the Trace of a recording, not a {type(trace).__name__}"
        )
    if state not in STATES:
        raise MaterializeError(
            f"there is no state={state!r}: choose {' or '.join(map(repr, STATES))}"
        )
    if state != STATES[0] and init in INITS[1:]:
        raise MaterializeError(
            f"state={state!r} chooses what a replay gives, but init={init!r} replays "
            "nothing: leave one of them out"
        )


def check_surroundings(root: object) -> None:
    """Refuse scripted modules, and transforms of ``torch.func``."""
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


def find_held(root: object, seen: set[int]) -> list[Held]:
    """Return the tensors that are asked for; ``seen`` gets what is searched."""
    held = [*find_tensors(root, seen)]
    if isinstance(root, Variables):
        return [item for item in held if is_recorded(item.tensor)]
    if not held and not isinstance(root, nn.Module):
        raise MaterializeError(
            "wanted a module, a tensor or an object that holds some, not a "
            f"{type(root).__name__}"
        )
    return held


def assign_devices(targets: Sequence[Target]) -> Iterator[str]:
    """Put each target on the device that the cell named; yield missing ones."""
    there, missing = list_devices(), defaultdict(list)
    for target in targets:
        planned = find_recorded_placement(target.storage)
        if planned is not None and str(planned) in there:
            target.device = planned
        elif planned is not None:
            missing[planned].append(target.name)
    for planned, names in missing.items():
        yield (
            f"there is no {planned} here: tensors planned on it are on the CPU, "
            f"{format_names(names)}"
        )


def choose_companions(
    task: Task, found: Sequence[Held], prepare: Prepare, *, is_trained: bool
) -> Preparation:
    """Plan to make a task's tensors real, with as many companions as possible.

    Without training, gradients and the states of optimizers belong to other values, and
    are dropped.
    """
    is_lenient = isinstance(task.root, Variables)
    if not is_trained:
        found = [item for item in found if item.kind != "gradient"]
        made = find_made_by_use(find_clearable_states(found), task.program)
        found = [item for item in found if item not in made]
        task = replace(task, cleared=made)
    optional = [*task.held, *found] if is_lenient else found
    task = replace(task, held=[] if is_lenient else task.held)
    prepared = prepare_with(task, optional, prepare)
    own = {address_of(item.tensor) for item in task.held}
    costly = [h for h in found if h.kind in COSTLY and address_of(h.tensor) not in own]
    if is_lenient or not costly:
        return prepared
    return drop_costly(prepared, costly, prepare)


def prepare_with(task: Task, optional: Sequence[Held], prepare: Prepare) -> Preparation:
    """Plan a task with all optional tensors that can be real: errors name the rest."""
    on_meta: list[tuple[Held, str]] = []

    def leave_out(items: Sequence[Held], error: MaterializeError) -> list[Held]:
        gone = {id(item.tensor) for item in items}
        on_meta.extend((item, str(error)) for item in items)
        return [item for item in optional if id(item.tensor) not in gone]

    for item in optional:
        try:
            if item.tensor.is_meta:
                check_makeable(item)
        except MaterializeError as error:
            optional = leave_out([item], error)
    for n_tried in range(MAX_TRIES):
        try:
            held = [*task.held, *optional]
            kept = [pair for pair in on_meta if pair[0].kind != "gradient"]
            notes = [f"{h.name}: {why}" for h, why in on_meta if h.kind == "gradient"]
            return prepare(replace(task, held=held, on_meta=kept, notes=notes))
        except MaterializeError as error:
            is_last = n_tried == MAX_TRIES - 2
            at_fault = find_at_fault(error, task.held, optional)
            if not optional or at_fault == []:
                raise
            optional = leave_out(optional if is_last else at_fault or optional, error)
    raise AssertionError


def find_at_fault(
    error: MaterializeError, wanted: Sequence[Held], optional: Sequence[Held]
) -> list[Held] | None:
    """Return the optional tensors that cannot be made real; None if it is not known."""
    if not isinstance(error.target, Target):
        return None
    ids = {id(tensor) for tensor in error.target.tensors}
    if any(id(item.tensor) in ids for item in wanted):
        return []
    return [item for item in optional if id(item.tensor) in ids]


def drop_costly(
    prepared: Preparation, costly: Sequence[Held], prepare: Prepare
) -> Preparation:
    """Plan the task without costly companions, if it does not fit or is slow."""
    seconds, fits = prepared.forecast.seconds, prepared.fits
    if fits and seconds < PATIENCE:
        return prepared
    task, gone = prepared.task, {id(item.tensor) for item in costly}
    held = [item for item in task.held if id(item.tensor) not in gone]
    lean = prepare(replace(task, held=held, notes=()))
    added = seconds - lean.forecast.seconds
    if added < PATIENCE and (fits or not lean.fits):
        return prepared
    why = f"that takes {format_seconds(added)} more" if fits else "that does not fit"
    dropped = [(item, why) for item in costly if item.kind != "gradient"]
    notes = [f"gradients were left out: {why}"] if len(dropped) < len(costly) else []
    on_meta, notes = [*task.on_meta, *dropped], [*lean.task.notes, *notes]
    return replace(lean, task=replace(lean.task, on_meta=on_meta, notes=notes))


MAX_TRIED: Final = 3


def list_fitting(
    whole: Preparation, name: str, arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the choices that fit, as text."""
    root = whole.task.root
    if arguments.get("dtype") is None:
        found = prepare_fitting(root, {**arguments, "dtype": torch.bfloat16})
        if found is not None:
            yield f"bfloat16 ({format_bytes(found.peak_nbytes)})"
    used = {str(target.device) for target in whole.targets}
    for device in list_devices():
        is_other = used != {device}
        given = {**arguments, "device": device}
        found = prepare_fitting(root, given) if is_other else None
        if found is not None:
            yield f"{device} ({format_bytes(free_nbytes(found.device))} free)"
    if isinstance(root, nn.Module):
        yield from find_submodule(whole, name, arguments)


def find_submodule(
    whole: Preparation, name: str, arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the largest submodule that fits, if there is one."""
    nbytes: Counter[str] = Counter()
    for target in whole.targets:
        parts = [held.name.split(".") for held in target.held]
        above = (".".join(p[:n]) for p in parts for n in range(1, len(p)))
        nbytes.update(dict.fromkeys(above, target.nbytes))
    free = free_nbytes(whole.device)
    modules = dict(whole.task.modules)
    tried = [fqn for fqn, _ in nbytes.most_common() if fqn in modules]
    small = [fqn for fqn in tried if nbytes[fqn] <= free]
    for fqn in small[:MAX_TRIED]:
        found = prepare_fitting(modules[fqn], arguments)
        if found is not None:
            yield f"{write_path(modules, name, fqn)} ({format_bytes(found.nbytes)})"
            return


def prepare_fitting(module: object, arguments: Mapping[str, Any]) -> Preparation | None:
    """Return how to make a module real, if that fits."""
    try:
        found = prepare(module, **arguments)
    except MaterializeError:
        return None
    return found if found.fits else None
