"""safetensors, of Hugging Face: it makes tensors of storages that it read."""

from typing import Final

import torch
from torch import Tensor

from meta_magic.recording.intercept.libraries.library import Library
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch

__all__ = ["SAFETENSORS"]


def adopt_storage(args: Args, kwargs: Kwargs) -> Tensor | None:
    """Return the tensor of a storage; None if ``asarray`` was given something else."""
    if not args or type(args[0]) is not torch.UntypedStorage:
        return None
    with DisableTorchDispatch():
        return torch.asarray(args[0], **{**kwargs, "device": args[0].device})


SAFETENSORS: Final = Library(adopted={torch.asarray: adopt_storage})
