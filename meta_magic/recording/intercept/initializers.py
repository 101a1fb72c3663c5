"""Record the initializers of ``torch.nn.init``, which return at once on meta.

``nn.init.xavier_uniform_(w)`` asks ``w.is_meta`` and does nothing if it is: a recording
would miss it, and Materialize would leave uninitialized memory. Here that question is
answered by recording the whole initializer as one operator.
"""

import math
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
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

LEAST_INSIDE: Final = 0.3
"""Share of the distribution within the bounds up to which ``trunc_normal_`` draws in
another way."""

HALF: Final = 0.5


class Initializer:
    """An initializer, recorded like an operator."""

    def __init__(self, func: Any, arguments: str, count: Callable[..., int]) -> None:
        self._count = count
        self._name = f"nn.init.{func.__name__.removeprefix(PREFIX)}"
        schema = f"init::_(Tensor(a!) tensor{arguments})->Tensor(a!)"
        self._schema = parse_schema(schema)
        self.function = func
        is_random = any(a.name == "generator" for a in self._schema.arguments)
        self.tags = {torch.Tag.nondeterministic_seeded} if is_random else set()

    def __call__(self, tensor: Tensor, *_: object, **__: object) -> Tensor:
        """Do what the initializer does on meta."""
        return tensor

    def __str__(self) -> str:
        return self._name

    def count_writes(self, arguments: list[Any]) -> None:
        """Add the writes of a real run to the version of a tensor on meta."""
        increment_version(arguments[:1] * self._count(*arguments))

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


def count_truncated(tensor: Tensor, mean: float, std: float, a: float, b: float) -> int:
    """Return how often ``trunc_normal_`` writes a tensor, or the likelier count.

    It writes again if the first draw has a value out of bounds, which only a real draw
    would show.
    """
    inside = normal_cdf((b - mean) / std) - normal_cdf((a - mean) / std)
    if inside > LEAST_INSIDE:
        accepted = inside
    else:  # uniform draws: nearer to the mode they are accepted more often
        mode = (max(a, min(mean, b)) - mean) / std
        box = (b - a) / std * math.exp(-0.5 * mode**2) / math.sqrt(2 * math.pi)
        accepted = inside / box if box else 1
    return 1 if accepted ** tensor.numel() >= HALF else 2


def normal_cdf(x: float) -> float:
    """Return the share of a normal distribution below a value."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


GENERATOR: Final = ", *, Generator? generator=None"
INITIALIZERS: Final = {
    str(initializer): initializer
    for initializer in (
        Initializer(
            initialize_truncated,
            f", float mean, float std, float a, float b{GENERATOR}",
            count_truncated,
        ),
        Initializer(init.orthogonal_, f", float gain{GENERATOR}", lambda *_: 2),
        Initializer(
            init.sparse_,
            f", float sparsity, float std{GENERATOR}",
            lambda tensor, *_: 1 + tensor.shape[1],
        ),
        Initializer(
            init.dirac_,
            ", int groups",
            lambda w, groups: 1 + groups * min(w.shape[0] // groups, w.shape[1]),
        ),
    )
}
"""Initializers by the name in their rows."""

INITIALIZER_BY_CODE: Final = {it.function.__code__: it for it in INITIALIZERS.values()}
