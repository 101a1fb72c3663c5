"""``materialize()``: make a module real in place, and say what it holds now."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.budget import check_budget
from meta_magic.materializing.checkpoint_reader import open_checkpoint
from meta_magic.materializing.fills.checkpoint import CheckpointFill, match_names
from meta_magic.materializing.fills.empty import EmptyFill
from meta_magic.materializing.fills.protocol import Content, Fill
from meta_magic.materializing.fills.replay import ReplayFill
from meta_magic.materializing.fills.reset import reset_module
from meta_magic.materializing.install import Installation
from meta_magic.materializing.report import FilledTensor, Filling, MaterializeReport
from meta_magic.materializing.targets import Held, Target, find_tensors, group_targets
from meta_magic.recording.constants import as_bytes, sum_bytes
from meta_magic.recording.ledger import find_origin
from meta_magic.recording.torch_private import functorch_interpreter
from meta_magic.replaying.columns import Columns
from meta_magic.replaying.devices import read_device
from meta_magic.replaying.machine import real_torch
from meta_magic.replaying.memory import make_view
from meta_magic.trace.program import Program
from meta_magic.trace.trace import Trace

__all__ = ["INITS", "Init", "Preparation", "materialize", "prepare"]

Init: TypeAlias = str | Path | Mapping[str, Tensor]
Progress: TypeAlias = Callable[[float], object]

INITS: Final = ("replay", "reset", "empty")

running = threading.Lock()


def materialize(  # noqa: PLR0913  the options of to_empty, and what fills it
    module: nn.Module,
    device: str | torch.device = "cpu",
    *,
    init: Init = "replay",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
    progress: Progress | None = None,
) -> MaterializeReport:
    """Make the tensors of a module real, in place, as ``Module.to_empty`` should.

    Parameters, buffers and tensor attributes on meta become real, and stay the same
    objects: ties, optimizers, hooks, ``requires_grad``, strides and parametrizations
    are kept. Tensors that are real already are not touched. Gradients are dropped.

    Args:
        module: A module, or a submodule of one, some or all of which is on meta.
        device: ``"cpu"``, or a CUDA device.
        init: What the tensors get:

            * ``"replay"``: what the recorded cell would have computed, to the bit on
              the CPU; also a submodule alone gets what it has within the whole;
            * ``"reset"``: each submodule's ``reset_parameters`` and ``_init_weights``;
            * ``"empty"``: nothing; all is uninitialized memory;
            * a path or a state dict: a checkpoint, assigned without a copy where dtype
              and strides allow it; what it lacks is replayed.
        dtype: What floating-point and complex tensors are cast to.
        trace: The recording to replay, as it was at its end; by default the latest one
            that each tensor was in.
        progress: Called with a fraction from 0 to 1 as it goes. What it raises cancels,
            and leaves the module as it was.

    Returns:
        What filled each tensor, and which are uninitialized.

    Raises:
        MaterializeError: It cannot be done as asked; the module is as it was.
    """
    if not running.acquire(blocking=False):
        raise MaterializeError(
            "another module is being materialized: wait until that is done"
        )
    try:
        with real_torch():
            preparation = prepare(module, device, init=init, dtype=dtype, trace=trace)
            return preparation.carry_out(progress)
    finally:
        running.release()


def prepare(
    module: nn.Module,
    device: str | torch.device = "cpu",
    *,
    init: Init = "replay",
    dtype: torch.dtype | None = None,
    trace: Trace | None = None,
) -> "Preparation":
    """Find out what :func:`materialize` would do; the same arguments and errors."""
    if not isinstance(module, nn.Module):
        raise MaterializeError(
            f"wanted a torch.nn.Module, not a {type(module).__name__}"
        )
    check_dtype(dtype)
    check_surroundings(module)
    place = read_device(device, MaterializeError)
    held = list(find_tensors(module))
    on_meta = [h for h in held if h.tensor.is_meta]
    targets = group_targets(on_meta, dtype)
    redrawn = group_targets(find_redrawn(held), None) if init == "replay" else []
    program = read_program(trace)
    if init == "replay":
        fill: Fill = ReplayFill([*targets, *redrawn], place, module, program)
    elif isinstance(init, str) and init in INITS:
        fill = EmptyFill(targets, place)
    else:
        entries = open_checkpoint(init, place)
        match_names(held, entries)
        fill = CheckpointFill(
            targets,
            entries,
            place,
            lambda rest: ReplayFill(rest, place, None, program),
        )
    return Preparation(
        module=module,
        device=place,
        held=held,
        targets=targets,
        redrawn=redrawn,
        fill=fill,
        is_reset=init == "reset",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preparation:
    """A materialization that is planned and not begun.

    Attributes:
        module: What is made real.
        device: Where.
        held: All tensors of the module.
        targets: The storages that are on meta.
        redrawn: Storages that the recorded cell made real, with random numbers from
            where its generator stood because meta had not moved it.
        fill: Where their content comes from.
        is_reset: Whether the modules initialize themselves afterwards.
    """

    module: nn.Module
    device: torch.device
    held: Sequence[Held]
    targets: Sequence[Target]
    redrawn: Sequence[Target]
    fill: Fill
    is_reset: bool

    @property
    def nbytes(self) -> int:
        """Bytes that the module's new tensors take."""
        return sum(target.nbytes for target in self.targets)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that will be held at any moment."""
        return self.fill.peak_nbytes()

    def carry_out(self, progress: Progress | None = None) -> MaterializeReport:
        """Do it.

        Raises:
            MaterializeError: It failed, or does not fit; the module is as it was.
        """
        started = time.perf_counter()
        name = f"a {type(self.module).__name__}"
        needed = self.peak_nbytes
        check_budget(name, self.device, needed, self.targets)
        contents = self._make(progress)
        n_gradients = sum(
            tensor.is_leaf and tensor.grad is not None
            for target in self.targets
            for tensor in target.tensors
        )
        installation = Installation(
            [
                (tensor, build_tensor(target, tensor, contents[target]))
                for target in self.targets
                for tensor in target.tensors
            ]
        )
        installation.install()
        reached = self._reset(installation) if self.is_reset else None
        self._redraw(contents)
        notes = [f"{n_gradients:,} gradients were dropped"] if n_gradients else []
        notes += self._finish_replay()
        return MaterializeReport(
            module=type(self.module).__name__,
            device=self.device,
            tensors=tuple(self._describe_tensors(reached)),
            nbytes=self.nbytes,
            peak_nbytes=needed,
            n_operators=getattr(self.fill, "n_operators", 0),
            seconds=time.perf_counter() - started,
            notes=tuple(notes),
        )

    def _make(self, progress: Progress | None) -> dict[Target, Content]:
        contents: dict[Target, Content] = {}
        done, total = 0, max(self.fill.n_work, 1)
        try:
            for nbytes in self.fill.run(contents.__setitem__):
                done += nbytes
                if progress is not None:
                    progress(min(done / total, 1.0))
        except torch.OutOfMemoryError as error:
            raise MaterializeError(
                f"{self.device} ran out of memory after {done / total:.0%}: {error}"
            ) from error
        if progress is not None and done < total:
            progress(1.0)
        return contents

    def _reset(self, installation: Installation) -> set[int]:
        made = {id(tensor) for target in self.targets for tensor in target.tensors}
        kept = {
            address_of(held.tensor)
            for held in self.held
            if id(held.tensor) not in made and held.tensor.layout is torch.strided
        }
        try:
            return reset_module(self.module, kept)
        except BaseException:
            installation.undo()
            raise

    def _redraw(self, contents: Mapping[Target, Content]) -> None:
        for target in self.redrawn:
            content = contents[target]
            if not isinstance(content, Tensor):
                as_bytes(target.storage).copy_(as_bytes(content))

    def _finish_replay(self) -> list[str]:
        """Let torch's generator go on from there; return what is to be told."""
        fill = self.fill
        if not isinstance(fill, ReplayFill):
            return []
        note = fill.move_generator() if self.device.type == "cpu" else None
        return [*fill.find_doubts(), *([] if note is None else [note])]

    def _describe_tensors(self, reached: set[int] | None) -> list[FilledTensor]:
        filled_by: dict[int, Filling] = {}
        for target in (*self.targets, *self.redrawn):
            for tensor in target.tensors:
                how = self.fill.filled_by(target, tensor)
                if reached is not None and address_of(tensor) in reached:
                    how = "reset"
                filled_by[id(tensor)] = how
        first: dict[int, str] = {}
        described = []
        for held in self.held:
            tensor = held.tensor
            address = address_of(tensor)
            tied_to = first.setdefault(address, held.name)
            described.append(
                FilledTensor(
                    name=held.name,
                    kind=held.kind,
                    filled_by=filled_by.get(id(tensor), "kept"),
                    shape=tuple(tensor.shape),
                    dtype=tensor.dtype,
                    tied_to=None if tied_to == held.name else tied_to,
                )
            )
        return described


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


def find_redrawn(held: Sequence[Held]) -> list[Held]:
    """Return the tensors that the recorded cell itself drew for real, unchanged since.

    Factories that ignore the default device make them, such as ``torch.Tensor(3)``.
    """
    drawn_by_program: dict[int, set[int]] = {}
    found = []
    for place in held:
        if place.tensor.is_meta or place.tensor.layout is not torch.strided:
            continue
        storage = place.tensor.untyped_storage()
        located = find_origin(storage)
        if located is None or storage.device.type != "cpu":
            continue
        origin, number = located
        known = origin.checksums.get(number)
        if known is None or known != sum_bytes(as_bytes(storage)):
            continue
        drawn = drawn_by_program.get(id(origin.program))
        if drawn is None:
            drawn = Columns(origin.program).drawn_storages()
            drawn_by_program[id(origin.program)] = drawn
        if number in drawn:
            found.append(place)
    return found


def address_of(tensor: Tensor) -> int:
    """Return what tells a tensor's storage from others; its ``id`` if it has none."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return id(tensor)
    address: int = tensor.untyped_storage()._cdata
    return address


def build_tensor(target: Target, tensor: Tensor, content: Content) -> Tensor:
    """Return the real tensor for one on meta."""
    if isinstance(content, Tensor):
        return content
    return make_view(content, target.geometry_of(tensor))


def check_surroundings(module: nn.Module) -> None:
    """Refuse what tensors cannot be exchanged in.

    Raises:
        MaterializeError: The module is compiled, or a transform is being taken.
    """
    for name, part in module.named_modules():
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
