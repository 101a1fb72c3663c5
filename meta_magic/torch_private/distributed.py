"""torch.distributed's private parts: process groups, its C++ reducer, DTensor's caches.

Each function says what breaks without it. Nothing of torch.distributed is imported
before it is used: some builds of torch lack it.
"""

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pkgutil import resolve_name
from typing import Any, Final

import torch
from torch import ScriptObject, Tensor, distributed, nn
from torch.utils._pytree import tree_map_only

# Process groups reach an operator of torch.distributed as opaque objects without a
# name. A recording keeps a text for each, by which a replay finds the group again.

NAMESPACES: Final = (
    *("c10d.", "_c10d_functional.", "_c10d_functional_autograd."),
    *("_dtensor.", "symm_mem."),
)
GROUP: Final = "process group "
REDUCTION: Final = "reduction "
REDUCTIONS: Final = (
    *("sum", "avg", "product", "min", "max"),
    *("band", "bor", "bxor", "premul_sum"),
)
"""The reductions, in the order of torch's enumeration."""

FAKE: Final = "fake"  # the backend that sends nothing


def uses_group(op: str) -> bool:
    """Whether an operator of this name may send to, or wait for, other processes."""
    return op.startswith(NAMESPACES)


def describe_group(value: object) -> str | None:
    """Return the text for a group or a reduction; None for other values."""
    if not isinstance(value, ScriptObject):
        return None
    kind = value._type().qualified_name().rpartition(".")[2]
    if kind == "ReduceOp":
        reduction: Any = value
        return REDUCTION + REDUCTIONS[reduction.op()]
    if kind != "ProcessGroup":
        return None
    return GROUP + distributed.ProcessGroup.unbox(value).group_name


def find_group(text: str) -> Any:
    """Return the object that :func:`describe_group` described; None for other texts.

    Where only one process takes part, any reduction gives the same result.
    """
    if text.startswith(REDUCTION):
        return torch.classes.c10d.ReduceOp()
    if not text.startswith(GROUP):
        return None
    return find_by_name(text.removeprefix(GROUP)).boxed()


def find_by_name(name: str) -> Any:
    """Return the group of a name."""
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415  not in each build

    resolve: Any = c10d._resolve_process_group
    return resolve(name)


def find_real_group(given: Iterable[object]) -> Any:
    """Return a group of several real processes among arguments, or None."""
    for group in filter(None, map(read_group, given)):
        if group.size() > 1 and distributed.get_backend(group) != FAKE:
            return group
    return None


def read_group(value: object) -> Any:
    """Return the group that an argument is or names; None for others."""
    try:
        if type(value) is str:
            return find_by_name(value.removeprefix(GROUP))
        text = describe_group(value)
        return None if text is None else find_by_name(text.removeprefix(GROUP))
    except RuntimeError:  # the name of a reduction, or of a deleted group
        return None


def wait_for(returned: Any) -> None:
    """Wait until a collective has written what it returned."""
    for value in returned if isinstance(returned, (tuple, list)) else (returned,):
        if isinstance(value, ScriptObject):
            distributed.Work.unbox(value).wait()
        elif isinstance(value, Tensor):
            torch.ops._c10d_functional.wait_tensor(value)


# DTensors.

SHARDED: Final = "torch.distributed.tensor"
FSDP_STATES: Final = "torch.distributed.fsdp._fully_shard._fsdp_state"
PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})


def local_of(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this process holds; else the tensor itself.

    Without it the memory of sharded parameters belongs to no module: the DTensor's own
    storage is empty.
    """
    if type(tensor) in PLAIN or SHARDED not in sys.modules:
        return tensor
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local if isinstance(tensor, sys.modules[SHARDED].DTensor) else tensor


def locals_of(tensors: list[Tensor]) -> list[Tensor]:
    """Return :func:`local_of` of each tensor."""
    return [*map(local_of, tensors)] if SHARDED in sys.modules else tensors


def find_shards(modules: Iterable[nn.Module]) -> dict[tuple[int, str], Tensor]:
    """Return the shards that FSDP2 keeps of parameters, by ``id`` of module and name.

    FSDP2 gathers the parameters of the root from its forward pass to its backward pass.
    A module that is described meanwhile would count them whole.
    """
    fsdp = sys.modules.get(FSDP_STATES)
    states = map(fsdp._get_module_fsdp_state, modules) if fsdp else ()
    found: dict[tuple[int, str], Tensor] = {}
    for state in filter(None, states):
        single = vars(state).get("_fsdp_param_group")  # of older versions
        for group in filter(None, vars(state).get("_fsdp_param_groups", [single])):
            for one in group.fsdp_params:
                info = one._module_info
                holders = info.module, *info.shared_modules
                names = info.param_name, *info.shared_param_names
                pairs = zip(map(id, holders), names, strict=True)
                found |= dict.fromkeys(pairs, one.sharded_param)
    return found


def list_chunks(tensor: Any) -> list[Any]:
    """Return where this process's shard of a DTensor lies: offsets and sizes.

    Without it a shard is not found in a checkpoint of the whole tensor.
    """
    return [*tensor.__create_chunk_list__()]


def describe_placements(tensor: Any) -> str:
    """Return how a DTensor lies on its mesh, such as ``Shard(0)``."""
    return ", ".join(
        f"Shard({placement.dim})" if hasattr(placement, "dim") else repr(placement)
        for placement in tensor.placements
    )


def list_mesh_groups(tensor: Any) -> list[tuple[str, str]]:
    """Return name and process group's name of each dimension of a DTensor's mesh.

    Without it the World view draws no mesh. The names are there when
    ``destroy_process_group`` has removed the groups.
    """
    mesh = tensor.device_mesh
    groups = getattr(mesh, "_dim_group_names", ())
    return [*zip(mesh.mesh_dim_names or [""] * len(groups), groups, strict=False)]


IN_METADATA: Final = frozenset(
    {("torch", "Size"), ("torch.serialization", "_get_layout")}
    | {("collections", "OrderedDict"), ("pathlib", "PosixPath")}
    | {("pathlib", "WindowsPath"), ("pathlib._local", "PosixPath")}
)
"""What the metadata of ``torch.distributed.checkpoint`` names beside its own classes.

Without them such a folder is refused as one that may run code.
"""


# A world of processes that do not exist.

NEW_GROUP: Final = "_new_process_group_helper"
"""The function of ``distributed_c10d`` that makes each group, whatever its backend."""

CHECK_OF_DDP: Final = "_verify_param_shape_across_processes"
"""The function by which DDP compares parameters: its C++ reads them, also on meta."""


TIMEOUT: Final = "_get_default_timeout"
"""The function that warns where torch is built without the backend of a script."""


SET_TIMEOUT: Final = "_set_pg_timeout"
"""The function that asks for the class of NCCL's groups, which some builds lack."""


def has_group() -> bool:
    """Whether this process is in a process group."""
    return distributed.is_available() and distributed.is_initialized()


def register_fake() -> None:
    """Register the backend that sends nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401, PLC0415


def name_store(store: Any, name: str) -> Any:
    """Return a store that has keys of its own in another one."""
    parts: Any = distributed
    return parts.PrefixStore(name, store)


def open_store(path: str | None, seconds: float) -> Any:
    """Return a store of the processes that share a path; of this one alone for None.

    It waits for a key no longer than this many seconds. The time limit of a group is
    half an hour: a key that no recorded process sets would be waited for as long.
    torch's own store for the backend ``fake`` ends the process when it is asked for a
    key.
    """
    parts: Any = distributed
    kind = parts.HashStore if path is None else parts.FileStore
    limit = timedelta(seconds=seconds)

    class Store(kind):  # type: ignore[misc, valid-type]  # one of two
        def set_timeout(self, _: timedelta) -> None:
            super().set_timeout(limit)

    store = Store() if path is None else Store(path)
    store.set_timeout(limit)
    return store


def list_ranks(group: Any) -> list[int]:
    """Return the processes of a group; of the default group for None.

    A process that is in no group gets [].
    """
    found: Any = distributed.distributed_c10d._get_default_group()
    found = found if group is None else group
    if found is distributed.GroupMember.NON_GROUP_MEMBER:
        return []
    return distributed.get_process_group_ranks(found)


def set_backend(group: Any, backend: str, prefix: Any) -> None:
    """Have ``get_backend()`` return the backend that a script asked for.

    Without it scripts that branch by ``get_backend() == "nccl"`` take another branch.
    """
    distributed.distributed_c10d._world.pg_map[group] = (backend, prefix)


def clear_sharding_caches() -> None:
    """Clear DTensor's caches of a world: local shapes, which differ by rank."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import _random, debug  # noqa: PLC0415  takes a second

    for name in (
        "_clear_fast_path_sharding_prop_cache",
        "_clear_python_sharding_prop_cache",
        "_clear_sharding_prop_cache",
    ):
        vars(debug).get(name, int)()
    _random._rng_tracker = None


def make_finished_work(tensors: list[Tensor]) -> Any:
    """Return a handle that holds the tensors of a collective, which has ended.

    Without it DDP's reducer fails, because the handle of torch's meta kernels holds
    nothing, and a tensor that is sent is freed before the process waits for it.
    """
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415  not in each build
    from torch.futures import Future  # noqa: PLC0415

    future: Any = Future()
    future.set_result(tensors)
    parts: Any = c10d
    return parts._create_work_from_future(future).boxed()


# Parts that :func:`find_part` finds, as some builds of torch lack them: a module, or a
# class in one, and a name. Each comment says what happens without the replacement.

# DDP's reducer copies indices to meta, and then reads them; and it makes the table of
# used parameters on the CPU, where a backward pass then writes what is on meta.
REDUCER: Final = "torch._C._distributed_c10d:Reducer"
REDUCER_METHODS: Final = (REDUCER, "_rebuild_buckets"), (REDUCER, "_set_static_graph")

# DTensor computes the shape of a result by operators on fake tensors: the recording
# would report them as calls that it missed.
PROPAGATION: Final = (
    "torch.distributed.tensor._sharding_prop:ShardingPropagator",
    "_propagate_tensor_meta_non_cached",
)

# A fake tensor on a GPU that torch lacks may end the process.
DEVICE_OF_PROPAGATION: Final = (
    "torch.distributed.tensor._op_schema",
    "_rebuild_tensor_from_dtensor_meta",
)

# DTensor moves a generator's state to a GPU, which is only planned.
RANDOM_SUPPORT: Final = tuple(
    (f"torch.distributed.tensor.{module}", "is_rng_supported_mesh")
    for module in ("_random", "_dispatch")
)

# FSDP refuses parameters on meta.
CHECK_OF_FULLY_SHARD: Final = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup",
    "_validate_no_meta_params",
)

# A save that is refused has emptied the files of an earlier one; a script that loads
# what it saved fails, where the save was left out.
SAVER: Final = ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict")
LOADER: Final = ("torch.distributed.checkpoint.state_dict_loader", "_load_state_dict")

# A checkpoint that is left out fails where not all ranks are recorded.
CHECK_OF_PLANS: Final = (
    "torch.distributed.checkpoint.default_planner",
    "_validate_global_plan",
)

# ``async_save`` copies storages without torch's operators, in another thread.
LATER_SAVERS: Final = (
    ("torch.distributed.checkpoint", "async_save"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save"),
)


def find_part(part: tuple[str, str]) -> tuple[Any, str]:
    """Return the module or class of a part, which is imported, and the part's name."""
    return resolve_name(part[0]), part[1]


GET_ACCELERATOR: Final = (torch._C, "_get_accelerator")
"""``fully_shard`` makes a mesh of CPUs where the block plans GPUs."""


def map_nested(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested containers with what a function makes of each value of a type."""
    return tree_map_only(kind, function, value)


def save_all(*args: Any, **kwargs: Any) -> Any:
    """Save a checkpoint of all processes."""
    from torch.distributed.checkpoint import state_dict_saver  # noqa: PLC0415

    return state_dict_saver.save(*args, **kwargs)


def make_response(done: Any) -> Any:
    """Return what ``async_save`` returns with a stager: all is staged, and saved."""
    from torch.distributed.checkpoint.state_dict_saver import (  # noqa: PLC0415
        AsyncSaveResponse,  # not in each version
    )

    return AsyncSaveResponse(staging_completion=done, upload_completion=done)


def list_shards(group: Any) -> list[Tensor]:
    """Return the shards of the parameters that a group of FSDP holds."""
    return [local_of(parameter.sharded_param) for parameter in group.fsdp_params]


def find_sender_of_objects() -> tuple[Any, str] | None:
    """Return the function by which ``ZeroRedundancyOptimizer`` broadcasts its states.

    It saves them to a buffer: without values, ``consolidate_state_dict`` is refused.
    None where the optimizer is not imported.
    """
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return None if module is None else (module, "_broadcast_object")
