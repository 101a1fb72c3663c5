"""The tensors and arguments of all calls at once.

Field by field, and all calls of a signature together: what is left to do for each call
runs in C. Record by record a million calls take ten times as long.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace.calls import TensorMetadata
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import fill
from meta_magic.trace.signature import Argument, Geometry, TensorArgument

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["Flows", "build_flows"]

Objects: TypeAlias = NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """What went into each call and what came out, as the fields of ``OpCall``.

    Attributes:
        inputs: Of each call the tensors that it reads.
        outputs: Of each call those that it returns.
        arguments: Of each call its arguments.
    """

    inputs: Objects
    outputs: Objects
    arguments: Objects


def build_flows(trace: "Trace") -> Flows:
    """Return inputs, outputs and arguments of each call."""
    program, columns = trace.program.with_raised, trace.columns
    tensors = build_tensors(trace)
    sides = [np.empty(columns.n_calls, object) for _ in fields(Flows)]
    inputs, outputs, arguments = sides
    groups = group_calls(columns.signature)
    for signature, calls in zip(program.signatures, groups, strict=False):
        n, n_inputs = len(calls), len(signature.inputs)
        slots = range(n_inputs + len(signature.outputs))
        starts = columns.first[calls]
        found = [tensors[starts + slot].tolist() for slot in slots]
        inputs[calls] = as_objects(join(found[:n_inputs], n), n)
        outputs[calls] = as_objects(join(found[n_inputs:], n), n)
        arguments[calls] = as_objects(fill_all(signature.arguments, found, n), n)
    return Flows(inputs=inputs, outputs=outputs, arguments=arguments)


def group_calls(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the calls of each signature, up to the last one that has any."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.cumsum(np.bincount(numbers))[:-1])


def join(found: Sequence[Sequence[object]], n: int) -> Iterable[tuple[object, ...]]:
    """Return for each of so many calls the tuple of what it has in each column."""
    return zip(*found, strict=True) if found else repeat((), n)


def fill_all(
    value: Argument, found: Sequence[Sequence[TensorMetadata]], n: int
) -> Iterable[Argument]:
    """Return ``value`` of each call, each tensor's stand-in replaced by the tensor.

    Args:
        value: An argument of a signature, or all of them.
        found: For each slot of the signature the tensors of its calls.
        n: How many calls there are.
    """
    if isinstance(value, TensorArgument):
        return found[value.index]
    if isinstance(value, tuple) and has_tensor(value):
        return zip(*(fill_all(item, found, n) for item in value), strict=True)
    return repeat(fill(value, ()), n)


def has_tensor(value: Argument) -> bool:
    """Whether an argument is a tensor, or has one within."""
    if isinstance(value, tuple):
        return any(map(has_tensor, value))
    return isinstance(value, TensorArgument)


def as_objects(values: Iterable[object], n: int) -> Objects:
    """Return values as an array, where a tuple is one of them."""
    return np.fromiter(values, object, n)


def build_tensors(trace: "Trace") -> Objects:
    """Return the metadata of each tensor of the columns, equal ones as one object."""
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    program, columns = trace.program.with_raised, trace.columns
    geometries, number_of_slot = list_geometries(program)
    geometry = number_of_slot[columns.slot]
    keys = columns.tensor.astype(np.int64) * len(geometries) + geometry
    place, distinct = pd.factorize(keys)
    numbers, kinds = np.divmod(distinct, max(len(geometries), 1))
    storages = np.frombuffer(program.storage_by_tensor, np.uint32)[numbers]
    known: dict[str, Iterable[object]] = {
        "tensor_id": numbers.tolist(),
        "storage_id": storages.tolist(),
        "requires_grad": repeat(None),
    }
    kind = kinds.tolist()
    for field in fields(Geometry):
        values = [getattr(geometry, field.name) for geometry in geometries]
        known[field.name] = map(values.__getitem__, kind)
    return as_objects(build_records(known, len(kind)), len(kind))[place]


def list_geometries(program: Program) -> tuple[list[Geometry], NDArray[np.int64]]:
    """Return the geometries of all signatures, and of each slot the index of its."""
    sides = [side for s in program.signatures for side in (s.inputs, s.outputs)]
    slots = [geometry for side in sides for geometry in side]
    by_id = {id(geometry): geometry for geometry in slots}
    rank_by_id = {key: rank for rank, key in enumerate(by_id)}
    ranks = [rank_by_id[id(geometry)] for geometry in slots]
    return [*by_id.values()], np.asarray(ranks, np.int64)


def build_records(
    values: "dict[str, Iterable[object]]", n: int
) -> Iterator[TensorMetadata]:
    """Return records, given the values of each field.

    Each slot is set for all of them by one call that stays in C, as ``__init__`` of a
    frozen record does one by one.
    """
    records: list[Any] = [*map(object.__new__, repeat(TensorMetadata, n))]
    for field in fields(TensorMetadata):
        put = getattr(TensorMetadata, field.name).__set__
        deque(map(put, records, values[field.name]), maxlen=0)
    return iter(records)
