"""Give a block the process groups and the environment of one process of a world.

Without this ``dist.init_process_group("nccl")`` in a cell fails, or waits for processes
that never come. torch.distributed's own code runs, over its backend ``fake``, whose
groups send nothing. Read :class:`PlannedWorld` first.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import distributed, multiprocessing
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as data_parallel

from meta_magic.errors import WorldError
from meta_magic.torch_private.distributed import (
    CHECK_OF_DDP,
    FAKE,
    NEW_GROUP,
    SET_TIMEOUT,
    TIMEOUT,
    clear_sharding_caches,
    name_store,
    open_store,
    register_fake,
    set_backend,
)
from meta_magic.torch_private.replacing import Replacements
from meta_magic.trace.world import Group, Peers, World, name_group

SECONDS: Final = 60.0
"""How long a process waits for a key that another recorded one sets."""

NCCL: Final = (2, 27, 7)
"""The version of NCCL: DDP's hook for bfloat16, and each error of torch, ask for it."""

NCCL_CALLS: Final = (
    *("unique_id", "init_rank", "all_reduce", "reduce"),
    *("broadcast", "all_gather", "reduce_scatter"),
)
"""Functions of ``torch.cuda.nccl`` that bypass torch.distributed."""


def make_environment(world: World) -> dict[str, str]:
    """Return the variables that torchrun sets for a process of a world."""
    n_nodes = -(-world.size // world.per_node)
    values = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": world.local_rank,
        "LOCAL_WORLD_SIZE": min(world.per_node, world.size),
        "GROUP_RANK": world.node,
        "GROUP_WORLD_SIZE": n_nodes,
        "ROLE_RANK": world.rank,
        "ROLE_WORLD_SIZE": world.size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "plan",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    return {name: str(value) for name, value in values.items()}


class PlannedWorld(Replacements):
    """Replaces what starts process groups and processes, within the block.

    Args:
        world: The world, and the process that is recorded.
        peers: The processes that are recorded at the same time; they share a store.
        on_group: Is called when a process group is made.

    Raises:
        WorldError: On entering, if this process is in a process group already.
    """

    def __init__(
        self, world: World, peers: Peers | None, on_group: Callable[[], None]
    ) -> None:
        super().__init__()
        file = None if peers is None else f"{peers.folder}/store"
        are_all_recorded = peers is not None and len(peers.ranks) == world.size
        self._store = file, SECONDS if are_all_recorded else 2.0
        self._on_group = on_group
        self._world = world
        self._n_groups = 0
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> None:
        if distributed.is_initialized():
            raise WorldError(
                "this process is in a process group already: call "
                "torch.distributed.destroy_process_group() before a block with a world"
            )
        values = make_environment(self._world)
        self._environment = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        self._hook = sys.excepthook  # init_process_group replaces it
        self.replace_here(
            distributed_c10d,
            {
                "rendezvous": self._rendezvous,
                NEW_GROUP: self._make_group,
                SET_TIMEOUT: lambda *_, **__: None,
                TIMEOUT: lambda *_: distributed_c10d.default_pg_timeout,
            },
        )
        for module in (distributed, distributed_c10d):
            self.replace_here(
                module, {"is_nccl_available": lambda _: True, "barrier": wait_for_all}
            )
        self.replace_here(distributed, {"TCPStore": self._connect})
        direct = dict.fromkeys(NCCL_CALLS, refuse_nccl)
        self.replace_here(torch.cuda.nccl, {"version": lambda *_: NCCL, **direct})
        self.replace_here(multiprocessing, {"spawn": self._spawn})
        for module in (data_parallel, distributed.utils):
            self.replace_here(module, {CHECK_OF_DDP: self._send_shapes})

    def __exit__(self, *error: object) -> None:
        try:
            if distributed.is_initialized():
                distributed.destroy_process_group()
            clear_sharding_caches()
        finally:
            for name, value in self._environment.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            sys.excepthook = self._hook
            super().__exit__(*error)

    def _rendezvous(
        self, _: Any, url: str, rank: int = -1, world_size: int = -1, **__: Any
    ) -> Iterator[tuple[Any, int, int]]:
        """Return a store, the rank and the size, as when all processes have come."""
        world = self._world
        asked = {"rank": rank, "world_size": world_size}
        planned = {"rank": world.rank, "world_size": world.size}
        if url.startswith("env://"):  # the block may have set them itself
            set_before = {name: os.environ.get(name.upper()) for name in planned}
            asked |= {
                name: int(value)
                for name, value in set_before.items()
                if value is not None and asked[name] == -1
            }
        for name, value in asked.items():
            if value not in (-1, planned[name]):
                raise WorldError(
                    f"init_process_group: {name} is {value}, and the block is recorded "
                    f"with world={world.size} and rank={world.rank}"
                )
        register_fake()
        yield open_store(*self._store), world.rank, world.size

    def _connect(self, _: Any, host: str, port: int, *__: Any, **___: Any) -> Any:
        """Return a store instead of one that waits for a server, or for clients."""
        return name_store(open_store(*self._store), f"{host}:{port}")

    def _make_group(
        self,
        plain: Callable[..., Any],
        size: int,
        rank: int,
        ranks: list[int],
        backend: Any,
        store: Any,
        _: str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Make a group that sends nothing, and whose name says who is in it."""
        self._on_group()
        members = tuple(ranks or range(size))
        name = name_group(self._n_groups, Group(members, rank))
        self._n_groups += 1
        kwargs |= {"backend_options": None, "device_id": None}
        made, prefix = plain(size, rank, ranks, FAKE, store, name, *args[1:], **kwargs)
        if isinstance(made, distributed.ProcessGroup):
            shared = name_store(store, name.rpartition(" as ")[0])  # all members' keys
            default = "nccl" if torch.cuda.is_available() else "gloo"
            is_chosen = str(backend) != "undefined"
            set_backend(made, str(backend) if is_chosen else default, shared)
        return made, prefix

    def _send_shapes(self, _: Any, group: Any, params: Any, __: Any = None) -> None:
        """Send what DDP sends to compare the parameters of all processes."""
        device = params[0].device
        n_params = torch.tensor([len(params)], device=device)
        counts = [torch.empty_like(n_params) for _ in range(group.size())]
        distributed.all_gather(counts, n_params, group=group)
        n_sizes = sum(2 * tensor.dim() for tensor in params)
        sizes = torch.empty(n_sizes, dtype=torch.int64, device=device)
        first = distributed.get_global_rank(group, 0)
        distributed.broadcast(sizes, first, group=group)

    def _spawn(
        self,
        _: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        **__: Any,
    ) -> None:
        """Call the function as the process that is recorded."""
        world = self._world
        if nprocs != world.size:
            raise WorldError(
                f"mp.spawn starts {nprocs} processes, and the block is recorded with "
                f"world={world.size}"
            )
        fn(world.rank, *args)


def refuse_nccl(plain: Callable[..., Any], *_: Any, **__: Any) -> None:
    """Refuse a call of NCCL that is not made by torch.distributed."""
    raise WorldError(
        f"torch.cuda.nccl.{plain.__name__} calls NCCL directly, which is not recorded; "
        "torch.distributed's collectives are"
    )


def wait_for_all(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``barrier()`` without devices: it would make a tensor there in C++."""
    return plain(*args[:2], **kwargs | {"device_ids": None})
