"""Make one recorded call on real tensors, under the flags that were set then."""

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import Parameter

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.replaying.memory import Memory
from meta_magic.replaying.operators import default_generator
from meta_magic.replaying.program_calls import Call, Draw, ProgramCalls
from meta_magic.replaying.streams import Streams, count_words
from meta_magic.torch_private.backend_flags import FLAGS
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry

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
        """Advance the generator as a call does: by the call, or by skipping its words.

        ``pieces`` are scratch arguments for one call, or for several smaller ones.
        """
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
                return call.operator.call(
                    call.usage.arguments, tensors, self.device, generator
                )
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
        real = tensor.untyped_storage()
        address = address_of_storage(real)
        is_alike = (
            type(tensor) in PLAIN
            and tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.storage_offset
            and real.nbytes() == self._recorded.nbytes_by_storage[storage]
            and tensor.is_conj() == geometry.is_conj
            and tensor.is_neg() == geometry.is_neg
        )
        if is_alike and address not in [
            address_of_storage(other.untyped_storage())
            for other in inputs
            if other.layout is torch.strided
        ]:
            self.memory.add(storage, real)
            self.memory.note_tensor(storage, geometry, tensor)
            return
        self.memory.allocate(storage, geometry)
        once = tuple(slice(None if step else 1) for step in geometry.stride)
        self.memory.tensor(storage, geometry)[once].copy_(tensor[once])


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
