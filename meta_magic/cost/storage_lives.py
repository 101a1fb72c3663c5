"""The storages of a program: when each is alive, with how many bytes, and for what.

Parameters, gradients and optimizer states were noted while the block was recorded. What
autograd saved is found in what backward calls read; where no backward pass was
recorded, the call is made again on meta tensors, and a hook sees what is saved. Read
``find_lives``, ``find_categories`` and ``find_saved``.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.torch_private.replacing import KernelsWithoutDynamo
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.modules import walk_tensors
from meta_magic.trace.program import MODULE_HEADER, Program, find_firsts, find_on_meta
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Geometry,
    OpaqueArgument,
    TensorArgument,
)

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program_facts import StorageFacts
    from meta_magic.trace.signature import Signature


SEED: Final = "aten.ones_like.default"
"""The operator that makes the first gradient of a backward pass."""


def find_saved(
    program: "Program", columns: Columns, lives: "Lives", trained: Integers
) -> Integers:
    """Return the storages that autograd saved."""
    is_saved = np.zeros(columns.n_storages, np.bool_)
    is_saved[find_read_in_backward(program, columns, lives)] = True
    is_saved[find_read_again(program, columns, lives)] = True
    is_trained = np.zeros(columns.n_storages, np.bool_)
    is_trained[trained] = True
    chosen = find_undecided(program, columns, lives, is_saved | is_trained)
    is_saved[ask_autograd(program, columns, chosen, is_trained)] = True
    return np.flatnonzero(is_saved)


def find_read_in_backward(
    program: "Program", columns: Columns, lives: "Lives"
) -> Integers:
    """Return the storages of forward calls that backward calls read.

    A backward call reads inputs and outputs of its forward call. It also reads storages
    of other forward calls, where a user's own autograd function saved them.
    """
    is_backward = columns.phase == PHASES.index("backward")
    reads = np.flatnonzero(is_backward[columns.call] & ~columns.is_made)
    storages, calls = columns.storage[reads], columns.call[reads]
    is_of_forward = find_touched(columns, columns.forward[calls], storages)
    seeds = np.asarray([s.op == SEED for s in program.signatures], np.bool_)
    is_late = is_backward | seeds[columns.signature]
    maker = columns.call[lives.first_tensor[storages]]
    saved: Integers = storages[is_of_forward | ~is_late[maker]]
    return saved


def find_touched(columns: Columns, calls: Integers, storages: Integers) -> Flags:
    """Return for each pair (call or -1, storage) whether the call has the storage.

    Step n compares the n-th tensor of all remaining calls.
    """
    is_touched = np.zeros(len(calls), np.bool_)
    rest = np.flatnonzero(calls >= 0)
    at, end = columns.first[calls[rest]], columns.first[calls[rest] + 1]
    while len(rest):
        within = at < end
        rest, at, end = rest[within], at[within], end[within]
        is_same = columns.storage[at] == storages[rest]
        is_touched[rest[is_same]] = True
        rest, at, end = rest[~is_same], at[~is_same] + 1, end[~is_same]
    return is_touched


def find_read_again(program: "Program", columns: Columns, lives: "Lives") -> Integers:
    """Return the forward storages that calls repeated by checkpointing read."""
    rows = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    is_again = np.zeros(columns.n_calls, np.bool_)
    for first, end in rows[list(program.facts.repeated), 4:6]:
        is_again[first:end] = True
    reads = np.flatnonzero(is_again[columns.call] & ~columns.is_made)
    storages = columns.storage[reads]
    is_late = is_again | (columns.phase == PHASES.index("backward"))
    saved: Integers = storages[~is_late[columns.call[lives.first_tensor[storages]]]]
    return saved


def find_undecided(
    program: "Program", columns: Columns, lives: "Lives", is_known: Flags
) -> Integers:
    """Return the calls that may have saved tensors which no recorded call reads.

    There may be no backward pass, or it may have needed sizes alone.
    """
    calls = np.frombuffer(program.facts.differentiated, np.uint32)
    is_differentiated = np.zeros(columns.n_calls, np.bool_)
    is_differentiated[calls] = True
    # If one entry is assigned several times, the last number stays: the first call.
    back, tied = np.arange(columns.n_calls), np.flatnonzero(columns.forward >= 0)[::-1]
    back[columns.forward[tied]] = tied
    end = np.zeros(columns.n_storages, np.int64)
    np.maximum.at(end, lives.storage, lives.stop)
    is_open = is_differentiated[columns.call] & ~is_known[columns.storage]
    is_open &= end[columns.storage] > back[columns.call]
    return np.flatnonzero(np.bincount(columns.call[is_open]))


def ask_autograd(
    program: "Program", columns: Columns, calls: Integers, is_trained: Flags
) -> Integers:
    """Return the storages that autograd saves of some calls, by making them again."""
    first, is_needed = columns.first, is_trained.copy()
    differentiated = np.zeros(columns.n_calls, np.bool_)
    differentiated[np.frombuffer(program.facts.differentiated, np.uint32)] = True
    is_needed[columns.storage[differentiated[columns.call] & columns.is_made]] = True
    calls_by_kind = defaultdict[tuple[int, tuple[bool, ...]], list[int]](list)
    for call in calls.tolist():
        number = int(columns.signature[call])
        n_inputs = len(program.signatures[number].inputs)
        read = columns.storage[first[call] : first[call] + n_inputs]
        calls_by_kind[number, tuple(is_needed[read].tolist())].append(call)
    found = [
        columns.storage[first[alike] + slot]
        for (number, needed), alike in calls_by_kind.items()
        for slot in find_saved_slots(program.signatures[number], needed)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


ADDMM: Final = "aten.addmm.default"
"""Its answer is known: its meta kernel would import sympy, only for this question."""


def find_saved_slots(signature: "Signature", needed: Sequence[bool]) -> list[int]:
    """Return which tensors autograd saves of a call, by making it on meta.

    ``needed`` says which inputs require a gradient. The result has indices of inputs,
    and of outputs after them; [] if the call cannot be made.
    """
    if signature.op == ADDMM:
        return [slot for slot, other in ((1, 2), (2, 1)) if needed[other]]
    saved: list[Tensor] = []
    with (
        WithoutModes(),
        KernelsWithoutDynamo(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        try:
            inputs = [*map(make_input, signature.inputs, needed)]
            with torch.autograd.graph.saved_tensors_hooks(saved.append, drop):
                returned = call(signature, inputs)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return []  # an operator of a library that is gone, or without meta kernel
        outputs = tensors_in(returned)
        kept = {*map(find_address, saved)} - {None}
        addresses = [*map(find_address, (*inputs, *outputs))]
    return [slot for slot, address in enumerate(addresses) if address in kept]


def find_address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage; None for one made of others."""
    if tensor.layout is not torch.strided:
        return None
    address: int = address_of_storage(tensor.untyped_storage())
    return address


def drop(_: object) -> Tensor:
    """Unpack a saved tensor: never called, as there is no backward pass."""
    raise NotImplementedError


def tensors_in(returned: object) -> list[Tensor]:
    """Return the tensors that an operator returned, in order."""
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [part for part in parts if isinstance(part, Tensor)]


def make_input(geometry: Geometry, is_needed: bool) -> Tensor:  # noqa: FBT001  of a map
    """Return a meta tensor like an input, on a storage of its own."""
    if geometry.stride is None:
        raise TypeError(f"a tensor of {geometry.layout} is made of others")
    leaf = torch.empty_strided(
        geometry.shape, geometry.stride, dtype=geometry.dtype, device="meta"
    )
    can_have = geometry.dtype.is_floating_point or geometry.dtype.is_complex
    # A view: an operator that writes its input would refuse a leaf.
    return leaf.requires_grad_().view_as(leaf) if is_needed and can_have else leaf


def call(signature: "Signature", inputs: Sequence[Tensor]) -> Any:
    """Call an operator on other tensors."""
    namespace, name, overload = signature.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    arguments = {key: fill(value, inputs) for key, value in signature.arguments}
    return operator(**arguments)


def fill(value: object, inputs: Sequence[Tensor]) -> object:
    """Return an argument with its tensors filled in."""
    if isinstance(value, TensorArgument):
        return inputs[value.index]
    if isinstance(value, tuple):
        return [fill(item, inputs) for item in value]
    if isinstance(value, OpaqueArgument):
        return {NAN: float("nan"), NEGATIVE_NAN: -float("nan")}.get(value)
    return value


SETITEM: Final = "torch.Tensor.__setitem__"
NUMPY: Final = "torch.Tensor.numpy"
MAX_NUMBER_NBYTES: Final = 16
"""Bytes of a complex number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lives:
    """Stretches of time: calls between which a storage has a constant number of bytes.

    Most storages have one stretch; one that is resized has several.

    Attributes:
        storage: For each stretch its storage.
        nbytes: For each stretch its bytes.
        start: For each stretch the first call after which it is alive.
        stop: For each stretch the first call after which it is not; the number of all
            calls if the storage outlived them.
        first_tensor: For each storage the first tensor on it, as an index into the
            columns; -1 if no call read or made one.
    """

    storage: Integers
    nbytes: Integers
    start: Integers
    stop: Integers
    first_tensor: Integers


def find_lives(program: Program, columns: Columns) -> Lives:
    """Return all storages' stretches; older ones begin at the call that reads them."""
    first = find_firsts(columns.storage, columns.n_storages)
    rows = find_plain(program, columns, first)
    changes = find_changes(program, columns, rows[:, 1])
    is_plain = first >= 0
    is_plain[list(changes)] = False
    others = [
        (storage, *row)
        for storage, sizes in changes.items()
        for row in list_stretches(rows[storage], sizes)
    ]
    more = np.asarray(others, np.int64).reshape(-1, 4)
    storage, nbytes, start, stop = np.concatenate((rows[is_plain], more)).T
    # A recording copies the values for x.numpy(); on the CPU it is the tensor's memory.
    used, tensors = find_used_by(NUMPY, program, columns, first)
    arrays = used[columns.is_made[tensors]].tolist()
    is_without = np.isin(storage, [*find_on_meta(program), *arrays])
    return Lives(
        storage=storage,
        nbytes=np.where(is_without, 0, nbytes),
        start=start,
        stop=np.maximum(start, stop),
        first_tensor=first,
    )


def order_stretches(lives: Lives) -> Integers:
    """Return the order of stretches by storage, then by start."""
    order: Integers = np.lexsort((lives.start, lives.storage))
    return order


def find_plain(program: Program, columns: Columns, first: Integers) -> Integers:
    """Return (storage, bytes, start, stop) of each storage, resizing ignored."""
    nbytes = np.zeros(columns.n_storages, np.int64)
    start = np.full(columns.n_storages, columns.n_calls)
    is_used = first >= 0
    nbytes[is_used] = columns.nbytes[first[is_used]]
    start[is_used] = columns.call[first[is_used]]
    # In x[i] = 7.0 torch makes a tensor of the number before it takes the part x[i],
    # and only later an operator reads the number.
    used, tensors = find_used_by(SETITEM, program, columns, first)
    is_number = ~columns.is_made[tensors] & (
        columns.nbytes[tensors] <= MAX_NUMBER_NBYTES
    )
    for storage in used[is_number]:
        while columns.goes_on[start[storage]]:
            start[storage] -= 1
    for storage, known in program.nbytes_by_storage:
        nbytes[storage] = known
    stop = np.full(columns.n_storages, columns.n_calls)
    deaths = read_deaths(program)
    stop[deaths[:, 1]] = deaths[:, 0]
    return np.stack((np.arange(columns.n_storages), nbytes, start, stop), axis=1)


def read_deaths(program: Program) -> Integers:
    """Return pairs (number of calls before a storage was freed, storage)."""
    words = np.frombuffer(program.deaths, np.uint32)
    return words.astype(np.int64).reshape(-1, 2)


def find_used_by(
    function: str, program: Program, columns: Columns, first: Integers
) -> tuple[Integers, Integers]:
    """Return the storages that a function used first, and their first tensors."""
    is_of = [site.function == function for site in program.call_sites]
    is_used = np.asarray([*is_of, False], np.bool_)[columns.call_site]
    used = np.flatnonzero(first >= 0)
    used = used[is_used[columns.call[first[used]]]]
    return used, first[used]


def find_changes(
    program: Program, columns: Columns, nbytes: Integers
) -> dict[int, list[tuple[int, int, bool]]]:
    """Return by storage the changes of its bytes: by no operator, or by growing.

    Each is (call, bytes from then on, whether they are a lower bound), in order.
    """
    changes: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for call, storage, size in program.facts.sizes:
        changes[storage].append((call, size, False))
    grown = columns.is_made & (columns.nbytes > nbytes[columns.storage])
    resized = np.isin(columns.storage, list(changes)) & columns.is_made
    for tensor in np.flatnonzero(grown | resized):
        storage = int(columns.storage[tensor])
        change = int(columns.call[tensor]), int(columns.nbytes[tensor]), True
        changes[storage].append(change)
    return {storage: sorted(c, key=lambda c: c[0]) for storage, c in changes.items()}


def list_stretches(
    row: Integers, changes: list[tuple[int, int, bool]]
) -> list[tuple[int, int, int]]:
    """Return (bytes, first call, call after the last) of one storage.

    ``row`` is that of :func:`find_plain`.
    """
    _, nbytes, start, stop = row.tolist()
    if not changes[0][2] and changes[0][0] <= start:
        start, nbytes, _ = changes[0]
    stretches = []
    for call, size, is_at_least in changes:
        other = max(size, nbytes) if is_at_least else size
        if other != nbytes:
            stretches.append((nbytes, start, call))
            start, nbytes = call, other
    return [*stretches, (nbytes, start, stop)]


def add_up(
    lives: Lives, n_calls: int, is_chosen: Flags, nbytes: Integers | None = None
) -> Integers:
    """Return for each call the bytes of the chosen stretches right after it.

    ``nbytes`` are the bytes of each stretch; None for ``lives.nbytes``.
    """
    nbytes = (lives.nbytes if nbytes is None else nbytes)[is_chosen]
    change = np.zeros(n_calls + 1, np.int64)
    np.add.at(change, lives.start[is_chosen], nbytes)
    np.subtract.at(change, lives.stop[is_chosen], nbytes)
    return np.cumsum(change)[:n_calls]


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
