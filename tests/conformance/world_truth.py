"""What one real process of a world holds: ``torchrun world_truth.py SCRIPT OUT``.

Knows nothing of recordings. Writes to ``OUT.<rank>.json`` the bytes alive after
each operator, and each collective with its group, bytes, dtype and reduction.
"""

import json
import os
import runpy
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
WITHOUT_DATA = ("wait_tensor", "wrap_tensor", "barrier")
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce", "gather")
KINDS += ("scatter", "broadcast", "send", "recv")
REDUCTIONS = ("sum", "avg", "product", "min", "max")


def find_kind(name):
    """Return the kind of a collective: ``all_gather`` for ``_allgather_base_``."""
    plain = name.replace("_", "")
    return next(kind for kind in KINDS if plain.startswith(kind.replace("_", "")))


def unwrap(value):
    """Return the tensor that has the memory of a wrapper."""
    while isinstance(value, (DTensor, AsyncCollectiveTensor)):
        is_sharded = isinstance(value, DTensor)
        value = value._local_tensor if is_sharded else value.elem
    return value


def find_ranks(values):
    """Return the ranks of the group among the arguments of a collective."""
    for value in values:
        try:
            if isinstance(value, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(value)
            elif isinstance(value, str) and value not in REDUCTIONS:
                group = _resolve_process_group(value)
            else:
                continue
        except RuntimeError:
            continue
        return dist.get_process_group_ranks(group)
    return []


def find_reduction(values):
    """Return how a collective reduces, or None."""
    for value in values:
        if isinstance(value, str) and value in REDUCTIONS:
            return value
        if isinstance(value, torch.ScriptObject) and hasattr(value, "op"):
            return REDUCTIONS[value.op()]
    return None


class Truth(TorchDispatchMode):
    """Counts storages and lists collectives of the code within it."""

    def __init__(self):
        super().__init__()
        self.live, self.timeline, self.sent = 0, [], []
        self._known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        self._count(tree_leaves((args, kwargs)))
        returned = func(*args, **kwargs)
        self._count(tree_leaves(returned))
        for known in self._known.values():
            storage = known[0]()
            if storage is not None and storage.nbytes() != known[1]:
                self.live += storage.nbytes() - known[1]
                known[1] = storage.nbytes()
        self.timeline.append(self.live)
        is_sent = func.namespace in NAMESPACES
        if is_sent and not any(name in str(func) for name in WITHOUT_DATA):
            self.sent.append(describe(func, args, kwargs, returned))
        return returned

    def _count(self, values):
        for tensor in (unwrap(value) for value in values if isinstance(value, Tensor)):
            is_plain = tensor.layout is torch.strided and not tensor.is_meta
            if is_plain and type(tensor).__name__ != "FakeTensor":
                self._count_storage(tensor.untyped_storage())

    def _count_storage(self, storage):
        address = storage._cdata
        known = self._known.get(address)
        if known is None or known[0]() is not storage:
            ref = weakref.ref(storage, lambda ref: self._drop(address, ref))
            self._known[address] = [ref, storage.nbytes()]
            self.live += storage.nbytes()

    def _drop(self, address, ref):
        if address in self._known and self._known[address][0] is ref:
            self.live -= self._known.pop(address)[1]


def describe(func, args, kwargs, returned):
    """Return kind, ranks, bytes, dtype and reduction of a collective."""
    values = [*args, *kwargs.values()]
    leaves = tree_leaves((args, kwargs, returned))
    tensors = [unwrap(value) for value in leaves if isinstance(value, Tensor)]
    largest = max(tensors, key=lambda tensor: tensor.numel() * tensor.itemsize)
    return [
        find_kind(func._schema.name.split("::")[1]),
        find_ranks(values),
        largest.numel() * largest.itemsize,
        str(largest.dtype).removeprefix("torch."),
        find_reduction(values),
    ]


def main(script, out):
    """Run a script, and write what it held and sent."""
    torch.set_num_threads(1)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    with Truth() as truth:
        runpy.run_path(script, run_name="__main__")
    found = {"timeline": truth.timeline, "sent": truth.sent}
    Path(f"{out}.{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
