"""What calls of torch are given."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from meta_magic.recording.identities.tensors import Seen

__all__ = ["Args", "Given", "Inputs", "Kwargs"]

Args: TypeAlias = Sequence[Any]
"""Positional arguments: whatever torch takes."""

Kwargs: TypeAlias = Mapping[str, Any]
"""Keyword arguments."""

Inputs: TypeAlias = Sequence[tuple[Tensor, Seen]]
"""The tensors among the arguments, with what is known of them before the call."""


class Given(NamedTuple):
    """What one operator is called with.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        inputs: The tensors among both.
    """

    args: Args
    kwargs: Kwargs
    inputs: Inputs
