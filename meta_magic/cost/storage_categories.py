"""What each storage of a program is for: parameter, gradient, saved and so on.

Parameters, gradients and optimizer states were noted while the block was recorded;
``saved_storages`` finds what autograd saved. Read ``find_categories`` first.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.saved_storages import find_saved
from meta_magic.cost.storage_lives import Lives, read_deaths
from meta_magic.trace.modules import walk_tensors

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program
    from meta_magic.trace.program_facts import StorageFacts


Category: TypeAlias = Literal[
    "parameter",
    "buffer",
    "gradient",
    "optimizer_state",
    "saved",
    "temporary",
    "input",
    "output",
    "unsharded",
]

CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
PARAMETER, BUFFER, GRADIENT, STATE, SAVED, TEMPORARY = range(6)
INPUT, OUTPUT, UNSHARDED = range(6, 9)

GATHERS: Final = frozenset(
    {"fsdp.all_gather_copy_in.default", "fsdp.split_with_sizes_copy.default"}
)
"""Calls whose results hold whole parameters of ``fully_shard``, for a while.

Source: ``_fsdp_collectives.py`` of torch 2.13.
"""

GATHER_OF_PARAMETERS: Final = frozenset(
    {
        "c10d._allgather_base_.default",
        "c10d_functional.all_gather_into_tensor.default",
        "_c10d_functional.all_gather_into_tensor.default",
        "_c10d_functional.all_gather_into_tensor_out.default",
    }
)
"""Calls whose results hold whole parameters if they read a parameter: those of
``FullyShardedDataParallel`` and of a DTensor."""


def find_categories(
    program: "Program", modules: Iterable["ModuleNode"], columns: Columns, lives: Lives
) -> Integers:
    """Return for each storage the index of its category; the last that fits wins."""
    facts = program.facts
    owned, died = find_owned(facts, modules), read_deaths(program)[:, 1]
    accumulating = [call for call, _ in facts.accumulated]
    # ``fully_shard`` joins gradients to send them.
    is_joined = find_calls(program, columns, {"fsdp.chunk_cat.default"})
    kinds = np.full(columns.n_storages, TEMPORARY)
    for category, storages in (
        (OUTPUT, lives.storage[~np.isin(lives.storage, died)]),
        (SAVED, find_saved(program, columns, lives, owned.trained)),
        (INPUT, find_data(columns, lives)),
        (GRADIENT, facts.assigned),
        (GRADIENT, find_made(columns, accumulating)),
        (GRADIENT, columns.storage[columns.is_written & is_joined[columns.call]]),
        (STATE, facts.states),
        (BUFFER, owned.buffers),
        (PARAMETER, owned.parameters),
        (UNSHARDED, find_unsharded(program, columns, owned.parameters)),
    ):
        kinds[np.asarray(storages, np.int64)] = category
    return kinds


class Owned(NamedTuple):
    """Storages of modules and optimizers.

    Attributes:
        parameters: Of parameters, and of other tensors that an optimizer steps.
        trained: Of leaves that require gradients.
    """

    parameters: Integers
    buffers: Integers
    trained: Integers


def find_owned(facts: "StorageFacts", modules: Iterable["ModuleNode"]) -> Owned:
    """Return the storages of modules, also of those that are gone."""
    tensors = walk_tensors(modules)
    held = [(tensor, storage) for _, tensor, storage in tensors if not tensor.is_lazy]
    buffers = {storage for tensor, storage in held if tensor.kind == "buffer"}
    buffers.update(facts.buffers)
    parameters = {storage for tensor, storage in held if tensor.kind == "parameter"}
    parameters.update(facts.parameters, facts.optimized)
    frozen = {storage for tensor, storage in held if not tensor.requires_grad}
    trained = parameters - frozen | {storage for _, storage in facts.accumulated}
    groups = (parameters, buffers, trained)
    return Owned(*(np.fromiter(group, np.int64) for group in groups))


def find_data(columns: Columns, lives: Lives) -> Integers:
    """Return storages that no call made, or one without inputs outside of modules."""
    n_read = np.bincount(columns.call[~columns.is_made], minlength=columns.n_calls)
    is_factory = (columns.phase == PHASES.index("other")) & (n_read == 0)
    used = np.flatnonzero(lives.first_tensor >= 0)
    first = lives.first_tensor[used]
    is_data = ~columns.is_made[first] | is_factory[columns.call[first]]
    unused = np.flatnonzero(lives.first_tensor < 0)
    return np.concatenate((unused, used[is_data]))


def find_unsharded(
    program: "Program", columns: Columns, parameters: Integers
) -> Integers:
    """Return the storages that hold parameters gathered from all ranks."""
    is_chosen = find_calls(program, columns, GATHERS)
    may_gather = find_calls(program, columns, GATHER_OF_PARAMETERS)
    if not (is_chosen | may_gather).any():
        return columns.storage[:0]
    is_parameter = np.isin(columns.storage, parameters)
    reads = np.zeros(columns.n_calls, np.bool_)
    reads[columns.call[is_parameter & ~columns.is_written]] = True
    is_chosen |= reads & may_gather
    is_result = (columns.is_made | columns.is_written) & ~is_parameter
    return columns.storage[is_result & is_chosen[columns.call]]


def find_calls(program: "Program", columns: Columns, ops: Collection[str]) -> Flags:
    """Return for each call whether it is of one of some operators."""
    is_meant = [signature.op in ops for signature in program.signatures]
    return np.asarray(is_meant, np.bool_)[columns.signature]


def find_made(columns: Columns, calls: Iterable[int]) -> Integers:
    """Return the storages that some calls returned."""
    is_chosen = np.zeros(columns.n_calls, np.bool_)
    is_chosen[list(calls)] = True
    return columns.storage[columns.is_made & is_chosen[columns.call]]
