"""Tensors that stand for others while torch traces: no program is made of them."""

from typing import Final

__all__ = ["is_traced"]

TRACED: Final = ("FakeTensor", "FunctionalTensor")


def is_traced(kind: type) -> bool:
    """Whether tensors of a class stand for others while torch traces."""
    return kind.__name__ in TRACED and kind.__module__.startswith("torch.")
