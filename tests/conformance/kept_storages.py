"""List the operators whose results lie on larger storages on the CPU than on meta.

``python -m tests.conformance.kept_storages`` runs the first samples of each operator of
torch's database, and their gradients (a minute). ``KEPT`` in
``cost/program_columns.py`` knows them.
"""

import warnings
from collections import Counter
from contextlib import suppress

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MAX_SAMPLES = 6


def put_on_meta(value):
    """Return a value as it would be on meta, on a storage as large as its own."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if not isinstance(value, torch.Tensor):
        return value
    nbytes = value.untyped_storage().nbytes()
    storage = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
    where = value.storage_offset(), value.shape, value.stride()
    return torch.empty(0, dtype=value.dtype, device="meta").set_(storage, *where)


class Comparing:
    """What the mode does; a mixin, so that torch does not import dynamo."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = {self._address(value) for value in tree_leaves((args, kwargs))}
        answer = None
        with suppress(Exception):
            metas, options = tree_map(put_on_meta, (args, kwargs))
            answer = func(*metas, **options)
        returned = func(*args, **kwargs)
        self.calls[str(func)] += 1
        pairs = zip(tree_leaves(returned), tree_leaves(answer), strict=False)
        for real, meta in pairs:
            if self._address(real) not in {*given, None} and self._address(meta):
                sizes = [t.untyped_storage().nbytes() for t in (real, meta)]
                if real.shape == meta.shape and sizes[0] != sizes[1]:
                    self.kept.setdefault(str(func), (tuple(real.shape), *sizes))
        return returned

    def _address(self, value):
        is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
        return value.untyped_storage()._cdata if is_plain else None


class ComparingMode(Comparing, TorchDispatchMode):
    """Notes the operators whose results lie on other storages than on meta."""


def run_samples(operator, mode):
    """Run the first samples of an operator, and their gradients."""
    options = {"requires_grad": operator.supports_autograd}
    for i, sample in enumerate(operator.sample_inputs("cpu", torch.float32, **options)):
        if i == MAX_SAMPLES:
            break
        with suppress(Exception), mode:
            returned = operator(sample.input, *sample.args, **sample.kwargs)
            tensors = [t for t in tree_leaves(returned) if isinstance(t, torch.Tensor)]
            sum(t.sum() for t in tensors if t.requires_grad).backward()


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    mode = ComparingMode()
    for operator in op_db:
        if operator.supports_dtype(torch.float32, "cpu"):
            with suppress(Exception):
                run_samples(operator, mode)
    for name, (shape, real, meta) in sorted(mode.kept.items()):
        print(f"{name}: {real} bytes on the CPU, {meta} on meta, of shape {shape}")
    print(f"{len(mode.calls)} operators, {sum(mode.calls.values()):,} calls")


if __name__ == "__main__":
    main()
