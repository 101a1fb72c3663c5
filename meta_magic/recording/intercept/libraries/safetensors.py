"""safetensors, of Hugging Face: it makes tensors of storages, and reads memory."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.intercept.libraries.library import Library
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch

WRITERS: Final = ("_flatten_as_ptr", "_flatten")
"""The first is of safetensors 0.8 and later."""


def adopt_storage(args: Args, kwargs: Kwargs) -> Tensor | None:
    """Return the tensor of a storage; None if ``asarray`` was given something else."""
    if not args or type(args[0]) is not torch.UntypedStorage:
        return None
    with DisableTorchDispatch():
        return torch.asarray(args[0], **{**kwargs, "device": args[0].device})


@cache
def find_writers() -> tuple[Any, Sequence[str]] | None:
    """Return the functions that pass addresses of tensors to the library's Rust code.

    It is imported here (1 ms): a cell may be the first to do so, and others import
    ``save_file`` by name.
    """
    try:
        import safetensors.torch as module  # noqa: PLC0415  if it is there at all
    except ImportError:
        return None
    return module, [name for name in WRITERS if hasattr(module, name)]


SAFETENSORS: Final = Library(
    adopted={torch.asarray: adopt_storage}, find_writers=find_writers
)
