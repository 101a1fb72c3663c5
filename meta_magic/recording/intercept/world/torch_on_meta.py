"""Replace what torch.distributed and DTensor do wrongly on meta, in a world.

Without this DDP fails when it rebuilds its buckets, and ``fully_shard`` refuses the
meta tensors of a cell. ``torch_private/distributed.py`` names each function, and says
what happens without its replacement.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.torch_private.distributed import (
    CHECK_OF_FULLY_SHARD,
    DEVICE_OF_PROPAGATION,
    GET_ACCELERATOR,
    PROPAGATION,
    RANDOM_SUPPORT,
    REDUCER_METHODS,
    find_part,
    list_ranks,
    list_shards,
)
from meta_magic.torch_private.modes import DisableTorchFunction, TorchDispatchMode
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.trace.signature import CPU

aten = torch.ops.aten


class TorchOnMeta(Replacements):
    """Replaces these functions, within the block.

    Args:
        plan: Knows the planned devices.
    """

    def __init__(self, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan
        self._placement: torch.device | None = None
        self._is_copied = False

    def __enter__(self) -> None:
        replacements: list[tuple[tuple[str, str], Callable[..., Any]]] = [
            *((part, self._run_in_reducer) for part in REDUCER_METHODS),
            (CHECK_OF_FULLY_SHARD, self._check_shards),
            (PROPAGATION, propagate_alone),
            (DEVICE_OF_PROPAGATION, make_fake_on_cpu),
            *((part, lambda *_: False) for part in RANDOM_SUPPORT),
        ]
        self.replace_here(distributed, {"Reducer": self._make_reducer})
        for part, function in replacements:
            owner, name = find_part(part)
            self.replace_here(owner, {name: function})
        for module in (distributed, distributed_c10d):
            if hasattr(module, "reduce_scatter_single"):  # not in each version
                self.replace_here(module, {"reduce_scatter_single": self._copy_as_gloo})
        owner, name = GET_ACCELERATOR
        self.replace_here(owner, {name: self._find_accelerator})

    def _make_reducer(self, plain: Any, parameters: Any, *args: Any) -> Any:
        """Make DDP's reducer, whose buckets are where the parameters are."""
        self._placement = self._plan.placement_of(parameters[0])
        with self._placing():
            return plain(parameters, *args)

    def _run_in_reducer(self, plain: Callable[[Any], Any], reducer: Any) -> Any:
        """Call a method of DDP's reducer; this rank's order of buckets is rank 0's."""
        with self._placing():
            return plain(reducer)

    @contextmanager
    def _placing(self) -> Iterator[None]:
        """Put what torch makes in C++ where the parameters are."""
        plan, before = self._plan, self._plan.wanted
        plan.wanted = self._placement or before
        mode: Any = InReducer
        try:
            with mode():
                yield
        finally:
            plan.wanted = before

    def _check_shards(self, plain: Any, group: Any) -> None:
        """Refuse the parameters that the code put on meta by name, and no others."""
        if any(map(self._plan.is_on_meta, list_shards(group))):
            with DisableTorchFunction():  # the check sees only meta
                plain(group)

    def _copy_as_gloo(
        self,
        plain: Any,
        output: Any,
        input: Any,  # noqa: A002  torch's name
        *args: Any,
        **given: Any,
    ) -> Any:
        """Reduce and scatter rows; gloo holds a copy of all meanwhile.

        torch calls this again, by its protocol of ``__torch_function__``.

        Source:
            ``reduce_scatter_tensor_coalesced`` in ``ProcessGroupGloo.cpp``, torch 2.13.
        """
        is_first, self._is_copied = not self._is_copied, True
        group = args[1] if len(args) > 1 else given.get("group")
        copies = is_first and list_ranks(group)
        is_gloo = copies and distributed.get_backend(group) == "gloo"
        held = input.clone() if is_gloo else None
        try:
            return plain(output, input, *args, **given)
        finally:
            self._is_copied = not is_first
            del held

    def _find_accelerator(self, *_: Any) -> torch.device:
        return torch.device("cuda") if self._plan.is_for_cuda else CPU


class InReducer(TorchDispatchMode):
    """Keeps the indices of buckets, which torch reads, real and out of the recording.

    A copy of them to meta copies a tensor of the same size; none comes back. The table
    of used parameters, the only zeros, is on meta: torch copies into it later what a
    collective has reduced.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        given = kwargs or {}
        if func is aten.copy_.default and args[0].is_meta != args[1].is_meta:
            if args[1].is_meta:
                return args[0]
            args = args[0], torch.empty_like(args[1], device="meta")
        elif func is aten.zeros.default:
            given = {**given, "device": "meta"}
        elif func is aten.empty.memory_format and given.get("device", CPU) == CPU:
            with WithoutModes():
                return func(*args, **given)
        return func(*args, **given)


def propagate_alone(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Work out the shape of a result without the modes of the recording."""
    with DisableTorchFunction(), WithoutModes():
        return plain(*args, **kwargs)


def make_fake_on_cpu(_: Any, spec: Any) -> Tensor:
    """Return a fake tensor for a DTensor, on the CPU."""
    like = spec.tensor_meta
    return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=CPU)
