"""Compare a module that was materialized with the one that the CPU builds directly."""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import meta_magic as mm

Build = Callable[[], nn.Module]


def seed() -> None:
    """Put all generators of the process into the same states."""
    torch.manual_seed(1234)
    np.random.seed(5)  # noqa: NPY002  the generator that modules use
    random.seed(6)


def generator_states() -> dict[str, Any]:
    """Return where the generators of the process stand."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": np.random.get_state()[1].tobytes(),  # noqa: NPY002
        "random": random.getstate(),
    }


def as_bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor: nan equals nan in them, and -0.0 not 0.0."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)


def build_both(build: Build) -> tuple[nn.Module, nn.Module, list[str]]:
    """Build a module on the CPU, and again under ``record()`` to materialize it.

    Returns:
        The direct one, the materialized one, and in words how they differ.
    """
    seed()
    direct = build()
    states = generator_states()
    seed()
    with mm.record() as trace:
        module = build()
    report = mm.materialize(module)
    found = [
        f"the generator of {name} stands elsewhere"
        for name, state in generator_states().items()
        if state != states[name]
    ]
    del trace
    found += differences(
        read_tensors(module), read_tensors(direct), report.uninitialized
    )
    if report.uninitialized:
        found += initialized(build, report.uninitialized)
    return direct, module, found


def initialized(build: Build, names: tuple[str, ...]) -> list[str]:
    """Return which tensors have a content on the CPU, in words.

    Torch fills what nothing initializes with nan, or the largest integer, if asked to.
    """
    seed()
    with filled_memory():
        tensors = read_tensors(build())
    return [
        f"{name} is initialized on the CPU"
        for name in names
        if name in tensors and not is_filler(tensors[name])
    ]


@contextmanager
def filled_memory() -> Iterator[None]:
    """Let torch fill the memory that it allocates."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def is_filler(tensor: Tensor) -> bool:
    """Whether a tensor still is as :func:`filled_memory` leaves it."""
    if not tensor.numel():
        return True
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    largest = True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max
    return bool((tensor == largest).any())


def read_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers and tensor attributes by name, at all their places."""
    tensors = dict(module.named_parameters(remove_duplicate=False))
    tensors |= module.named_buffers(remove_duplicate=False)
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for name, value in vars(owner).items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}.{name}".lstrip(".")] = value
    return tensors


def differences(
    met: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    uninitialized: tuple[str, ...] = (),
) -> list[str]:
    """Return, in words, how tensors differ from those wanted.

    Args:
        met: Tensors by name.
        wanted: The same.
        uninitialized: Names of tensors whose content means nothing.
    """
    if met.keys() != wanted.keys():
        return [f"only one has {name}" for name in met.keys() ^ wanted.keys()]
    found = [
        f"{name}: {fact} is {a}, not {b}"
        for name in wanted
        for fact, a, b in zip(FACTS, facts(met[name]), facts(wanted[name]), strict=True)
        if a != b
    ]
    found += [
        f"{name}: the values differ"
        for name in wanted
        if not found
        and name not in uninitialized
        and not is_same(met[name], wanted[name])
    ]
    found += [] if ties(met, id) == ties(wanted, id) else ["other tensors are the same"]
    same_storages = ties(met, storage_of) == ties(wanted, storage_of)
    return found + ([] if same_storages else ["other tensors share a storage"])


FACTS = ("type", "dtype", "shape", "stride", "offset", "requires_grad", "device")


def facts(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a tensor is besides its values, in the order of ``FACTS``."""
    is_strided = tensor.layout is torch.strided
    return (
        type(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride() if is_strided else None,
        tensor.storage_offset() if is_strided else None,
        tensor.requires_grad,
        tensor.device.type,
    )


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(as_bits(a), as_bits(b))


def storage_of(tensor: Tensor) -> int:
    """Return what identifies the storage of a tensor."""
    return tensor.untyped_storage()._cdata


def ties(tensors: Mapping[str, Tensor], key: Callable[[Tensor], int]) -> dict[str, str]:
    """Return for each name the first name with the same key."""
    first: dict[int, str] = {}
    return {name: first.setdefault(key(t), name) for name, t in tensors.items()}


def compute_both(
    module: nn.Module, direct: nn.Module, inputs: Mapping[str, Any]
) -> list[str]:
    """Return, in words, how the outputs of a module differ from those wanted."""
    outputs = []
    for model in (module, direct):
        seed()
        leaves = tree_leaves(model(**inputs))
        outputs.append([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    met, wanted = ({f"output {i}": t for i, t in enumerate(o)} for o in outputs)
    return differences(met, wanted)
