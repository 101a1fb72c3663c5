"""Facts of a program besides its rows: values, assumptions, kernels, storages.

Read by replays (``x.item()`` needs the constants), by memory (what an optimizer holds)
and by tables (which call raised). All are plain records; :class:`Constant` alone can
keep a tensor of the user alive.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from meta_magic.trace.signature import Signature


class Evaluation(NamedTuple):
    """An operator call that was answered with real values, by a replay of its inputs.

    From there on the trace depends on data, not just on metadata.

    Attributes:
        n_calls: Calls that the replay ran.
        nbytes: Most bytes that the replay held at any moment.
        flops: Floating-point operations of the replay; one for each element of an
            output where there is no formula.
    """

    call: int
    n_calls: int
    nbytes: int
    flops: int


class Assumption(NamedTuple):
    """An operator call whose size or value was assumed, as it depends on unknown data.

    Attributes:
        n_true: The assumed number of true elements, spread evenly; or sum of numbers.
        text: The user's assumption, such as ``nonzero=all``.
        value: The assumed value of each number; None if ``n_true`` is the assumption.
    """

    call: int
    n_true: int
    numel: int
    text: str
    value: float | None = None


class KernelChoice(NamedTuple):
    """Which kernel a device would choose for some operator calls.

    Attributes:
        text: The choice, with the reason where it is not a fused kernel.
    """

    first_op: int
    end_op: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A storage whose content no recorded operator made, as at its first sight.

    Attributes:
        data: Its bytes; None if they are too many to be copied.
        checksum: CRC-32 of its bytes; 0 where there is ``data``.
        tensor: The storage itself where ``data`` is None, as bytes: the one object of
            the user that a trace keeps alive.
        name: Its name in the block; None where it has none, or it was not looked up.
        sparse: A copy of the sparse tensor whose values the storage has; None for the
            storage of a dense tensor.
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
    """The call that raised. It is no row of the program, as replays run all rows.

    Attributes:
        signature: Operator and arguments. For a function that raised before any
            operator, ``op`` is the name of the function, and positional arguments whose
            names torch does not say are named by their index.
        call_site: Its call site: an index into ``Program.call_sites``, from 1.
        module_word: Its module call; see ``program.HEADER``.
        goes_on: Whether the same call of a function made the operator before it.
        tensors: The number of each tensor argument.
        error: Type of the error, and the first line of its text.
        sizes: Input and output size of the module that was called, as its
            ``in_features`` and ``out_features`` say; else None.
    """

    signature: Signature
    call_site: int
    module_word: int
    goes_on: bool
    tensors: tuple[int, ...]
    error: str
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """Facts of storages that are in no row of the program.

    Attributes:
        sizes: (operator calls made before, storage, bytes from then on) of storages
            that no operator made or resized.
        states: Storages of an optimizer's state after a step.
        optimized: Storages of the parameters that an optimizer steps.
        accumulated: (operator call, storage of the leaf) for each call by which
            autograd accumulated a gradient.
        assigned: Storages of gradients when an optimizer stepped, and at the end.
        differentiated: The calls that autograd can go back through, as 32-bit integers.
        repeated: The module calls within a backward pass, as of checkpointing.
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
