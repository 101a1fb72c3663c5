"""Keep content that no recorded call made, and so no replay can make.

``x = torch.tensor([1, 2])`` has its values from Python: its bytes are a constant. A
tensor of an earlier cell is an import: that cell's program makes it. Read
:class:`Constants` and :class:`Imports` first.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.origins import LiveTensors, find_origin
from meta_magic.recording.identities.storages import (
    MAX_COPIED_NBYTES,
    StorageRef,
    address_of_memory,
    as_bytes,
    string_at,
    sum_bytes,
    sum_small,
)
from meta_magic.recording.identities.tensors import Seen, TensorRegistry
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import parts_of, version_of
from meta_magic.trace.program import Import
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import Geometry, span_nbytes

VALUE_FUNCTIONS: Final = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor}
    | {Tensor.new_tensor}
)
"""Functions that turn Python values into a tensor; on meta, without any operator."""

MAX_COPIED_IF_BORROWED: Final = 2**18
"""Bytes up to which the content of a real parameter is copied."""


class Constants:
    """The storages of one recording whose content none of its operators made."""

    def __init__(self, registry: TensorRegistry) -> None:
        self.written_unseen: set[int] = set()
        self.made: set[int] = set()
        self._registry = registry
        self._constants: dict[int, Constant] = {}
        self._known: set[int] = set()
        self._sums: dict[int, int] = {}

    def note_values(self, made: Tensor, func: Any, args: Args, kwargs: Kwargs) -> None:
        """Note the values of a meta tensor that a function made from Python values."""
        data = data_of(func, args, kwargs)
        if not made.is_meta or isinstance(data, (Tensor, np.ndarray)):
            return  # made from a tensor or an array: by operators
        if func is Tensor.new_tensor:
            func, args = torch.tensor, args[1:]
        with DisableTorchFunction(), DisableTorchDispatch():
            real = func(*args, **{**kwargs, "dtype": made.dtype, "device": "cpu"})
        self._registry.note_deaths()  # its address may belong to another tensor
        self._registry.verify((made,))
        ref = self._registry.storage_of(made)
        if ref is not None:
            storage = real.untyped_storage()
            self._registry.note_size(ref, storage.nbytes())
            self.keep(ref, storage)

    def keep_sparse(self, ref: StorageRef, copy: Tensor) -> None:
        """Note the content of a sparse tensor on meta that replaces a real one."""
        self._known.add(ref.number)
        data = read_bytes(parts_of(copy)[-1].untyped_storage())
        constant = Constant(storage=ref.number, data=data, sparse=copy)
        self._constants[ref.number] = constant

    def note_real_inputs(self, inputs: Sequence[tuple[Tensor, Seen]]) -> bool:
        """Note real tensors about to be used; return whether numpy wrote one since."""
        is_unseen = False
        for tensor, (_, ref, _) in inputs:
            if ref is not None:
                storage = tensor.untyped_storage()
                self.keep(ref, storage)
                last = self._sums.get(ref.number)
                if last is not None and last != sum_small(storage):
                    self.written_unseen.add(ref.number)
                    is_unseen = True
        return is_unseen

    def is_known(self, number: int | None) -> bool:
        """Whether the content of a storage is kept, or an operator made it."""
        return number in self._known

    def note_made(self, outputs: Sequence[tuple[Tensor, Seen]]) -> None:
        """Note the real tensors that an operator made: they can be made again."""
        for tensor, (_, ref, geometry) in outputs:
            if ref is not None and not geometry.is_meta:
                if ref.number not in self._known:
                    self._known.add(ref.number)
                    self.made.add(ref.number)
                total = sum_small(tensor.untyped_storage())
                if total is not None:
                    self._sums[ref.number] = total

    def sum_made(self, refs: Iterable[StorageRef]) -> dict[int, int]:
        """Return the checksum of each real storage that an operator made."""
        sums: dict[int, int] = {}
        if not self._known:
            return sums
        with DisableTorchFunction(), DisableTorchDispatch():
            for ref in refs:
                storage = ref() if ref.number in self._known else None
                if storage is not None and storage.device.type != "meta":
                    sums[ref.number] = sum_bytes(as_bytes(storage))
        return sums

    def build(self) -> tuple[Constant, ...]:
        """Return all constants."""
        return tuple(self._constants.values())

    def find(self, storage: int) -> Constant | None:
        """Return the constant of a storage; None without one, or if written unseen."""
        return None if storage in self.written_unseen else self._constants.get(storage)

    def keep(
        self,
        ref: StorageRef,
        storage: UntypedStorage,
        name: str | None = None,
        *,
        is_borrowed: bool = False,
    ) -> None:
        """Note the content of a real storage; of a large borrowed one without copy."""
        if ref.number in self._known:
            return
        self._known.add(ref.number)
        most = MAX_COPIED_IF_BORROWED if is_borrowed else MAX_COPIED_NBYTES
        if storage.nbytes() > most:
            with DisableTorchFunction(), DisableTorchDispatch():
                tensor = as_bytes(storage)
                total = sum_bytes(tensor)
            constant = Constant(
                storage=ref.number, data=None, checksum=total, tensor=tensor, name=name
            )
        else:
            data = read_bytes(storage) if storage.nbytes() else b""
            constant = Constant(storage=ref.number, data=data, name=name)
            self._sums[ref.number] = zlib.crc32(data)
        self._constants[ref.number] = constant


def read_bytes(storage: UntypedStorage) -> bytes:
    """Return a copy of the bytes of a real storage."""
    if storage.device.type != "cpu":
        storage = storage.cpu()
    return string_at(address_of_memory(storage), storage.nbytes())


def data_of(function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the values that one of ``VALUE_FUNCTIONS`` is given."""
    at = int(function is Tensor.new_tensor)
    return args[at] if len(args) > at else kwargs.get("data")


def read_constant(constant: Constant, geometry: Geometry) -> Tensor | None:
    """Return the values of a tensor on a constant; None if large, or too long."""
    nbytes = span_nbytes(geometry)
    if geometry.stride is None or nbytes > min(constant.nbytes, MAX_COPIED_NBYTES):
        return None
    with DisableTorchFunction(), DisableTorchDispatch():
        if not nbytes:
            return torch.empty(geometry.shape, dtype=geometry.dtype, device="cpu")
        n_whole = nbytes - nbytes % geometry.dtype.itemsize
        flat = constant.tensor
        if constant.data is not None:
            memory = bytearray(constant.data)
            flat = torch.asarray(memory, dtype=torch.uint8, device="cpu")
        if flat is None:
            return None
        flat = flat[:n_whole].view(geometry.dtype)
        where = geometry.shape, geometry.stride, geometry.storage_offset
        return flat.as_strided(*where)


UNCOUNTED: Final = (
    "a tensor of an earlier cell was made in inference mode, where torch does not "
    "count writes: one outside of any recording since is not seen"
)


class Imports:
    """Finds the storages of a recording that earlier recordings made."""

    def __init__(self) -> None:
        self.caveats: tuple[str, ...] = ()
        self.aliased: set[int] = set()
        self._imports: dict[int, Import] = {}
        self._live = LiveTensors()

    def note(
        self, tensor: Tensor, number: int, storage: UntypedStorage
    ) -> torch.device | None:
        """Note where a new storage comes from, if an earlier recording made it."""
        found = find_origin(storage) if tensor.is_meta else None
        if found is None:
            return None
        origin, there = found
        try:
            version = version_of(tensor)
        except RuntimeError:  # torch counts no writes of it
            version, self.caveats = 0, (UNCOUNTED,)
        if there in origin.aliased:
            self.aliased.add(number)
        is_stale = origin.is_stale(tensor, version, there, self._live)
        given = number, origin.program, there, storage.nbytes(), version, is_stale
        self._imports[number] = Import(*given)
        return origin.placements.get(there)

    def build(self) -> tuple[Import, ...]:
        """Return all imports."""
        return tuple(self._imports.values())
