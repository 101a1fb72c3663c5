"""Replay collectives: in a group of one process, and in the groups of a planned world.

In a block with ``world=8``, the value of ``dist.all_reduce(metric); metric.item()``
depends on the tensors of the other seven processes. The replay assumes that they equal
those of the recorded process; the recording notes this where the value is read. Read
:func:`call_collective`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.errors import NotSentError, ReplayError
from meta_magic.torch_private.dispatcher import schema_of
from meta_magic.torch_private.distributed import (
    find_group,
    find_real_group,
    uses_group,
    wait_for,
)
from meta_magic.trace.signature import OpaqueArgument, Signature
from meta_magic.trace.world import Group, find_reduction
from meta_magic.trace.world import find_group as find_planned

Given = Mapping[str, Any]


class Alike(NamedTuple):
    """Computes a collective under the assumption that all processes hold equal tensors.

    Attributes:
        n: How many processes take part.
        me: The number of this process among them.
        to: The number of the root, or of the other process of a message; None for none.
    """

    n: int
    me: int
    reduction: str | None
    to: int | None

    def reduce(self, tensor: Tensor) -> Tensor:
        """Return a tensor reduced over all processes."""
        if self.reduction == "sum":
            return tensor * self.n
        if self.reduction == "product":
            return tensor**self.n
        if self.reduction == "bxor" and self.n % 2 == 0:
            return torch.zeros_like(tensor)
        return tensor.clone()  # the mean, the least, the largest of equal values

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all processes, one after the other."""
        return tensor.repeat(self.n, *[1] * (tensor.dim() - 1))

    def my_part(self, tensor: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """Return the rows that this process gets of a tensor."""
        parts: Any = tensor.split(list(sizes)) if sizes else tensor.tensor_split(self.n)
        part: Tensor = parts[self.me]
        return part


# Collectives that write into their arguments.


def reduce_all(alike: Alike, given: Given) -> None:
    """Reduce tensors, for all processes."""
    for tensor in given["tensors"]:
        tensor.copy_(alike.reduce(tensor))


def reduce_to_one(alike: Alike, given: Given) -> None:
    """Reduce tensors, for the root alone."""
    if alike.to == alike.me:
        reduce_all(alike, given)


def keep(_: Alike, __: Given) -> None:
    """Broadcast: this process has the tensor already."""


def gather_lists(_: Alike, given: Given) -> None:
    """Gather each tensor into a list of tensors."""
    names = ("output_tensors", "input_tensors"), ("output_lists", "input_list")
    outputs, inputs = next(pair for pair in names if pair[0] in given)
    for made, tensor in zip(given[outputs], given[inputs], strict=False):
        for output in made:
            output.copy_(tensor)


def gather_rows(alike: Alike, given: Given) -> None:
    """Gather each tensor into the rows of another."""
    for output, tensor in pair_rows(given):
        output.view(-1).copy_(alike.gather(tensor.reshape(-1)))


def reduce_rows(alike: Alike, given: Given) -> None:
    """Reduce rows; this process gets its part of them."""
    for output, tensor in pair_rows(given):
        part = alike.my_part(tensor.reshape(-1))
        output.copy_(alike.reduce(part).view_as(output))


def pair_rows(given: Given) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each output with its input: one pair, or those of coalesced calls."""
    if "outputs" in given:
        yield from zip(given["outputs"], given["inputs"], strict=True)
    else:
        yield given["output_tensor"], given["input_tensor"]


def reduce_lists(alike: Alike, given: Given) -> None:
    """Reduce or scatter lists of tensors; this process gets one of each list."""
    pairs = zip(given["output_tensors"], given["input_tensors"], strict=True)
    for output, parts in pairs:
        output.copy_(alike.reduce(parts[alike.me]))


def exchange_lists(alike: Alike, given: Given) -> None:
    """Send one tensor to each process, and get one of each."""
    for output in given["output_tensors"]:
        output.copy_(given["input_tensors"][alike.me])


# Collectives that return new tensors


def exchange(alike: Alike, given: Given) -> Tensor:
    """Return the rows that all processes send to this one."""
    part = alike.my_part(given["input"], given["input_split_sizes"])
    sizes = given["output_split_sizes"]
    if not sizes or {*sizes} == {len(part)}:
        return alike.gather(part)
    # The others send other numbers of rows: this process's are cut, or repeated.
    rows = part if len(part) else given["input"]
    return torch.cat([rows[torch.arange(n) % max(1, len(rows))] for n in sizes])


def reduced(alike: Alike, given: Given) -> Tensor:
    """Return a tensor that is reduced over all processes."""
    return alike.reduce(given["input"])


def gathered(alike: Alike, given: Given) -> Tensor:
    """Return the rows of all processes."""
    return alike.gather(given["input"])


def part_reduced(alike: Alike, given: Given) -> Tensor:
    """Return this process's part of the reduced rows."""
    return alike.reduce(alike.my_part(given["input"]))


def reduce_in_place(alike: Alike, given: Given) -> Any:
    """Reduce tensors, and return them."""
    for tensor in given["inputs"]:
        tensor.copy_(alike.reduce(tensor))
    return given["inputs"]


def write(make: Callable[[Alike, Given], Tensor]) -> Callable[[Alike, Given], Any]:
    """Call ``make``, and copy its result into ``out``."""
    return lambda alike, given: given["out"].copy_(make(alike, given))


def for_each(make: Callable[[Alike, Given], Tensor]) -> Callable[[Alike, Given], Any]:
    """Call ``make`` for each of several tensors."""
    return lambda alike, given: [make(alike, {"input": t}) for t in given["inputs"]]


def shard_dimension(alike: Alike, given: Given) -> Tensor:
    """Return a tensor that is sharded along another dimension."""
    mine = given["input"].tensor_split(alike.n, dim=given["shard_dim"])[alike.me]
    return torch.cat([mine] * alike.n, dim=given["gather_dim"])


RUN_BY_NAME: Final[Mapping[str, Callable[[Alike, Given], Any]]] = {
    "c10d.allreduce_": reduce_all,
    "c10d.allreduce_coalesced_": reduce_all,
    "c10d.reduce_": reduce_to_one,
    "c10d.broadcast_": keep,
    "c10d.allgather_": gather_lists,
    "c10d.allgather_coalesced_": gather_lists,
    "c10d.gather_": gather_lists,
    "c10d._allgather_base_": gather_rows,
    "c10d.allgather_into_tensor_coalesced_": gather_rows,
    "c10d.reduce_scatter_": reduce_lists,
    "c10d._reduce_scatter_base_": reduce_rows,
    "c10d.reduce_scatter_tensor_coalesced_": reduce_rows,
    "c10d.scatter_": reduce_lists,
    "c10d.alltoall_": exchange_lists,
    "c10d.alltoall_base_": lambda alike, given: given["output"].copy_(
        exchange(alike, given).view_as(given["output"])
    ),
    "_c10d_functional.all_reduce": reduced,
    "_c10d_functional.all_reduce_": lambda alike, given: given["input"].copy_(
        reduced(alike, given)
    ),
    "_c10d_functional.all_reduce_coalesced": for_each(reduced),
    "_c10d_functional.all_reduce_coalesced_": reduce_in_place,
    "_c10d_functional.all_gather_into_tensor": gathered,
    "_c10d_functional.all_gather_into_tensor_out": write(gathered),
    "_c10d_functional.all_gather_into_tensor_coalesced": for_each(gathered),
    "_c10d_functional.reduce_scatter_tensor": part_reduced,
    "_c10d_functional.reduce_scatter_tensor_out": write(part_reduced),
    "_c10d_functional.reduce_scatter_tensor_coalesced": for_each(part_reduced),
    "_c10d_functional.all_to_all_single": exchange,
    "_c10d_functional.broadcast": lambda _, given: given["input"].clone(),
    "_c10d_functional.broadcast_": lambda _, given: given["input"],
    "_c10d_functional_autograd.all_gather_into_tensor": gathered,
    "_c10d_functional_autograd.reduce_scatter_tensor": part_reduced,
    "_c10d_functional_autograd.all_to_all_single": exchange,
    "_dtensor.shard_dim_alltoall": shard_dimension,
}

FROM_ONE: Final = frozenset({"c10d.recv_", "c10d.recv_any_source_"})


def call_collective(function: Any, **given: Any) -> Any:
    """Call a collective, and wait for it."""
    planned = find_planned(given.values())
    if planned is not None:
        return call_planned(function, planned, given)
    objects = dict(given)
    for name, value in given.items():
        if isinstance(value, OpaqueArgument):
            objects[name] = find_group(value.text)
            if objects[name] is None:
                raise ReplayError(f"the recording keeps only the text {value.text!r}")
    returned = function(**objects)
    wait_for(returned)
    return returned


def check_alone(signature: Signature) -> None:
    """Refuse a collective of several real processes: it would wait for ever."""
    if not uses_group(signature.op):
        return
    given = [getattr(v, "text", v) for _, v in signature.arguments]
    group = None if find_planned(given) else find_real_group(given)
    if group is not None:
        is_from_root = signature.op.startswith(("c10d.scatter_.", "c10d.broadcast_."))
        hint = " (with src_data_rank=None DTensor sends nothing)"
        raise ReplayError(
            f"{signature.op} takes what {group.size() - 1} other processes of "
            f"the group {group.group_name} send{hint if is_from_root else ''}"
        )


def call_planned(function: Any, group: Group, given: Given) -> Any:
    """Return what a collective of a planned world gives."""
    name = str(function).removesuffix(".default")
    to = given.get("root_rank", given.get("src"))
    if name in FROM_ONE or (name == "c10d.scatter_" and to != group.rank):
        sender = "another rank" if to is None else f"rank {group.ranks[to]}"
        raise NotSentError(
            f"{name} takes what {sender} sends, which this recording does not have "
            "(--assume values=nan goes on without it)"
        )
    reduction = find_reduction(given.values())
    if reduction == "premul_sum":
        raise ReplayError(f"{name} multiplies by a factor that no recording keeps")
    alike = Alike(len(group.ranks), group.rank, reduction, to)
    made = RUN_BY_NAME.get(name, keep)(alike, given)
    if not name.startswith("c10d."):
        return made
    schema = schema_of(function)
    is_returned = "Tensor" in str(schema.returns[0].type)
    return (given[schema.arguments[0].name], None) if is_returned else None
