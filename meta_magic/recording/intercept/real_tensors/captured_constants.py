"""Capture real tensors used with meta tensors: each is a constant with known values.

The dispatch mode captures where an operator mixes both (``is_due``, then
``capture_arguments``): to check the arguments of every call before would be slow.
Autograd compares the devices of gradients and leaves, so a real leaf that wants a
gradient is borrowed instead (``borrowed_modules``), and the call is made again. So is a
call that torch refuses before it reaches any operator (``prepare``).
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.errors import MetaMagicError, MixedDeviceError
from meta_magic.recording.identities.device_plan import (
    find_placement,
    is_in_cpu_context,
)
from meta_magic.recording.identities.origins import plan_positions, read_version
from meta_magic.recording.identities.storages import NamedDevices, sum_small
from meta_magic.recording.identities.tensors import rebuild, tensors_in
from meta_magic.recording.intercept.real_tensors.capturable import (
    READS_REAL,
    MustBorrow,
    RealNames,
    count_real,
    is_capturable,
    is_sizes,
    may_write,
    name_of_real,
    wants_gradient,
)
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Given, Inputs, Kwargs, OpTable
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    SPARSE,
    address_of_storage,
    build_sparse,
    current_autograd_node,
    has_coalesced,
    negate_lazily,
    parts_of,
    plan_part,
)
from meta_magic.trace.signature import META


class CapturedStorage(NamedTuple):
    """A storage on meta that has the content of a real storage.

    Attributes:
        base: All bytes of the storage on meta.
        version: The version counter of the real tensor when it was captured.
        checksum: The checksum of the real bytes; None if there are many.
        is_borrowed: Whether the cell may write the storage on meta.
    """

    real: weakref.ref[UntypedStorage]
    base: Tensor
    version: int
    checksum: int | None
    is_borrowed: bool

    def is_unchanged(self, real: Tensor, storage: UntypedStorage) -> bool:
        """Whether the real storage has the content that was captured."""
        if self.is_borrowed:  # the cell writes the storage on meta, not the real one
            return True
        if self.checksum is not None:
            return self.checksum == sum_small(storage)
        return self.version == read_version(real)


class ConstantCapture:
    """Makes constants of real tensors, and one note on all of them."""

    def __init__(self, write: Writers) -> None:
        self.borrow: Callable[[Tensor], None] = lambda _: None
        self.registry = write.registry
        self._constants, self._sites = write.constants, write.sites
        self._captured_by_address: dict[int, CapturedStorage] = {}
        self._sparse = SparseConstants(write)
        self.names = RealNames(write.diagnostics)

    # Operators

    @property
    def has_any(self) -> bool:
        """Whether any dense tensor is captured."""
        return bool(self._captured_by_address)

    def is_due(self, table: OpTable, given: Given, reals: Inputs) -> bool:
        """Whether real arguments of an operator must be captured before it runs."""
        is_mixed = len(reals) < len(given.inputs)
        if self._sparse.are_due(given, reals, is_mixed=is_mixed):
            return True
        if table.written:
            self._refuse_writes(table, given, is_mixed=is_mixed)
        if not is_mixed:
            return False
        found = [t for t, _ in reals if is_capturable(t, table)]
        wanting = [t for t in found if wants_gradient(t)]
        if wanting and current_autograd_node() is None:
            raise MustBorrow(wanting)
        return bool(found) and table.name not in READS_REAL

    def capture_arguments(self, value: Any, table: OpTable) -> Any:
        """Return arguments of an operator with meta tensors for the real ones."""

        def replace(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            is_due = is_capturable(value, table) or is_real_sparse(value)
            return self.capture(value) if is_due else value

        return rebuild(value, replace)

    def _refuse_writes(self, table: OpTable, given: Given, *, is_mixed: bool) -> None:
        """Refuse to write a real tensor that is a constant, or to write meta values."""
        for tensor in table.find_written(given):
            if is_capturable(tensor) and (is_mixed or self._is_constant(tensor)):
                self.refuse_write(table.name, tensor)

    def refuse_write(self, what: str, real: Tensor, advice: str = "") -> NoReturn:
        """Refuse to change a real tensor by something that is on meta."""
        name = name_of_real(real)
        is_of_module = isinstance(real, nn.Parameter) or "." in (name or "")
        subject = "the model" if is_of_module else "it"
        way = "in the cell" if self.is_from_outside(real) else "of meta tensors"
        raise MixedDeviceError(
            f"{what} would change your real "
            f"{'tensor' if name is None else f'`{name}`'}; build {subject} {way}, "
            f"{advice}or make a copy with `mm.meta_like`"
        )

    def is_from_outside(self, tensor: Tensor) -> bool:
        """Whether a tensor can be captured and was made before the cell."""
        if not is_capturable(tensor):
            return False
        self.registry.note_deaths()
        return self.registry.find_storage(tensor) not in self._constants.made

    def _is_constant(self, tensor: Tensor) -> bool:
        """Whether a real tensor from outside counts as a constant here."""
        known = self._find(tensor.untyped_storage())
        running = self._sites.running
        if known is None or (running is not None and is_in_cpu_context(running.frame)):
            return False
        return known.is_borrowed or self.is_from_outside(tensor)

    # Functions

    def prepare(
        self, error: Exception, func: Any, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs] | None:
        """Return arguments with which a function that failed can be called again."""
        if isinstance(error, MustBorrow):
            return (args, kwargs) if self._borrow_leaves(args, kwargs, error) else None
        is_of_torch = not isinstance(error, MetaMagicError)
        is_due = is_of_torch and ("device" in str(error) or "meta" in str(error))
        n_real = count_real(args, kwargs) if is_due else 0
        again = self.capture_mixed(func, args, kwargs) if n_real else (args, kwargs)
        return again if count_real(*again) < n_real else None

    def capture_mixed(
        self, func: Any, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        """Return the arguments of a function all on meta, if some of them are."""
        with DisableTorchFunction():
            tensors = tensors_in(args, kwargs)
            n_real = count_real(tensors)
            if n_real in (0, len(tensors)) or may_write(func, kwargs):
                return args, kwargs
            self._borrow_leaves(args, kwargs)
            wanted = {
                id(t)
                for t in tensors
                if (is_capturable(t) and not is_sizes(func, t)) or is_real_sparse(t)
                if not wants_gradient(t)
            }
            replaced = rebuild(
                (args, kwargs), lambda v: self.capture(v) if id(v) in wanted else v
            )
            return replaced[0], replaced[1]

    def _borrow_leaves(
        self, args: Args, kwargs: Kwargs, error: MustBorrow | None = None
    ) -> bool:
        """Borrow the leaves that want a gradient; return whether there were any."""
        with DisableTorchFunction():
            tensors = tensors_in(args, kwargs, error.tensors if error else ())
            leaves = [t for t in tensors if is_capturable(t) and t.is_leaf]
            leaves = [t for t in leaves if wants_gradient(t)]
            for leaf in leaves:
                self.borrow(leaf)
            return bool(leaves)

    # Tensors

    def take(self, tensor: Tensor) -> Tensor:
        """Return the meta tensor for a real tensor that moves to a planned device."""
        with DisableTorchFunction():
            if not is_capturable(tensor):
                return tensor
            if not (wants_gradient(tensor) or isinstance(tensor, nn.Parameter)):
                return self.capture(tensor)
            self.borrow(tensor)
            if wants_gradient(tensor) and not tensor.is_meta:
                raise MustBorrow([tensor])
            return tensor

    def capture(
        self,
        real: Tensor,
        *,
        is_borrowed: bool = False,
        name: str | None = None,
        is_noted: bool = True,
    ) -> Tensor:
        """Return a meta tensor that has the values of a real one.

        Args:
            is_borrowed: Whether it replaces the real tensor until the cell ends.
            is_noted: Whether the note counts it.
        """
        with (
            DisableTorchFunction(),
            DisableTorchDispatch(),
            torch.inference_mode(mode=False),
            torch.no_grad(),
        ):
            self.registry.note_deaths()
            if is_real_sparse(real):
                return self._sparse.capture(real, self.names.count)
            storage = real.untyped_storage()
            known = self._find(storage)
            if known is None or not known.is_unchanged(real, storage):
                if is_noted:
                    name = self.names.count(real, is_named=not is_borrowed) or name
                known = self._make(real, storage, name, is_borrowed=is_borrowed)
            if is_borrowed and not known.is_borrowed:
                known = known._replace(is_borrowed=True)
            self._captured_by_address[address_of_storage(storage)] = known
            made = torch.empty(0, dtype=real.dtype, device=META)
            given = real.storage_offset(), real.shape, real.stride()
            made.set_(known.base.untyped_storage(), *given)
            made = made.conj() if real.is_conj() else made
            return negate_lazily(made) if real.is_neg() else made

    def capture_storage(self, storage: UntypedStorage) -> UntypedStorage:
        """Return a storage on meta with the content of a real one without a tensor."""
        with DisableTorchFunction(), DisableTorchDispatch():
            real = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            made = self._make(real, storage, None, is_borrowed=False)
            return made.base.untyped_storage()

    def _find(self, storage: UntypedStorage) -> CapturedStorage | None:
        known = self._captured_by_address.get(address_of_storage(storage))
        # The address may belong to another storage by now.
        return known if known is not None and known.real() is storage else None

    def _make(
        self,
        real: Tensor,
        storage: UntypedStorage,
        name: str | None,
        *,
        is_borrowed: bool,
    ) -> CapturedStorage:
        """Make a storage on meta, and keep the real content as its values."""
        captured = self._captured_by_address
        for address in [a for a, known in captured.items() if known.real() is None]:
            del captured[address]
        base = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META)
        self.registry.note_deaths()  # a dead storage may have had the same address
        NamedDevices.exist = True  # the placement of a real tensor is known
        # An operator's row has it; the argument of a module alone has no row.
        is_counted = self._constants.is_known(self.registry.find_storage(real))
        ref = self.registry.storage_of(base, find_placement(real))
        if ref is not None:
            twin = self.registry.storage_of(real) if is_borrowed and is_counted else ref
            if is_counted and twin is not None:  # else its memory would count twice
                self.registry.note_size(twin, 0)
            self._constants.keep(ref, storage, name, is_borrowed=is_borrowed)
        checksum = None if is_borrowed else sum_small(storage)
        held, version = weakref.ref(storage), read_version(real)
        return CapturedStorage(held, base, version, checksum, is_borrowed)

    def finish(self) -> None:
        """Drop the captured storages, and write the note."""
        self._captured_by_address.clear()
        self._sparse.clear()
        self.names.finish()


class CapturedSparse(NamedTuple):
    """A sparse tensor on meta that has the elements of a real one."""

    planned: Tensor
    storages: tuple[weakref.ref[UntypedStorage], ...]
    state: tuple[object, ...]


class SparseConstants:
    """Makes constants of real sparse tensors: torch has no kernel for both devices."""

    def __init__(self, write: Writers) -> None:
        self.registry, self._constants = write.registry, write.constants
        self._captured_by_key: dict[tuple[object, ...], CapturedSparse] = {}

    def are_due(self, given: Given, reals: Inputs, *, is_mixed: bool) -> bool:
        """Whether real sparse arguments of an operator must be captured.

        Also where no argument is on meta: in a move to meta, and in a backward pass,
        which would make a new real tensor each time.
        """
        sparse = [tensor for tensor, _ in reals if is_real_sparse(tensor)]
        if not sparse or any(map(wants_gradient, sparse)):
            return False
        is_moved = given.kwargs.get("device") == META
        is_backward = current_autograd_node() is not None
        are_known = is_backward and any(map(self._find, sparse))
        return is_mixed or is_moved or are_known

    def capture(self, real: Tensor, count: Callable[..., object]) -> Tensor:
        """Return the sparse tensor on meta that has the elements of a real one."""
        known = self._find(real)
        if known is None:
            count(real, is_named=True)
            known = self._make(real)
            self._captured_by_key[find_key(real)] = known
        return known.planned.detach()

    def _find(self, real: Tensor) -> CapturedSparse | None:
        known = self._captured_by_key.get(find_key(real))
        if known is None or known.state != find_state(real):
            return None
        pairs = zip(known.storages, parts_of(real), strict=True)
        is_same = all(ref() is part.untyped_storage() for ref, part in pairs)
        return known if is_same else None

    def _make(self, real: Tensor) -> CapturedSparse:
        pairs = [*self._captured_by_key.items()]
        live = [p for p in pairs if all(ref() is not None for ref in p[1].storages)]
        self._captured_by_key = dict(live)
        parts, copy = parts_of(real), real.detach().clone()
        *positions, values = parts_of(copy)
        new = [*map(plan_positions, positions), plan_part(values)]
        planned = build_sparse(real, new, is_coalesced=has_coalesced(real))
        self.registry.note_deaths()
        ref = self.registry.storage_of(planned)
        if ref is not None:
            self._constants.keep_sparse(ref, copy)
        storages = tuple(weakref.ref(part.untyped_storage()) for part in parts)
        return CapturedSparse(planned, storages, find_state(real))

    def clear(self) -> None:
        """Drop the captured tensors."""
        self._captured_by_key.clear()


def is_real_sparse(tensor: Tensor) -> bool:
    """Whether a tensor is real, sparse, and can be captured."""
    is_real = tensor.layout in SPARSE and not tensor.is_meta
    return is_real and type(tensor) in (Tensor, nn.Parameter)


def find_key(real: Tensor) -> tuple[object, ...]:
    """Return a key that differs between live real sparse tensors."""
    addresses = [address_of_storage(part.untyped_storage()) for part in parts_of(real)]
    shapes = [part.shape for part in parts_of(real)]
    return (*addresses, *shapes, real.shape, real.layout, has_coalesced(real))


def find_state(real: Tensor) -> tuple[object, ...]:
    """Return values that change when a real sparse tensor is written."""
    sums = [sum_small(part.untyped_storage()) for part in parts_of(real)]
    return read_version(real), *sums
