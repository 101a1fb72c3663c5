"""Intern geometries while recording: equal geometries are one object.

So the keys of the operator cache compare objects, not shapes and strides. Read
:class:`GeometryTable` first.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import SPARSE, has_coalesced, parts_of
from meta_magic.trace.signature import Geometry

QUANTIZED: Final = frozenset(
    {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
)
META: Final = torch.device("meta")
COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})


class LiveGeometry:
    """An interned geometry: its hash is its identity.

    Attributes:
        record: The geometry itself.
        is_in_rows: Whether it has elements, and its strides are those of a new tensor
            of its shape.
        is_meta: Whether it is on the meta device.
        is_real: Whether it is the geometry of a dense tensor in memory, without lazy
            conjugation or negation.
        is_makeable: Whether a tensor with it can be made by ``empty_strided``.
        as_strided: The arguments of ``as_strided`` for a view with it.
        make: Makes a new tensor with it, if ``is_makeable``.
    """

    def __init__(self, record: Geometry) -> None:
        self.record = record
        self.shape = record.shape
        self.stride: Any = record.stride  # None where nothing is made with it
        self.offset = record.storage_offset
        self.as_strided: Any = (record.shape, record.stride, record.storage_offset)
        # Complex tensors may be conjugated lazily, which a quick look does not show.
        self.dtype = None if record.dtype in COMPLEX else record.dtype
        self.is_meta = record.device.type == "meta"
        self.placement = record.placement
        self.is_in_rows = record.stride is None or (
            record.stride == strides_of_rows(record.shape) and 0 not in record.shape
        )
        is_dense = (
            record.layout is torch.strided
            and record.stride is not None
            and not (record.is_conj or record.is_neg or record.dtype in QUANTIZED)
        )
        self.is_makeable = self.is_meta and is_dense
        self.is_real = record.device.type == "cpu" and is_dense
        stride: Any = record.stride
        self.make: Callable[[], Tensor] = partial(
            torch.empty_strided, self.shape, stride, dtype=record.dtype, device=META
        )


class GeometryTable:
    """All geometries so far, one :class:`LiveGeometry` for each."""

    def __init__(self) -> None:
        self._geometry_by_key: dict[tuple[object, ...], LiveGeometry] = {}

    def of(self, tensor: Tensor, placement: torch.device | None) -> LiveGeometry:
        """Return the geometry of ``tensor``, whose planned device is ``placement``."""
        kind = type(tensor)
        if kind is Tensor or kind is Parameter:
            return self._of(tensor, placement)
        # A subclass may refuse to say: an uninitialized parameter has no ``shape``.
        with DisableTorchFunction():
            return self._of(tensor, placement)

    def _of(self, tensor: Tensor, placement: torch.device | None) -> LiveGeometry:
        is_conj, is_neg = tensor.is_conj(), tensor.is_neg()
        try:
            stride, offset = tensor.stride(), int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):  # sparse and nested layouts
            stride, offset = None, None
        values_shape, is_coalesced = None, False
        if (
            tensor.layout in SPARSE
        ):  # a sparse tensor of coordinates reports strides of 0
            stride, offset = None, None
            values_shape = tuple(parts_of(tensor)[-1].shape)
            is_coalesced = has_coalesced(tensor)
        shape, device, layout = size_of(tensor), tensor.device, tensor.layout
        flags = (is_conj, is_neg, placement, values_shape, is_coalesced)
        key = (shape, stride, offset, tensor.dtype, device, layout, flags)
        geometry = self._geometry_by_key.get(key)
        if geometry is None:
            record = Geometry(
                shape=shape,
                stride=stride,
                storage_offset=offset,
                dtype=tensor.dtype,
                device=device,
                layout=layout,
                is_conj=is_conj,
                is_neg=is_neg,
                placement=placement,
                values_shape=values_shape,
                is_coalesced=is_coalesced,
            )
            geometry = self._geometry_by_key[key] = LiveGeometry(record)
        return geometry


def strides_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor of a shape."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def span_nbytes(tensor: Tensor) -> int:
    """Return the bytes from a storage's start to the last element of ``tensor``."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return (int(tensor.storage_offset()) + tensor.numel()) * tensor.itemsize
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.itemsize


def size_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor; none of a nested one, whose rows differ."""
    try:
        return tuple(Tensor.size(tensor))
    except RuntimeError:
        return ()
