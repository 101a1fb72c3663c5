"""Real tensors that meet meta tensors: each is a constant, whose values are known.

It happens below autograd, where an operator is met that mixes both: one more look at
the arguments of each call would be felt. Autograd compares the devices of gradients
and leaves: a real leaf that wants a gradient is *lent* before (:mod:`lending`), and
the call is made again; so is one that torch refuses before any operator.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MetaMagicError, MixedDeviceError
from meta_magic.recording.identities.call_sites import CallSites
from meta_magic.recording.identities.device_plan import META, find_placement
from meta_magic.recording.identities.live_versions import plan_positions, read_version
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.storages import NamedPlaces, sum_small
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.named_devices import is_way_out
from meta_magic.recording.intercept.real_tensors.capturable import (
    READS_REAL,
    MustLend,
    count_real,
    is_sizes,
    is_wanted,
    may_write,
    replace,
    wants_gradient,
)
from meta_magic.recording.intercept.real_tensors.real_names import (
    RealNames,
    is_of_module,
    name_of_real,
)
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.signatures.entries import Args, Given, Inputs, Kwargs, OpTable
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    SPARSE,
    address_of_storage,
    build_sparse,
    has_coalesced,
    negate_lazily,
    parts_of,
    plan_part,
)


class Known(NamedTuple):
    """What stands for a real sparse tensor.

    Attributes:
        planned: The tensor on meta.
        storages: Those of the positions and values of the real one.
        state: What changes when these are written.
    """

    planned: Tensor
    storages: tuple[weakref.ref[UntypedStorage], ...]
    state: tuple[object, ...]


class SparseConstants:
    """Makes constants of real sparse tensors.

    Args:
        registry: Numbers of tensors.
        constants: Keeps what the real ones hold.
    """

    def __init__(self, registry: TensorRegistry, constants: Constants) -> None:
        self._registry = registry
        self._constants = constants
        self._known: dict[tuple[object, ...], Known] = {}

    def are_due(self, given: Given, reals: Inputs, *, is_mixed: bool) -> bool:
        """Whether real sparse tensors among the arguments of an operator are lifted.

        Also alone: where they go to meta, and in a backward pass, which would make a
        real one anew each time.

        Args:
            given: The arguments.
            reals: Those of its tensors that are real.
            is_mixed: Whether others are on meta.
        """
        sparse = [tensor for tensor, _ in reals if is_real_sparse(tensor)]
        if not sparse or any(map(wants_gradient, sparse)):
            return False
        is_moved = given.kwargs.get("device") == META
        is_backward = current_autograd_node() is not None
        are_known = is_backward and any(map(self._find, sparse))
        return is_mixed or is_moved or are_known

    def lift(self, real: Tensor, count: Callable[..., object]) -> Tensor:
        """Return the sparse tensor on meta that has the elements of a real one.

        Args:
            real: The real one.
            count: Notes one that is met for the first time.
        """
        known = self._find(real)
        if known is None:
            count(real, is_named=True)
            known = self._make(real)
            self._known[find_key(real)] = known
        return known.planned.detach()

    def _find(self, real: Tensor) -> Known | None:
        known = self._known.get(find_key(real))
        if known is None or known.state != find_state(real):
            return None
        parts = parts_of(real)
        is_same = all(
            ref() is part.untyped_storage()
            for ref, part in zip(known.storages, parts, strict=True)
        )
        return known if is_same else None

    def _make(self, real: Tensor) -> Known:
        self._known = {
            key: known
            for key, known in self._known.items()
            if all(ref() is not None for ref in known.storages)
        }
        parts, copy = parts_of(real), real.detach().clone()
        *positions, values = parts_of(copy)
        planned = build_sparse(
            real,
            [*map(plan_positions, positions), plan_part(values)],
            is_coalesced=has_coalesced(real),
        )
        self._registry.note_deaths()
        ref = self._registry.storage_of(planned)
        if ref is not None:
            self._constants.keep_sparse(ref, copy)
        storages = tuple(weakref.ref(part.untyped_storage()) for part in parts)
        return Known(planned, storages, find_state(real))

    def clear(self) -> None:
        """Let go of what stands for real tensors."""
        self._known.clear()


def is_real_sparse(tensor: Tensor) -> bool:
    """Whether a tensor is a real sparse one that could be a constant."""
    is_real = tensor.layout in SPARSE and not tensor.is_meta
    return is_real and type(tensor) in (Tensor, nn.Parameter)


def find_key(real: Tensor) -> tuple[object, ...]:
    """Return what tells a real sparse tensor from others that live."""
    addresses = [address_of_storage(part.untyped_storage()) for part in parts_of(real)]
    shapes = [part.shape for part in parts_of(real)]
    return (*addresses, *shapes, real.shape, real.layout, has_coalesced(real))


def find_state(real: Tensor) -> tuple[object, ...]:
    """Return what changes when a real sparse tensor is written."""
    sums = [sum_small(part.untyped_storage()) for part in parts_of(real)]
    return read_version(real), *sums


class Lifted(NamedTuple):
    """A real storage on meta.

    Attributes:
        real: It itself.
        base: Its bytes on meta.
        version: How often it had been written.
        checksum: Of its bytes; None if they are many.
        is_lent: Whether writes of it are planned.
    """

    real: weakref.ref[UntypedStorage]
    base: Tensor
    version: int
    checksum: int | None
    is_lent: bool

    def is_unchanged(self, real: Tensor, storage: UntypedStorage) -> bool:
        """Whether a real storage holds what it held when it was lifted."""
        if self.is_lent:  # what the cell writes is planned, and on meta
            return True
        if self.checksum is not None:
            return self.checksum == sum_small(storage)
        return self.version == read_version(real)


class Lifting:
    """Makes constants of real tensors.

    Args:
        registry: Numbers of tensors.
        constants: Keeps what the real ones hold.
        diagnostics: Takes a note on them.
        places: Which call of torch is running.

    Attributes:
        lend: Has a leaf be on meta until the cell ends.
        names: Notes what is lifted.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        constants: Constants,
        diagnostics: Diagnostics,
        places: CallSites,
    ) -> None:
        self.lend: Callable[[Tensor], None] = refuse_to_lend
        self._registry = registry
        self._constants = constants
        self._places = places
        self._lifted_by_address: dict[int, Lifted] = {}
        self._sparse = SparseConstants(registry, constants)
        self.names = RealNames(diagnostics)

    # Operators

    @property
    def has_any(self) -> bool:
        """Whether anything stands for a real tensor."""
        return bool(self._lifted_by_address)

    def is_due(self, table: OpTable, given: Given, reals: Inputs) -> bool:
        """Whether real tensors among the arguments of an operator are to be lifted.

        Args:
            table: The operator.
            given: Its arguments.
            reals: Those of its tensors that are real.

        Raises:
            MixedDeviceError: It would write a real tensor that is a constant.
            MustLend: A gradient is wanted of one.
        """
        is_mixed = len(reals) < len(given.inputs)
        if self._sparse.are_due(given, reals, is_mixed=is_mixed):
            return True
        if table.written:
            self._refuse_writes(table, given, is_mixed=is_mixed)
        if not is_mixed:
            return False
        found = [t for t, _ in reals if is_wanted(t, table)]
        wanting = [t for t in found if wants_gradient(t)]
        if wanting and current_autograd_node() is None:
            raise MustLend(wanting)
        return bool(found) and table.name not in READS_REAL

    def lift_arguments(self, value: Any, table: OpTable) -> Any:
        """Return arguments of an operator with meta tensors for the real ones."""
        return replace(
            value, lambda t: is_wanted(t, table) or is_real_sparse(t), self.lift
        )

    def _refuse_writes(self, table: OpTable, given: Given, *, is_mixed: bool) -> None:
        """Refuse to write a real tensor that is a constant, or what is not known."""
        values = dict(zip(table.arguments, given.args, strict=False)) | {**given.kwargs}
        written = [value for name, value in values.items() if name in table.written]
        for tensor in tensors_in(written):
            if is_wanted(tensor) and (is_mixed or self._is_kept(tensor)):
                self.refuse_write(table.name, tensor)

    def refuse_write(self, what: str, real: Tensor, advice: str = "") -> NoReturn:
        """Refuse to change a real tensor by something that is on meta.

        Raises:
            MixedDeviceError: It names the tensor, and says what to do.
        """
        name = name_of_real(real)
        subject = "the model" if is_of_module(real, name) else "it"
        way = "in the cell" if self.is_from_outside(real) else "of meta tensors"
        raise MixedDeviceError(
            f"{what} would change your real "
            f"{'tensor' if name is None else f'`{name}`'}; build {subject} {way}, "
            f"{advice}or lift a copy with `mm.meta_like`"
        )

    def is_from_outside(self, tensor: Tensor) -> bool:
        """Whether a tensor is real, can be lifted, and was not made in the cell."""
        if not is_wanted(tensor):
            return False
        self._registry.note_deaths()
        return self._registry.find_storage(tensor) not in self._constants.made

    def _is_kept(self, tensor: Tensor) -> bool:
        """Whether a real tensor from outside counts as a constant here."""
        known = self._find(tensor.untyped_storage())
        running = self._places.running
        if known is None or (running is not None and is_way_out(running.frame)):
            return False
        return known.is_lent or self.is_from_outside(tensor)

    # Functions

    def prepare(
        self, error: Exception, func: Any, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs] | None:
        """Return arguments with which a function that failed is to be called again.

        None if that would not help, or would write what is real.
        """
        if isinstance(error, MustLend):
            return (args, kwargs) if self._lend_leaves(args, kwargs, error) else None
        is_of_torch = not isinstance(error, MetaMagicError)
        is_due = is_of_torch and ("device" in str(error) or "meta" in str(error))
        n_real = count_real(args, kwargs) if is_due else 0
        again = self.lift_mixed(func, args, kwargs) if n_real else (args, kwargs)
        return again if count_real(*again) < n_real else None

    def lift_mixed(self, func: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return arguments of a function all on meta, if some are."""
        with DisableTorchFunction():
            met = tensors_in(args, kwargs)
            n_real = count_real(met)
            if n_real in (0, len(met)) or may_write(func, kwargs):
                return args, kwargs
            self._lend_leaves(args, kwargs)
            wanted = {
                id(t)
                for t in met
                if (is_wanted(t) and not is_sizes(func, t)) or is_real_sparse(t)
                if not wants_gradient(t)
            }
            lifted = replace((args, kwargs), lambda t: id(t) in wanted, self.lift)
            return lifted[0], lifted[1]

    def _lend_leaves(
        self, args: Args, kwargs: Kwargs, error: MustLend | None = None
    ) -> bool:
        """Lend the leaves that want a gradient; return whether there were any."""
        with DisableTorchFunction():
            met = tensors_in(args, kwargs, error.tensors if error else ())
            leaves = [t for t in met if is_wanted(t) and t.is_leaf]
            leaves = [t for t in leaves if wants_gradient(t)]
            for leaf in leaves:
                self.lend(leaf)
            return bool(leaves)

    # Tensors

    def take(self, tensor: Tensor) -> Tensor:
        """Return what stands on meta for a tensor that a plan moves.

        Raises:
            MustLend: Autograd would send a gradient to what real operators made.
        """
        with DisableTorchFunction():
            if is_wanted(tensor) and not wants_gradient(tensor):
                if not isinstance(tensor, nn.Parameter):
                    return self.lift(tensor)
                self.lend(tensor)
            elif is_wanted(tensor):
                self.lend(tensor)
                if not tensor.is_meta:
                    raise MustLend([tensor])
            return tensor

    def lift(
        self,
        real: Tensor,
        *,
        is_lent: bool = False,
        name: str | None = None,
        is_noted: bool = True,
    ) -> Tensor:
        """Return a meta tensor that has the values of a real one.

        Args:
            real: That; views of one storage share theirs.
            is_lent: Whether it stands for the real one until the cell ends.
            name: How the cell calls one that is lent, if that is known.
            is_noted: Whether a note counts it.
        """
        with (
            DisableTorchFunction(),
            DisableTorchDispatch(),
            torch.inference_mode(mode=False),
            torch.no_grad(),
        ):
            self._registry.note_deaths()
            if is_real_sparse(real):
                return self._sparse.lift(real, self.names.count)
            storage = real.untyped_storage()
            known = self._find(storage)
            if known is None or not known.is_unchanged(real, storage):
                if is_noted:
                    name = self.names.count(real, is_named=not is_lent) or name
                known = self._make(real, storage, name, is_lent=is_lent)
            if is_lent and not known.is_lent:
                known = known._replace(is_lent=True)
            self._lifted_by_address[address_of_storage(storage)] = known
            made = torch.empty(0, dtype=real.dtype, device=META)
            given = real.storage_offset(), real.shape, real.stride()
            made.set_(known.base.untyped_storage(), *given)
            made = made.conj() if real.is_conj() else made
            return negate_lazily(made) if real.is_neg() else made

    def lift_storage(self, storage: UntypedStorage) -> UntypedStorage:
        """Return a storage on meta with the content of a real one that nobody has."""
        with DisableTorchFunction(), DisableTorchDispatch():
            real = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            return self._make(real, storage, None, is_lent=False).base.untyped_storage()

    def _find(self, storage: UntypedStorage) -> Lifted | None:
        """Return what was made of a real storage."""
        known = self._lifted_by_address.get(address_of_storage(storage))
        return known if known is not None and known.real() is storage else None

    def _make(
        self, real: Tensor, storage: UntypedStorage, name: str | None, *, is_lent: bool
    ) -> Lifted:
        """Make a storage on meta a constant."""
        self._forget_dead()
        base = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META)
        self._registry.note_deaths()  # its address may have been another's
        NamedPlaces.are_there = True  # of real tensors they are known
        ref = self._registry.storage_of(base, find_placement(real))
        if ref is not None:
            self._constants.keep_lifted(ref, storage, name, is_lent=is_lent)
        checksum = None if is_lent else sum_small(storage)
        version = read_version(real)
        return Lifted(weakref.ref(storage), base, version, checksum, is_lent)

    def _forget_dead(self) -> None:
        """Let go of what was made of storages that are gone."""
        lifted = self._lifted_by_address
        for address in [a for a, known in lifted.items() if known.real() is None]:
            del lifted[address]

    def finish(self) -> None:
        """Let go of what was lifted, and note it."""
        self._lifted_by_address.clear()
        self._sparse.clear()
        self.names.finish()


def refuse_to_lend(tensor: Tensor) -> None:
    """Lend nothing, where nobody can."""
