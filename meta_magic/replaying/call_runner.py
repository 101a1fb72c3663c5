"""Make recorded calls on real tensors, under the flags that were set then.

:class:`Memory` has the real storages, by their number in the program;
:func:`make_view` makes a tensor of recorded geometry on one.
"""

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor, UntypedStorage
from torch.nn import Parameter

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.storages import as_bytes, sum_bytes
from meta_magic.recording.identities.tensors import GeometryTable
from meta_magic.replaying.operators import default_generator
from meta_magic.replaying.program_calls import Call, Draw, ProgramCalls
from meta_magic.replaying.streams import Streams, count_words
from meta_magic.torch_private.snapshot import FLAGS
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    negate_lazily,
    parts_of,
)
from meta_magic.trace.program import Program
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import Geometry


class Memory:
    """The real storages that are live during a replay."""

    def __init__(self, recorded: ProgramCalls, device: torch.device) -> None:
        self.device = device
        self._recorded = recorded
        self._storages: dict[int, UntypedStorage] = {}
        self._tensors: dict[int, Tensor] = {}  # sparse ones, which have no storage
        self._last: dict[int, tuple[Geometry, Tensor]] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._storages or storage in self._tensors

    def tensor(self, storage: int, geometry: Geometry) -> Tensor:
        """Return a tensor of the recorded geometry; the next call may reuse it."""
        last = self._last.get(storage)
        if last is not None and last[0] is geometry:
            return last[1]
        if storage in self._tensors:
            return view_sparse(self._tensors[storage], geometry)
        real = self._storages[storage]
        if geometry.device.type == "meta" and real.device != self.device:
            # A recorded constant is on the CPU; in the cell it was on the device.
            real = self._storages[storage] = (
                as_bytes(real).to(self.device).untyped_storage()
            )
        tensor = make_view(real, geometry)
        self._last[storage] = geometry, tensor
        return tensor

    def note_tensor(self, storage: int, geometry: Geometry, tensor: Tensor) -> None:
        """Remember a tensor on a storage, for the next call that needs it."""
        self._last[storage] = geometry, tensor

    def forget_tensors(self, storages: Iterable[int]) -> None:
        """Forget remembered tensors, whose shape or strides a call may have changed."""
        for storage in storages:
            self._last.pop(storage, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        tensors = sum(tensor.nbytes for tensor in self._tensors.values())
        return tensors + sum(real.nbytes() for real in self._storages.values())

    def storages(self) -> set[int]:
        """Return the numbers of all storages."""
        return {*self._storages, *self._tensors}

    def add(self, storage: int, real: UntypedStorage | Tensor) -> None:
        """Add a storage, grown to its recorded size; or a tensor without one."""
        if isinstance(real, Tensor):
            self._tensors[storage] = real
            return
        if not has_memory(real):
            raise ReplayError("a tensor subclass has no memory of its own", storage)
        nbytes = self._recorded.nbytes_by_storage[storage]
        if real.nbytes() < nbytes:
            grown = allocate(nbytes, real.device)
            as_bytes(grown)[: real.nbytes()].copy_(as_bytes(real))
            real = grown
        self._storages[storage] = real
        self._last.pop(storage, None)

    def find(self, storage: int) -> UntypedStorage | None:
        """Return a storage, or None."""
        return self._storages.get(storage)

    def take(self, storage: int) -> UntypedStorage | Tensor:
        """Remove a storage and return it."""
        self._last.pop(storage, None)
        found = self._storages.pop(storage, None)
        return self._tensors.pop(storage) if found is None else found

    def free(self, storages: Iterable[int]) -> None:
        """Remove storages."""
        for storage in storages:
            self._storages.pop(storage, None)
            self._tensors.pop(storage, None)
            self._last.pop(storage, None)

    def allocate(self, storage: int, geometry: Geometry) -> None:
        """Add a new, uninitialized storage."""
        device = self.device if geometry.device.type == "meta" else geometry.device
        nbytes = self._recorded.nbytes_by_storage[storage]
        self._storages[storage] = allocate(nbytes, device)
        self._last.pop(storage, None)

    def load(self, constant: Constant) -> None:
        """Add a storage with its recorded content."""
        if constant.sparse is not None:
            self.add(constant.storage, constant.sparse.clone().to(self.device))
        elif constant.data is not None:
            self.add(constant.storage, load_bytes(constant.data))
        else:
            self._load_shared(constant)

    def _load_shared(self, constant: Constant) -> None:
        """Add a copy of a tensor of the user, if it did not change since."""
        tensor, name = constant.tensor, constant.name
        if tensor is None or sum_bytes(tensor) != constant.checksum:
            raise ReplayError(
                f"{'a real tensor' if name is None else f'your real `{name}`'} that "
                "the cell read was changed since, and at "
                f"{0 if tensor is None else tensor.numel():,} bytes was too large to "
                "be copied: run the cell again",
                constant.storage,
            )
        self.add(constant.storage, tensor.clone().untyped_storage())


def allocate(nbytes: int, device: torch.device) -> UntypedStorage:
    """Return a new, uninitialized storage."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


frombuffer = torch.frombuffer  # which a recording replaces


def load_bytes(data: bytes) -> UntypedStorage:
    """Return a new storage with some bytes; torch has none for no bytes."""
    copied = bytearray(data) or bytearray(1)
    return frombuffer(copied, dtype=torch.uint8).untyped_storage()


def has_memory(storage: UntypedStorage) -> bool:
    """Whether a storage has memory; that of a tensor subclass may have none."""
    try:
        return bool(storage.data_ptr()) or not storage.nbytes()
    except RuntimeError:
        return False


def make_view(storage: UntypedStorage, geometry: Geometry) -> Tensor:
    """Return a tensor on a storage."""
    shape, stride, offset = geometry.shape, geometry.stride, geometry.storage_offset
    if stride is None or offset is None:
        raise ReplayError(f"a {geometry.layout} tensor has no storage of its own")
    nbytes, cause = storage.nbytes(), None
    view = torch.empty(0, dtype=geometry.dtype, device=storage.device)
    try:
        view.set_(storage, offset, shape, stride)
    except RuntimeError as error:
        cause = error
    if cause is not None or storage.nbytes() != nbytes:  # set_ grows a short storage
        raise ReplayError(
            f"torch makes no {geometry.dtype} tensor of shape {shape} on a storage of "
            f"{nbytes:,} bytes"
        ) from cause
    if geometry.is_conj:
        view = view.conj()
    view = negate_lazily(view) if geometry.is_neg else view
    # To autograd it is no view then: its history can be changed in place.
    return view.detach() if geometry.is_conj or geometry.is_neg else view


def view_sparse(sparse: Tensor, geometry: Geometry) -> Tensor:
    """Return a sparse tensor, or a view of its values."""
    if geometry.stride is None:
        return sparse
    values = parts_of(sparse)[-1]
    if (values.shape, values.stride()) == (geometry.shape, geometry.stride):
        return values
    if not values.is_contiguous() or values.storage_offset():
        raise ReplayError("the values of a sparse tensor are laid out otherwise here")
    return make_view(values.untyped_storage(), geometry)


GEOMETRIES: Final = GeometryTable()


def read_geometry(tensor: Tensor) -> Geometry:
    """Return the geometry of a tensor, without its planned device."""
    return GEOMETRIES.of(tensor, None).record


NOTHING: Final = nullcontext()
PLAIN: Final = (Tensor, Parameter)
"""Classes of tensors whose memory is their own; subclasses may wrap other tensors."""


class CallRunner:
    """Makes the calls of a program, with real storages and generators."""

    def __init__(
        self, recorded: ProgramCalls, device: torch.device, streams: Streams
    ) -> None:
        self.device = device
        self.memory = Memory(recorded, device)
        self.streams = streams
        self._recorded = recorded

    def read_inputs(self, call: Call) -> list[Tensor]:
        """Return the tensor arguments of a call."""
        tensors = [*map(self.memory.tensor, call.inputs, call.signature.inputs)]
        if call.operator.out:  # resizing out= must change no other tensor object
            owners: dict[int, int] = {}
            for i, number in enumerate(self._recorded.input_numbers(call)):
                if owners.setdefault(id(tensors[i]), number) != number:
                    tensors[i] = tensors[i].detach()
        return tensors

    def make(
        self, call: Call, draw: Draw | None, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Make a call; return its output tensors."""
        if call.operator.is_setting:
            return [self._set(call.outputs[0], call.signature.outputs[0])]
        generator = None
        if draw is not None:
            generator = self.streams.prepare(draw, call.device_on(self.device))
        returned = self._call(call, tensors, generator)
        if draw is not None:
            self.streams.note(draw)
        if call.operator.lays_out_anew:
            self.memory.forget_tensors(call.inputs)
        return tensors_in(returned)

    def _set(self, storage: int, geometry: Geometry) -> Tensor:
        """Return a tensor on a storage, which is allocated if necessary."""
        if storage not in self.memory:
            self.memory.allocate(storage, geometry)
        return self.memory.tensor(storage, geometry)

    def use_up(
        self, call: Call, draw: Draw, pieces: Iterable[Sequence[Tensor]]
    ) -> None:
        """Advance the generator as a call does, by it or by skipping its words."""
        device, n_words = call.device_on(self.device), count_words(call, self.device)
        if n_words is not None:
            self.streams.skip(draw, device, n_words)
            return
        generator = self.streams.prepare(draw, device)
        for tensors in pieces:
            self._call(call, tensors, generator)
        self.streams.note(draw)

    def _call(
        self, call: Call, tensors: Sequence[Tensor], generator: Generator | None
    ) -> Any:
        is_known = call.operator.is_builtin or call.operator.is_random
        try:
            with NOTHING if is_known else self._undeclared_draws_refused(call):
                return call.usage.run(tensors, self.device, generator)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise ReplayError(
                f"{self._recorded.describe(call)} failed on {self.device}: {error}",
                refusal=error if call.operator.is_builtin else None,
            ) from error

    def keep_outputs(
        self,
        call: Call,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        unneeded: Collection[int] = (),
        retained: Collection[int] = (),
    ) -> None:
        """Add the outputs of a call to the memory, with their recorded strides.

        Outputs that nothing reads may differ from the record: a norm returns other
        statistics on the CPU than on CUDA.
        """
        if len(outputs) != len(call.outputs):
            raise ReplayError(
                f"{self._recorded.describe(call)} returned {len(outputs)} tensors on "
                f"{self.device}, where {len(call.outputs)} were recorded"
            )
        for storage, geometry, tensor in zip(
            call.outputs, call.signature.outputs, outputs, strict=True
        ):
            is_needed = storage not in unneeded
            if storage in self.memory or not (is_needed or storage in retained):
                continue
            if tensor.shape == geometry.shape and tensor.dtype == geometry.dtype:
                self._keep(storage, geometry, tensor, inputs)
            elif is_needed:
                raise ReplayError(
                    f"{self._recorded.describe(call)} returned {tensor.dtype} "
                    f"{tuple(tensor.shape)} on {self.device}, where {geometry.dtype} "
                    f"{geometry.shape} was recorded",
                    storage,
                )

    @contextmanager
    def _undeclared_draws_refused(self, call: Call) -> Iterator[None]:
        """Refuse a custom operator that draws random numbers without declaring it."""
        generator = default_generator(self.device)
        before, outside = generator.get_state(), _read_outside()
        yield
        if outside != _read_outside():
            raise ReplayError(
                f"{self._recorded.describe(call)} draws random numbers outside of torch"
            )
        if not torch.equal(generator.get_state(), before):
            generator.set_state(before)
            raise ReplayError(
                f"{self._recorded.describe(call)} draws random numbers, which its "
                "registration does not say (torch.Tag.nondeterministic_seeded)"
            )

    def _keep(
        self, storage: int, geometry: Geometry, tensor: Tensor, inputs: Sequence[Tensor]
    ) -> None:
        if geometry.stride is None:
            self.memory.add(storage, tensor)
            return
        nbytes = self._recorded.nbytes_by_storage[storage]
        device = self.device if geometry.device.type == "meta" else geometry.device
        laid_out = lay_out(tensor, geometry, nbytes, inputs, device)
        self.memory.add(storage, laid_out.untyped_storage())
        self.memory.note_tensor(storage, geometry, laid_out)


def lay_out(
    tensor: Tensor,
    geometry: Geometry,
    nbytes: int,
    inputs: Sequence[Tensor],
    device: torch.device,
) -> Tensor:
    """Return an output with its recorded strides, on a storage that no input has."""
    real = tensor.untyped_storage()
    address = address_of_storage(real)
    if (
        type(tensor) in PLAIN
        and tensor.stride() == geometry.stride
        and tensor.storage_offset() == geometry.storage_offset
        and real.nbytes() == nbytes
        and tensor.is_conj() == geometry.is_conj
        and tensor.is_neg() == geometry.is_neg
        and address
        not in [
            address_of_storage(other.untyped_storage())
            for other in inputs
            if other.layout is torch.strided
        ]
    ):
        return tensor
    copied = make_view(allocate(nbytes, device), geometry)
    once = tuple(slice(None if step else 1) for step in geometry.stride or ())
    copied[once].copy_(tensor[once])
    return copied


def _read_outside() -> tuple[object, ...]:
    """Return the states of the generators of Python and numpy."""
    numbers: Any = np.random.get_state()  # noqa: NPY002  the global one
    return random.getstate(), numbers[1].tobytes(), numbers[2:]


DEFAULTS: Final = {name: flag.default for name, flag in FLAGS.items()}


def needs_flags(program: Program) -> bool:
    """Whether a call of a program ran under other flags than are set now."""
    is_set = any(flag.read() != flag.default for flag in FLAGS.values())
    return is_set or bool(program.flags)


@contextmanager
def with_flags(program: Program, call: int) -> Iterator[None]:
    """Set the flags of torch's backends as one call had them, within the block.

    The program records changes only: before the first one a flag had its default.
    """
    end = bisect_right(program.flags, call, key=itemgetter(0))
    changed = {name: value for _, name, value in program.flags[:end]}
    now = {name: flag.read() for name, flag in FLAGS.items()}
    wanted = {n: v for n, v in {**DEFAULTS, **changed}.items() if v != now[n]}
    try:
        for name, value in wanted.items():
            FLAGS[name].write(value)
        yield
    finally:
        for name in wanted:
            FLAGS[name].write(now[name])
