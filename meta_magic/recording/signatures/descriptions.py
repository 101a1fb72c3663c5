"""Describe one live call as the plain signature that all its like share."""

from collections.abc import Iterable, Mapping, Sequence
from math import copysign, isnan

from torch import Generator, Tensor, UntypedStorage

from meta_magic.recording.signatures.entries import PLAIN, LiveCall, OpTable
from meta_magic.recording.signatures.undeclared_writes import find_written_statistics
from meta_magic.torch_private.dispatcher import describe_group
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Argument,
    OpaqueArgument,
    Signature,
    TensorArgument,
)

__all__ = ["describe_opaque", "describe_signature"]


def describe_signature(table: OpTable, call: LiveCall) -> Signature:
    """Return the plain record of what ``call`` shares with its like."""
    describer = Describer()
    storages = [seen[1] for _, seen in call.inputs]
    arguments = describer.describe_arguments(table.arguments, call.args, call.kwargs)
    written = table.written | find_written_statistics(table.name, arguments)
    return Signature(
        op=table.name,
        arguments=arguments,
        returns=Describer(reads_data=table.reads_data).describe(call.returned),
        inputs=tuple(seen[2].record for _, seen in call.inputs),
        outputs=tuple(seen[2].record for _, seen in call.outputs),
        writes=describer.positions(written),
        views=tuple(
            storages.index(seen[1]) if seen[1] and seen[1] in storages else None
            for _, seen in call.outputs
        ),
    )


class Describer:
    """Turn live arguments into plain ones, numbering the tensors on the way.

    Args:
        reads_data: Whether values depend on data: calls alike have their type alone.
    """

    def __init__(self, *, reads_data: bool = False) -> None:
        self._reads_data = reads_data
        self._n_tensors = 0
        self._span_by_name: dict[str, range] = {}

    def describe_arguments(
        self,
        names: Sequence[str],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> tuple[tuple[str, Argument], ...]:
        """Return (name, plain value) pairs of a call's arguments."""
        described = []
        positional = (
            (names[i] if i < len(names) else str(i), value)
            for i, value in enumerate(args)
        )
        for name, value in (*positional, *kwargs.items()):
            start = self._n_tensors
            described.append((name, self.describe(value)))
            self._span_by_name[name] = range(start, self._n_tensors)
        return tuple(described)

    def positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the tensor numbers that belong to the arguments ``names``."""
        spans = (self._span_by_name.get(name, range(0)) for name in names)
        return tuple(sorted(number for span in spans for number in span))

    def describe(self, value: object) -> Argument:
        """Return a plain stand-in for ``value``."""
        if isinstance(value, Tensor):
            self._n_tensors += 1
            return TensorArgument(self._n_tensors - 1)
        if isinstance(value, (tuple, list)):
            return tuple(self.describe(item) for item in value)
        if self._reads_data and value is not None:
            return OpaqueArgument(f"a value of type {type(value).__name__}")
        if isinstance(value, float) and isnan(value):
            return NAN if copysign(1, value) > 0 else NEGATIVE_NAN
        return value if type(value) in PLAIN else describe_opaque(value)


def describe_opaque(value: object) -> OpaqueArgument:
    """Return what stands for a value that is no plain one."""
    if isinstance(value, (Generator, UntypedStorage)):
        # In torch's words a generator's address, or all bytes of a storage.
        return OpaqueArgument(f"{type(value).__name__} on {value.device}")
    text = describe_group(value)
    return OpaqueArgument(text or f"{type(value).__name__} {str(value)[:200]}")
