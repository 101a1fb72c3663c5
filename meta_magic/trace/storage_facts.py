"""What holds of storages that no row of a program says."""

from dataclasses import dataclass

__all__ = ["StorageFacts"]


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
