"""Copies of what a call is given, for another device."""

from typing import Any

import torch


class Copies:
    """Copies tensors to a device with their strides and shared storages.

    Args:
        device: Of the copies; devices among arguments become it, too.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._wholes: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._copies: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        """Return an argument as it is on the device."""
        if isinstance(value, torch.device) or (type(value) is str and value == "cpu"):
            return torch.device(self._device)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype
        with torch.no_grad():
            if key not in self._wholes:
                flat = tensor.conj() if tensor.is_conj() else tensor.detach()
                flat = flat._neg_view() if tensor.is_neg() else flat
                shape = (storage.nbytes() // tensor.itemsize,)
                whole = flat.as_strided(shape, (1,), 0)
                self._wholes[key] = whole.to(self._device, copy=True)
            place = tensor.shape, tensor.stride(), tensor.storage_offset()
            copy = self._wholes[key].as_strided(*place)
            copy = copy.conj() if tensor.is_conj() else copy
            copy = copy._neg_view() if tensor.is_neg() else copy
        if type(tensor) is torch.nn.Parameter:
            return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.detach().requires_grad_(tensor.requires_grad)
