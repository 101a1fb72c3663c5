"""The attribute ``data``: it is read as an alias, and given the memory of a tensor.

``x.data = y`` makes torch compare the kinds of both. Two tensors of a CPU are of one
kind, in whichever mode they were made, and however lazily; two on meta are not: without
this ``parameter.data = z.conj()`` fails, and so does ``parameter.data = real``.
"""

from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import META
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.real_tensors.capturable import is_wanted
from meta_magic.recording.intercept.real_tensors.captured_constants import Lifting
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import set_lazy_bits

__all__ = ["DATA", "DataAttribute"]

DATA: Final[Any] = Tensor.data
BEFORE: Final = "change it before the cell, "


class DataAttribute:
    """Reads the data of tensors, and gives them that of others.

    Args:
        registry: Numbers of tensors.
        lifting: Makes constants of real tensors.
    """

    def __init__(self, registry: TensorRegistry, lifting: Lifting) -> None:
        self._registry = registry
        self._lifting = lifting

    def read_or_set(self, func: Any, tensor: Tensor, *source: Tensor) -> Any:
        """Return the data of a tensor, or set it.

        Raises:
            MixedDeviceError: The tensor is real, and the other one is on meta.
        """
        if not source or not isinstance(source[0], Tensor):
            self._registry.note_alias(tensor)
            return func(tensor, *source)
        with DisableTorchFunction():
            given = self._lift(tensor, source[0])
            is_plain = given.is_meta and given.layout is torch.strided
            adapted = adapt(tensor, given) if is_plain else given
        for alias in (tensor, given):
            self._registry.note_alias(alias)
        func(tensor, adapted)
        if adapted is not given:
            set_lazy_bits(tensor, given)
            self._registry.forget(id(tensor), None)
        return None

    def is_taken(self, func: Any, tensor: Tensor, source: Tensor) -> bool:
        """Return whether a tensor takes the data of another: modules ask before.

        What the cell put on meta by name takes none of a device's, nor the other way.
        """
        with DisableTorchFunction():
            tensors = tensor, source
            if not all(t.is_meta and t.layout is torch.strided for t in tensors):
                return bool(func(*tensors))
            self._registry.note_deaths()
            refs = [*map(self._registry.storage_of, tensors)]
            aside = {
                ref and self._registry.is_storage_aside(ref.number) for ref in refs
            }
            return len(aside) == 1

    def _lift(self, tensor: Tensor, source: Tensor) -> Tensor:
        """Return what stands on meta for a source, where a tensor is on meta."""
        if tensor.is_meta:
            return self._lifting.lift(source) if is_wanted(source) else source
        if source.is_meta and is_wanted(tensor):
            self._lifting.refuse_write("`.data =`", tensor, BEFORE)
        return source


def kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return what torch compares of two tensors on meta, and not on the CPU."""
    return tensor.is_inference(), tensor.is_conj(), tensor.is_neg()


def adapt(tensor: Tensor, source: Tensor) -> Tensor:
    """Return a tensor on the memory of a source that another tensor takes as data.

    If their kinds differ, both are neither conjugated nor negated afterwards.
    """
    if kind_of(tensor) == kind_of(source):
        return source
    with DisableTorchDispatch(), torch.inference_mode(mode=tensor.is_inference()):
        made = torch.empty(0, dtype=source.dtype, device=META)
        geometry = source.storage_offset(), source.shape, source.stride()
        made.set_(source.untyped_storage(), *geometry)
    set_lazy_bits(tensor, made)
    return made
