"""Make recorded calls on real tensors, under the flags that were set then.

:class:`ReplayMemory` has the real storages, by their number in the program;
:func:`make_view` makes a tensor of recorded geometry on one.
"""

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor, UntypedStorage
from torch.nn import Parameter

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.storages import as_bytes, sum_bytes
from meta_magic.recording.identities.tensors import GeometryTable, tensors_in
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
from meta_magic.trace.signature import Geometry, span_nbytes

MAX_TENSORS: Final = 2**12
"""Remembered tensors on one storage, such as the elements of a table."""


class HeldStorage:
    """A real storage, or a sparse tensor, which has none; and tensors on it."""

    __slots__ = ("geometries", "real", "tensors")

    def __init__(self, real: UntypedStorage | Tensor) -> None:
        self.real = real
        self.tensors: dict[int, Tensor] = {}  # by the id of their recorded geometry
        self.geometries: dict[int, Geometry] = {}  # no other object gets their ids

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        real = self.real
        return real.nbytes if isinstance(real, Tensor) else real.nbytes()

    def view(self, geometry: Geometry, device: torch.device) -> Tensor:
        """Return a tensor of recorded geometry, and remember it for later calls."""
        if isinstance(self.real, Tensor):
            return view_sparse(self.real, geometry)
        if geometry.device.type == "meta" and self.real.device != device:
            # A recorded constant is on the CPU; in the cell it was on the device.
            self.real = as_bytes(self.real).to(device).untyped_storage()
            self.tensors.clear()
        if len(self.tensors) == MAX_TENSORS:
            self.tensors.clear()
            self.geometries.clear()
        self.geometries[id(geometry)] = geometry
        return self.tensors.setdefault(id(geometry), make_view(self.real, geometry))


class ReplayMemory:
    """The real storages that are live during a replay, by their number.

    Args:
        sizes: The bytes of each storage by its number; 0 if they are not known.
    """

    def __init__(
        self, sizes: Sequence[int] | Mapping[int, int], device: torch.device
    ) -> None:
        self.device = device
        self.held: dict[int, HeldStorage] = {}
        self._sizes = sizes

    def __contains__(self, storage: int) -> bool:
        return storage in self.held

    def tensor(self, storage: int, geometry: Geometry) -> Tensor:
        """Return a tensor of the recorded geometry; later calls may reuse it."""
        held = self.held[storage]
        tensor = held.tensors.get(id(geometry))
        return held.view(geometry, self.device) if tensor is None else tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        return sum(held.nbytes for held in self.held.values())

    def add(self, storage: int, real: UntypedStorage | Tensor) -> None:
        """Add a storage, grown to its recorded size; or a tensor without one."""
        if isinstance(real, UntypedStorage):
            if not has_memory(real):
                raise ReplayError("a tensor subclass has no memory of its own", storage)
            nbytes = self._sizes[storage]
            if real.nbytes() < nbytes:
                grown = allocate(nbytes, real.device)
                as_bytes(grown)[: real.nbytes()].copy_(as_bytes(real))
                real = grown
        self.held[storage] = HeldStorage(real)

    def add_output(
        self, storage: int, geometry: Geometry, tensor: Tensor, inputs: Sequence[Tensor]
    ) -> bool:
        """Add the storage of an output; return whether it is the output's own.

        An output with other strides than the recorded ones is copied, and one on the
        storage of an input.
        """
        if geometry.stride is None:
            self.add(storage, tensor)
            return False
        real = tensor.untyped_storage()
        strided = (other for other in inputs if other.layout is torch.strided)
        others = {address_of_storage(other.untyped_storage()) for other in strided}
        is_own = (
            type(tensor) in PLAIN
            and tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.storage_offset
            and real.nbytes() == (self._sizes[storage] or span_nbytes(geometry))
            and tensor.is_conj() == geometry.is_conj
            and tensor.is_neg() == geometry.is_neg
            and address_of_storage(real) not in others
        )
        if is_own:
            self.add(storage, real)
            self.held[storage].tensors[id(geometry)] = tensor
            return True
        self.allocate(storage, geometry)
        once = tuple(slice(None if step else 1) for step in geometry.stride)
        self.tensor(storage, geometry)[once].copy_(tensor[once])
        return False

    def find(self, storage: int) -> UntypedStorage | Tensor | None:
        """Return a storage, or None."""
        held = self.held.get(storage)
        return None if held is None else held.real

    def take(self, storage: int) -> UntypedStorage | Tensor:
        """Remove a storage and return it."""
        return self.held.pop(storage).real

    def free(self, storages: Iterable[int]) -> None:
        """Remove storages."""
        for storage in storages:
            self.held.pop(storage, None)

    def allocate(self, storage: int, geometry: Geometry) -> None:
        """Add a new, uninitialized storage."""
        device = self.device if geometry.device.type == "meta" else geometry.device
        nbytes = self._sizes[storage] or span_nbytes(geometry)
        self.held[storage] = HeldStorage(allocate(nbytes, device))

    def load(self, constant: Constant) -> None:
        """Add a storage with its recorded content."""
        if constant.sparse is not None:
            self.add(constant.storage, constant.sparse.clone().to(self.device))
        elif constant.data is not None:
            self.add(constant.storage, load_bytes(constant.data))
        else:  # a tensor of the user, which is read again
            tensor, name = constant.tensor, constant.name
            if tensor is None or sum_bytes(tensor) != constant.checksum:
                what = "a real tensor" if name is None else f"your real `{name}`"
                raise ReplayError(
                    f"{what} that the cell read was changed since, and at "
                    f"{0 if tensor is None else tensor.numel():,} bytes was too large "
                    "to be copied: run the cell again",
                    constant.storage,
                )
            self.add(constant.storage, tensor.clone().untyped_storage())


def allocate(nbytes: int, device: torch.device) -> UntypedStorage:
    """Return a new, uninitialized storage."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


frombuffer = torch.frombuffer  # which a recording replaces


def load_bytes(data: bytes) -> UntypedStorage:
    """Return a new storage with some bytes, which operators can resize."""
    if not data:  # ``frombuffer`` takes no empty one
        return allocate(0, torch.device("cpu"))
    return frombuffer(bytearray(data), dtype=torch.uint8).clone().untyped_storage()


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
        self.memory = ReplayMemory(recorded.nbytes_by_storage, device)
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

    def make(self, call: Call, draw: Draw | None, given: list[Tensor]) -> list[Tensor]:
        """Make a call; return its output tensors."""
        if call.operator.is_setting:
            storage, geometry = call.outputs[0], call.signature.outputs[0]
            if storage not in self.memory:
                self.memory.allocate(storage, geometry)
            return [self.memory.tensor(storage, geometry)]
        generator = None
        if draw is not None:
            generator = self.streams.prepare(draw, call.device_on(self.device))
        returned = self._call(call, given, generator)
        if draw is not None:
            self.streams.note(draw)
        if call.operator.lays_out_anew:
            for storage in self.memory.held.keys() & call.inputs:
                self.memory.held[storage].tensors.clear()
        return tensors_in(returned)

    def make_part(self, call: Call, draw: Draw, drawn: Tensor, part: range) -> None:
        """Draw a part of the elements of a tensor; skip the words of all others."""
        device, numel = call.device_on(self.device), prod(call.drawn.shape)
        n_before, n_own, n_words = (
            count_words(call, self.device, n) or 0
            for n in (part.start, len(part), numel)
        )
        generator = self.streams.prepare(draw, device, n_before)
        self._call(call, [drawn], generator)
        self.streams.skip(draw, device, n_words - n_before - n_own)

    def use_up(self, call: Call, draw: Draw, pieces: Iterable[list[Tensor]]) -> None:
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
        made = zip(call.outputs, call.signature.outputs, outputs, strict=True)
        for storage, geometry, tensor in made:
            is_needed = storage not in unneeded
            if storage in self.memory or not (is_needed or storage in retained):
                continue
            if tensor.shape == geometry.shape and tensor.dtype == geometry.dtype:
                self.memory.add_output(storage, geometry, tensor, inputs)
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


def _read_outside() -> tuple[object, ...]:
    """Return the states of the generators of Python and numpy."""
    numbers: Any = np.random.get_state()  # noqa: NPY002  the global one
    return random.getstate(), numbers[1].tobytes(), numbers[2:]


def needs_flags(program: Program) -> bool:
    """Whether a call of a program ran under other flags than are set now."""
    is_set = any(flag.read() != flag.default for flag in FLAGS.values())
    return is_set or bool(program.flags)


@contextmanager
def with_flags(program: Program, call: int) -> Iterator[None]:
    """Set the flags of torch's backends, recorded as changes, as one call had them."""
    end = bisect_right(program.flags, call, key=itemgetter(0))
    changed = {name: value for _, name, value in program.flags[:end]}
    now = {name: flag.read() for name, flag in FLAGS.items()}
    values = {name: flag.default for name, flag in FLAGS.items()} | changed
    wanted = {name: value for name, value in values.items() if value != now[name]}
    try:
        for name, value in wanted.items():
            FLAGS[name].write(value)
        yield
    finally:
        for name in wanted:
            FLAGS[name].write(now[name])
