"""The dispatch mode sees every operator: a cache hit takes the fast path, others run.

Without it ``y = x + 1`` would run in a cell and leave no row. Read
``DispatchMode.__torch_dispatch__`` first: each operator comes there. A cache hit needs
no kernel: a kernel on meta takes some 90 us (``torch.add``), a cache hit 8.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from meta_magic.recording.as_device.cpu_kernels import enlarge_storage
from meta_magic.recording.identities.storages import NamedDevices
from meta_magic.recording.intercept.higher_order import Inside
from meta_magic.recording.intercept.kernel_calls import KernelCalls, OperatorCall
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.cache import (
    COUNTED,
    Key,
    SignatureCache,
    build_operator_key,
    derive,
    generalize,
)
from meta_magic.recording.signatures.entries import (
    Args,
    Entry,
    Kind,
    Kwargs,
    OpTable,
    sharing_of,
)
from meta_magic.torch_private.distributed import uses_group
from meta_magic.torch_private.modes import (
    DisableTorchFunction,
    TorchDispatchMode,
    function_mode_stack,
    n_dispatch_modes,
)
from meta_magic.trace.program import HEADER

if TYPE_CHECKING:
    from meta_magic.recording.intercept.shared_memory import SharedMemory

# Plain integers: the attribute of an enum costs more than the comparison.
RUN, PURE, PURE_MANY, VIEW, VIEW_MANY, IN_PLACE, PURE_WIDE = map(int, Kind)

ALONE: Final = frozenset({PURE, PURE_MANY, VIEW, VIEW_MANY, PURE_WIDE})
"""Kinds of entries that their key alone decides."""

as_strided = torch.as_strided
RESIZE: Final[Any] = torch.ops.aten.resize_.default

PLAIN_TENSORS: Final = frozenset({Tensor, Parameter})


HandOver: TypeAlias = Callable[[OperatorCall, Callable[[], Any]], Any]


class DispatchMode(Inside, TorchDispatchMode):
    """The mode that sees each operator.

    Attributes:
        is_in_backward: Whether the function mode is on for hooks of a backward pass:
            kernels, which are no code of the cell, run without it.
        watched: Keeps arrays equal to tensors that share their memory; None for none.
        hand_over: Runs a collective where ranks are recorded side by side; else None.
    """

    supports_higher_order_operators = True

    def __init__(
        self, write: Writers, cache: SignatureCache, kernels: KernelCalls
    ) -> None:
        super().__init__()
        self.is_in_backward = False
        self.n_resized = 0
        self.hand_over: HandOver | None = None
        self._registry, self._rows = write.registry, write.rows
        self._cache = cache
        self._table_by_op = cache.table_by_op
        self.special = kernels.special
        self._kernels, self.find_number = kernels, kernels.find_number
        self._plan, self._checks = kernels.plan, kernels.checks
        self.watched: SharedMemory | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Record one operator call and return what it returns."""
        guard = DisableTorchFunction() if self.is_in_backward else None
        if guard is not None:
            guard.__enter__()
        try:
            if types and not PLAIN_TENSORS.issuperset(types):
                passed = self.special.pass_on(func, types, args, kwargs)
                if passed is not None:
                    return passed[0]
            registry = self._registry
            if registry.freed:
                registry.note_deaths()
            table = self._table_by_op.get(func) or self._cache.open(func)
            # Before the key is built: that numbers the operands, as the parts must.
            if table.is_composite and self._kernels.is_undivided(table, args):
                return self._kernels.take_apart(self, table, args, kwargs or {})
            words = [0] * HEADER
            key = build_operator_key(registry.read, args, kwargs, words)
            if kwargs and "device" in kwargs and NamedDevices.exist:
                placement = self._plan.placement_of_made()  # of a factory's result
                key = key if placement is None else (*key, placement)
            watched = self.watched
            read = None if watched is None else watched.update_read(args, kwargs)
            entry = table.entries.get(key)
            if entry is None or entry.kind not in ALONE:
                entry = self._find(table, key, entry, words, args, kwargs)
            if (
                entry is None
                or n_dispatch_modes()  # such as make_fx's, which must see the kernel
                or (
                    read is not None
                    and table.written
                    and watched is not None
                    and watched.concerns(read)
                )
            ):
                call = OperatorCall(table, key, words, args, kwargs or {})
                return self._run(call, read)
            returned = self._make_result(entry, words, args, kwargs or {})
            if entry.allowed:  # checked after the call, as the kernel does
                self._checks.check(entry, func, words, args, kwargs or {})
            self._rows.append(entry, words)
            if entry.is_random:
                self._rows.note_draw(words)
            return returned
        finally:
            if guard is not None:
                guard.__exit__(None, None, None)

    def _find(
        self,
        table: OpTable,
        key: Key,
        entry: Entry | None,
        words: Sequence[int],
        args: Args,
        kwargs: Kwargs | None,
    ) -> Entry | None:
        """Return the entry of a call if its key alone does not decide the result."""
        if entry is not None and entry.kind == IN_PLACE:
            if len(words) == HEADER + 1:
                return entry
            # The written tensor must not be read through another one as well.
            storage_by_tensor = self._registry.storage_by_tensor
            storages = {storage_by_tensor[number] for number in words[HEADER:]}
            if len(storages) == len(words) - HEADER:
                return entry
        if not table.has_alike or (entry is not None and entry.is_on_real):
            return None
        return self._find_alike(table, key, words[HEADER:], args, kwargs or {})

    def _find_alike(
        self,
        table: OpTable,
        key: Key,
        numbers: Sequence[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Entry | None:
        """Return the entry of a call by a longer or a more general key, if any.

        The longer key says which written arguments share a storage; the more general
        one leaves numbers out.
        """
        if not table.is_pure:
            storages = [*map(self._registry.storage_by_tensor.__getitem__, numbers)]
            key = (*key, *sharing_of(numbers, storages))
        entry = table.entries.get(key)
        if entry is not None:
            return entry if entry.kind != RUN else None
        known = table.alike.get(generalize(key)) if table.alike else None
        if known is not None:
            entry = table.entries[key] = derive(known, table, args, kwargs)
        return entry

    def _make_result(
        self, entry: Entry, words: list[int], args: Args, kwargs: Kwargs
    ) -> Any:
        """Return the result of the kernel, and append the numbers of its tensors."""
        kind, registry = entry.kind, self._registry
        if kind == PURE:
            tensor = entry.outputs[0].make()
            words.append(registry.add_fresh(tensor, entry.outputs[0]))
            return tensor
        if kind == VIEW:
            base, made = args[0], entry.outputs[0]
            make = entry.rebuild
            view = as_strided(base, *made.as_strided) if make is None else make(base)
            words.append(registry.add_view(view, registry.read_again(base), made))
            return view
        if kind == IN_PLACE:
            where = entry.rebuild
            if where is None or where == ():
                return where
            if where is COUNTED:
                increment_version(args[0])
                return None
            written = args[where] if isinstance(where, int) else kwargs[where]
            words.append(registry.read_again(written)[0])
            return written
        return self._make_many(entry, words, args, kwargs)

    def _make_many(
        self, entry: Entry, words: list[int], args: Args, kwargs: Kwargs
    ) -> Any:
        """Make several results, or one result on a larger storage."""
        registry = self._registry
        if entry.kind == PURE_WIDE:
            made = entry.outputs[0]
            tensor = enlarge_storage(made.make(), entry.rebuild)
            words.append(registry.add_output(tensor, made.placement)[0])
            return tensor
        if entry.kind == VIEW_MANY:
            views, base = entry.rebuild(*args, **kwargs), registry.read_again(args[0])
            words += [
                registry.add_view(view, base, made)
                for view, made in zip(views, entry.outputs, strict=True)
            ]
            return views
        is_list, is_there = entry.rebuild
        geometries = iter(entry.outputs)
        many = [next(geometries).make() if there else None for there in is_there]
        tensors = [tensor for tensor in many if tensor is not None]
        words += map(registry.add_fresh, tensors, entry.outputs)
        return many if is_list else tuple(many)

    def _run(self, call: OperatorCall, read: Sequence[Tensor] | None) -> Any:
        """Run and record an operator that is no cache hit, and watched tensors."""
        self.n_resized += call.table.func is RESIZE
        run = partial(self._kernels.run, self, call)
        if self.hand_over is not None and uses_group(call.table.name):
            run = partial(self.hand_over, call, run)
        returned = run()
        if self.watched is not None and read is not None and call.table.written:
            self.watched.update_arrays(read)
        return returned

    def __enter__(self) -> Self:
        self.functions = function_mode_stack()[-1]
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's has no types
        return self

    def __exit__(self, *exception: object) -> None:
        self.functions = None
        super().__exit__(*exception)  # type: ignore[no-untyped-call]  # as above
