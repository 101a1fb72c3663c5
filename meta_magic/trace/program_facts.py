"""What a program knows beside its rows: values, assumptions, kernels, storages.

Read by replays (``x.item()`` needs the constants), by memory (what an optimizer holds)
and by tables (which call raised). All are plain records; :class:`Constant` alone can
keep a tensor of the user alive.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from meta_magic.trace.signature import Signature


class Evaluation(NamedTuple):
    """An operator call that was answered with real values: a replay of what it reads.

    From there on the trace depends on data, not just on metadata.

    Attributes:
        call: Its number.
        n_calls: Calls that were run for it.
        nbytes: Most bytes that they held at any moment.
        flops: Floating-point operations that they took; one for each element of an
            output where torch has no formula.
    """

    call: int
    n_calls: int
    nbytes: int
    flops: int


class Assumption(NamedTuple):
    """An operator call whose size or value was assumed: it depends on what is unknown.

    Attributes:
        call: Its number.
        n_true: How many elements are taken to be true, spread evenly; or what numbers
            add up to, as evenly.
        numel: Of how many.
        text: What the user assumed, such as ``nonzero=all``.
        value: What each number is taken to be; None if ``n_true`` says it.
    """

    call: int
    n_true: int
    numel: int
    text: str
    value: float | None = None


class KernelChoice(NamedTuple):
    """Which kernel a device would choose for some operator calls.

    Attributes:
        first_op: Number of the first call.
        end_op: Number after the last.
        text: The choice, with the reason where it is not a fused kernel.
    """

    first_op: int
    end_op: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A storage whose content no recorded operator made, as it was when first met.

    Attributes:
        storage: Number of the storage.
        data: Its bytes; None if they are too many to be copied.
        checksum: CRC-32 of its bytes; 0 where ``data`` is there.
        tensor: The storage itself where ``data`` is None, as bytes: the one thing of
            the user's that a trace keeps alive.
        name: How the block calls it; None where it has no name, or was not asked.
        sparse: A copy of the sparse tensor whose values the storage has; None if it
            is that of a dense one.
    """

    storage: int
    data: bytes | None
    checksum: int = 0
    tensor: torch.Tensor | None = field(default=None, compare=False, repr=False)
    name: str | None = None
    sparse: torch.Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        if self.data is not None:
            return len(self.data)
        return 0 if self.tensor is None else self.tensor.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedCall:
    """A call that returned nothing: no row of the program, which replays have to run.

    Attributes:
        signature: What it was called with. Of a function that raised before any
            operator, ``op`` is the function's name, and arguments that were given by
            position alone are named by that where torch tells no names.
        place: Where it came from: an index into ``Program.places``, from 1.
        module_word: In what it was called; see ``program.HEADER``.
        goes_on: Whether the same call of a function made the operator before it.
        tensors: The number of each tensor that it was given.
        error: Type of the error, and the first line of its text.
        sizes: What the module that was called takes and gives, where it says so as
            ``in_features`` and ``out_features`` do; else None.
    """

    signature: Signature
    place: int
    module_word: int
    goes_on: bool
    tensors: tuple[int, ...]
    error: str
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """What a recording knows of storages, besides the calls that read and made them.

    Attributes:
        sizes: (operator calls made before, storage, bytes from then on) of storages
            that no operator made or resized.
        on_meta: Storages that the code put on meta by name.
        parameters: Storages that became parameters of a module.
        buffers: Storages that became buffers of a module.
        states: Storages that an optimizer held as its state after a step.
        optimized: Storages of what an optimizer steps.
        accumulated: (operator call, storage of the tensor) for each call by which
            autograd put the gradient of a tensor in its place.
        assigned: Storages that were a gradient when an optimizer stepped.
        differentiated: The operator calls that autograd can go back through, as
            32-bit integers.
        repeated: The module calls that began inside of a backward pass, as those do
            that checkpointing computes again.
    """

    sizes: tuple[tuple[int, int, int], ...] = ()
    on_meta: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    optimized: tuple[int, ...] = ()
    accumulated: tuple[tuple[int, int], ...] = ()
    assigned: tuple[int, ...] = ()
    differentiated: bytes = b""
    repeated: tuple[int, ...] = ()
