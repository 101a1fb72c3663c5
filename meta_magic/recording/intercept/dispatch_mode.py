"""The dispatch mode sees every operator: a cache hit takes the fast path, others run.

Without it ``y = x + 1`` would run in a cell and leave no row. Read
``Dispatch.__torch_dispatch__`` first: each operator comes there.
"""

from collections.abc import Sequence
from typing import Any, Final, Self

from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.storages import NamedDevices
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.fast_path import ALONE, FastPath
from meta_magic.recording.intercept.higher_order import Inside
from meta_magic.recording.intercept.kernel_calls import OperatorCall
from meta_magic.recording.intercept.operator_runner import OperatorRunner
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.intercept.special_tensors import SpecialTensors
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.recording.signatures.entries import Args, Kwargs, OpTable
from meta_magic.recording.signatures.operator_keys import build_operator_key
from meta_magic.torch_private.modes import (
    DisableTorchFunction,
    TorchDispatchMode,
    function_mode_stack,
    n_dispatch_modes,
)
from meta_magic.trace.program import HEADER

PLAIN_TENSORS: Final = frozenset({Tensor, Parameter})


class Dispatch:
    """What the dispatch mode does with an operator.

    A plain class, mixed in below: torch wraps ``__torch_dispatch__`` of a direct
    subclass of ``TorchDispatchMode`` so that the first operator imports dynamo.

    Args:
        runner: Runs and records operators that are no cache hits.

    Attributes:
        is_in_backward: Whether the function mode is on for hooks of a backward pass:
            kernels, which are no code of the cell, run without it.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        rows: RowWriter,
        cache: SignatureCache,
        special: SpecialTensors,
        runner: OperatorRunner,
    ) -> None:
        super().__init__()
        self.is_in_backward = False
        self._registry = registry
        self._rows = rows
        self._cache = cache
        self._table_by_op = cache.table_by_op
        self._special = special
        self._runner = runner
        self._plan = runner.plan
        self._checks = runner.checks
        self._fast = FastPath(registry)
        self._shared: SharedMemory | None = None

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
                passed = self._special.pass_on(func, types, args, kwargs)
                if passed is not None:
                    return passed[0]
            registry, fast = self._registry, self._fast
            if registry.freed:
                registry.note_deaths()
            table = self._table_by_op.get(func) or self._cache.open(func)
            # Its parts must read their operands in their own order.
            if table.is_composite and self._runner.is_undivided(table, args):
                return self._runner.take_apart(self, table, args, kwargs or {})
            words = [0] * HEADER
            key = build_operator_key(registry.read, args, kwargs, words)
            if kwargs and "device" in kwargs and NamedDevices.exist:
                placement = (
                    self._plan.placement_of_made()
                )  # the device of a factory's result
                key = key if placement is None else (*key, placement)
            read = None if self._shared is None else self._read_arrays(args, kwargs)
            entry = table.entries.get(key)
            if entry is None or entry.kind not in ALONE:
                entry = fast.find(table, key, entry, words, args, kwargs)
            if (
                entry is None
                or n_dispatch_modes()  # such as make_fx's, which must see the kernel
                or (read is not None and self._writes_arrays(table, read))
            ):
                return self._run(
                    OperatorCall(table, key, words, args, kwargs or {}), read
                )
            returned = fast.make_result(entry, words, args, kwargs or {})
            if entry.allowed:  # checked after the call, as the kernel does
                self._checks.check(entry, func, words, args, kwargs or {})
            self._rows.append(entry, words)
            if entry.is_random:
                self._rows.note_draw(words)
            return returned
        finally:
            if guard is not None:
                guard.__exit__(None, None, None)

    def _run(self, call: OperatorCall, read: Sequence[Tensor] | None) -> Any:
        """Run and record an operator that is no cache hit.

        Args:
            read: Its tensors, if arrays may share their memory; else None.
        """
        returned = self._runner.run(self, call)
        if self._shared is not None and read is not None and call.table.written:
            self._shared.update_arrays(read)
        return returned

    def _read_arrays(self, args: Args, kwargs: Kwargs | None) -> Sequence[Tensor]:
        """Return a call's tensors, after writes to their arrays were copied to them."""
        read = tensors_in(args, kwargs or {})
        if self._shared is not None:
            self._shared.update_read(read)
        return read

    def _writes_arrays(self, table: OpTable, read: Sequence[Tensor]) -> bool:
        """Whether an operator may write memory that an array shares."""
        shared = self._shared
        return shared is not None and bool(table.written) and shared.concerns(read)


class DispatchMode(Dispatch, Inside, TorchDispatchMode):
    """The mode that is entered.

    Attributes:
        functions: The function mode that was entered just before it.
    """

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        self.functions = function_mode_stack()[-1]
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's has no types
        return self

    def __exit__(self, *exception: object) -> None:
        self.functions = None
        super().__exit__(*exception)  # type: ignore[no-untyped-call]  # as above

    def watch_shared_memory(self, shared: SharedMemory) -> None:
        """Keep arrays equal to the tensors that share their memory, from now on."""
        self._shared = shared

    def begin_inside(self, op: str) -> None:
        """Give the operators that an operator calls their own call sites."""
        self._special.begin(op)
