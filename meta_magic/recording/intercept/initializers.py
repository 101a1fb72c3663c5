"""The initializers of ``torch.nn.init`` that do nothing on meta, and who asks there.

They look whether their argument is on meta, and return at once if it is; a recording
would miss them. So that question, which reaches the function mode, is answered by
recording the whole initializer as if it was one operator.
"""

from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import init

from meta_magic.torch_private.dispatcher import parse_schema
from meta_magic.torch_private.module_internals import (
    IS_ASSIGNING,
    LOADING,
    PREFIX,
    initialize_truncated,
)

__all__ = ["INITIALIZERS", "IS_META", "Initializer", "is_loading", "read_initializer"]

IS_META: Final = torch.Tensor.is_meta
"""The attribute that is asked for."""


class Initializer:
    """An initializer in the place of an operator.

    Attributes:
        function: The Python function that initializes a real tensor.
        tags: As an operator has them.
    """

    def __init__(self, function: Any, arguments: str) -> None:
        self._name = f"nn.init.{function.__name__.removeprefix(PREFIX)}"
        self._schema = parse_schema(
            f"init::_(Tensor(a!) tensor{arguments})->Tensor(a!)"
        )
        self.function = function
        is_random = any(a.name == "generator" for a in self._schema.arguments)
        self.tags = {torch.Tag.nondeterministic_seeded} if is_random else set()

    def __call__(self, tensor: Tensor, *_: object, **__: object) -> Tensor:
        """Do what the initializer does on meta."""
        return tensor

    def __str__(self) -> str:
        return self._name

    def read_arguments(self, frame: FrameType) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the initializer's call that runs in ``frame``."""
        values = frame.f_locals
        arguments = self._schema.arguments
        return (
            [values[a.name] for a in arguments if not a.kwarg_only],
            {a.name: values[a.name] for a in arguments if a.kwarg_only},
        )


GENERATOR: Final = ", *, Generator? generator=None"
INITIALIZERS: Final = {
    str(initializer): initializer
    for initializer in (
        Initializer(
            initialize_truncated,
            f", float mean, float std, float a, float b{GENERATOR}",
        ),
        Initializer(init.orthogonal_, f", float gain{GENERATOR}"),
        Initializer(init.sparse_, f", float sparsity, float std{GENERATOR}"),
        Initializer(init.dirac_, ", int groups"),
    )
}
"""By the name that stands in the place of an operator's."""

INITIALIZER_BY_CODE: Final = {
    initializer.function.__code__: initializer for initializer in INITIALIZERS.values()
}


def read_initializer(frame: FrameType) -> Initializer | None:
    """Return the initializer that runs in ``frame``, if one does."""
    return INITIALIZER_BY_CODE.get(frame.f_code)


def is_loading(frame: FrameType) -> bool:
    """Whether ``frame`` loads a state dict into tensors without data, in vain."""
    return frame.f_code is LOADING and not frame.f_locals[IS_ASSIGNING]
