"""What serves and runs operators where arrays share the memory of tensors."""

from typing import Any

from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.operator_runner import OperatorRunner
from meta_magic.recording.intercept.served_operators import ServedOperators
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.signatures.entries import Args, Entry, Kwargs, OpTable

__all__ = ["WatchedOperators", "WatchedRunner"]


class WatchedOperators(ServedOperators):
    """Serves operators once that is done, but for writes that arrays are to follow."""

    def __init__(self, plain: ServedOperators, shared: SharedMemory) -> None:
        vars(self).update(vars(plain))
        self._shared = shared

    def find(
        self, table: OpTable, key: Any, words: Any, args: Args, kwargs: Kwargs | None
    ) -> Entry | None:
        """Return the entry that alone answers a call, if there is one."""
        read = tensors_in(args, kwargs or {})
        self._shared.take_in(read)
        if table.written and self._shared.concerns(read):
            return None
        return super().find(table, key, words, args, kwargs)


class WatchedRunner(OperatorRunner):
    """Runs operators, and has arrays follow what they write."""

    def __init__(self, plain: OperatorRunner, shared: SharedMemory) -> None:
        vars(self).update(vars(plain))
        self._shared = shared

    def run(
        self,
        mode: Any,
        table: OpTable,
        key: Any,
        words: list[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Run an operator that is not served."""
        returned = super().run(mode, table, key, words, args, kwargs)
        if table.written:
            self._shared.give_out(tensors_in(args, kwargs))
        return returned
