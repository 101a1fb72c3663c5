"""Calls of torch's operator database, on meta, and what each of them leaves behind."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_leaves, tree_map_only


def seed_the_cpu(seed: int = common_utils.SEED) -> None:
    """Seed what samples draw from; ``torch.manual_seed`` keeps a stack for each GPU."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


# For each sample it looks through all imported modules, for a test that is torch's own.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None
common_utils.set_rng_seed = seed_the_cpu

OPERATORS = sorted(op_db, key=lambda op: op.full_name)

Call = Callable[[], tuple[Any, Any]]
"""Makes fresh inputs, runs the operator, returns (what it returned, the inputs)."""


def full_name(op: Any) -> str:
    """Return the name of an operator of the database with its variant."""
    return op.full_name


def is_copied(leaf: Any) -> bool:
    """Whether a leaf is no tensor, or one of a layout that meta has."""
    if not isinstance(leaf, torch.Tensor):
        return True
    return leaf.layout is torch.strided and not (leaf.is_nested or leaf.is_quantized)


def copy_to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same geometry on a storage of the same size."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
    )
    nbytes = tensor.untyped_storage().nbytes()
    if copy.untyped_storage().nbytes() != nbytes or tensor.storage_offset():
        flat = torch.empty(nbytes // tensor.itemsize, dtype=tensor.dtype, device="meta")
        copy = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    copy = copy.conj() if tensor.is_conj() else copy
    copy = copy._neg_view() if tensor.is_neg() else copy
    return copy.requires_grad_() if tensor.requires_grad else copy


def copy_inputs(inputs: Any) -> Any:
    """Return ``inputs`` with each tensor copied once, however often it stands there."""
    copies: dict[int, torch.Tensor] = {}
    return tree_map_only(
        torch.Tensor, lambda t: copies.setdefault(id(t), copy_to_meta(t)), inputs
    )


def calls_of(op: Any, limit: int | None, variant: str = "plain") -> Iterator[Call]:
    """Yield the sample calls of an operator in one of four variants.

    Args:
        op: An ``OpInfo`` of torch's operator database.
        limit: Samples to stop after; None for all.
        variant: ``plain``; ``in_place``: its method that ends in an underscore;
            ``out``: with ``out=``, once as wanted and once to be resized; ``backward``.
    """
    has_gradients = variant == "backward"
    wanted = (torch.float32, torch.complex64, torch.int64, *op.dtypes)
    dtype = next((d for d in wanted if d in op.dtypes), torch.float32)
    is_differentiable = dtype.is_floating_point or dtype.is_complex
    if has_gradients and not (op.supports_autograd and is_differentiable):
        return
    samples = op.sample_inputs("cpu", dtype, requires_grad=has_gradients)
    for index, sample in enumerate(samples):
        if index == limit:
            return
        kwargs = dict(sample.kwargs)
        if "device" in kwargs:
            kwargs["device"] = "meta"
        inputs = (sample.input, tuple(sample.args), kwargs)
        if not all(map(is_copied, tree_leaves(inputs))):
            continue
        if variant == "in_place":
            method = op.inplace_variant
            yield from [] if method is None else [make_call(method, inputs)]
        elif variant == "out":
            yield from out_calls(op, inputs)
        else:
            yield make_call(op.op, inputs, is_differentiated=has_gradients)


def make_call(
    function: Callable[..., Any], inputs: Any, *, is_differentiated: bool = False
) -> Call:
    """Return a call of ``function`` on fresh copies of ``inputs``."""
    on_meta = copy_inputs(inputs)

    def call() -> tuple[Any, Any]:
        fresh = copy_inputs(on_meta)
        first, args, kwargs = fresh
        returned = function(first, *args, **kwargs)
        if is_differentiated:
            differentiate(returned)
        return returned, fresh

    return call


def out_calls(op: Any, inputs: Any) -> Iterator[Call]:
    """Yield calls that write a result as large as wanted, and one of no elements."""
    if not op.supports_out:
        return
    expected = op.op(inputs[0], *inputs[1], **inputs[2])
    if not isinstance(expected, torch.Tensor) or "device" in inputs[2]:
        return
    first, args, kwargs = inputs
    yield make_call(op.op, (first, args, {**kwargs, "out": torch.empty_like(expected)}))
    empty = torch.empty(0, dtype=expected.dtype)
    yield make_call(op.op, (first, args, {**kwargs, "out": empty}))


def differentiate(returned: Any) -> None:
    """Run the backward pass of the sum of all results that have a gradient."""
    sums = [
        result.real.sum() if result.is_complex() else result.sum()
        for result in tree_leaves(returned)
        if isinstance(result, torch.Tensor) and result.requires_grad
    ]
    if sums:
        torch.autograd.backward(sums)


def observe(call: Call) -> Any:
    """Run a call and return the type of its exception, or the metadata it left."""
    try:
        returned, inputs = call()
    except Exception as error:
        return type(error).__name__
    leaves = tree_leaves((returned, inputs))
    storages: dict[int, int] = {}
    return [describe(leaf, storages) for leaf in leaves]


def describe(leaf: Any, storages: dict[int, int]) -> Any:
    """Return the metadata of a tensor, the value of a number, the type of the rest."""
    if isinstance(leaf, (int, float, bool, complex, str, type(None))):
        return repr(leaf)
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__name__
    is_strided = leaf.layout is torch.strided and not leaf.is_nested
    described = {
        "type": type(leaf).__name__,
        "shape": tuple(leaf.shape),
        "dtype": leaf.dtype,
        "layout": leaf.layout,
        "device": leaf.device.type,
        "requires_grad": leaf.requires_grad,
        "is_leaf": leaf.is_leaf,
        "flags": (leaf.is_conj(), leaf.is_neg(), leaf._is_view(), leaf._version),
    }
    if is_strided:
        storage = leaf.untyped_storage()
        described["stride"] = leaf.stride()
        described["storage_offset"] = leaf.storage_offset()
        described["storage"] = storages.setdefault(storage._cdata, len(storages))
        described["storage_nbytes"] = storage.nbytes()
    if leaf.is_leaf and leaf.grad is not None:
        described["grad"] = describe(leaf.grad, storages)
    return described
