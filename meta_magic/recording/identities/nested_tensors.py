"""Find the tensors in nested values."""

from torch import Tensor

__all__ = ["tensors_in"]


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in ``values`` in order, looking into lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(*value))
        elif isinstance(value, dict):
            found.extend(tensors_in(*value.values()))
    return found
