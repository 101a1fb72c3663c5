"""Record the initializers of ``torch.nn.init``, which return at once on meta.

``nn.init.xavier_uniform_(w)`` asks ``w.is_meta`` and does nothing if it is: a recording
would miss it, and Materialize would leave uninitialized memory. Here that question is
answered by recording the whole initializer as one operator.
"""

from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import init

from meta_magic.recording.identities.call_sites import TORCH
from meta_magic.torch_private.dispatcher import parse_schema
from meta_magic.torch_private.module_internals import PREFIX, initialize_truncated

IS_META: Final = torch.Tensor.is_meta
"""The getter of the attribute that initializers ask for."""

SENDING: Final = str(TORCH / "distributed" / "tensor" / "_collective_utils.py")
"""The file by which ``distribute_tensor`` sends tensors."""

UNLOADABLE: Final = (
    "load_state_dict cannot copy tensors on meta, which have no data, into a real "
    "module (see meta_magic.materialize for the module that they are from)"
)


class Initializer:
    """An initializer, recorded like an operator.

    Attributes:
        function: The Python function that initializes a real tensor.
        tags: The tags of an operator.
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
        values = {name: plain(value) for name, value in frame.f_locals.items()}
        arguments = self._schema.arguments
        return (
            [values[a.name] for a in arguments if not a.kwarg_only],
            {a.name: values[a.name] for a in arguments if a.kwarg_only},
        )


def plain(value: object) -> object:
    """Return a number of numpy as one of Python, as torch does for an operator."""
    return value.item() if isinstance(value, np.generic) else value


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
"""Initializers by the name in their rows."""

INITIALIZER_BY_CODE: Final = {
    initializer.function.__code__: initializer for initializer in INITIALIZERS.values()
}
