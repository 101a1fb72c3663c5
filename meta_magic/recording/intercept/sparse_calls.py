"""Operators that make sparse tensors: how many elements these hold is found on the CPU.

On meta a sparse tensor has positions without values, and torch's kernels there return
tensors of no elements: without this ``grad.coalesce()`` would be empty, and
``SparseAdam`` would change nothing. The positions that an operator is given are
computed, which takes little as they come from indices; its values are not. The
operator then runs on the CPU with these positions, and values of one. Read ``run``
first.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.errors import MissingValueError
from meta_magic.recording.as_device.cpu_kernels import (
    MAX_NBYTES,
    count_nbytes,
    make_stand_in,
    put_on_meta,
    replace,
)
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.lifted.lifting import Lifting
from meta_magic.recording.intercept.value_source import ValueSource
from meta_magic.recording.signatures.arguments import Given
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.sparse_tensors import (
    SPARSE,
    build_sparse,
    has_coalesced,
    parts_of,
)

__all__ = ["SparseCalls"]

CONVERSIONS: Final = "aten._to_sparse"
"""How the names of operators begin that read which elements are not zero."""

ON_META: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_indices", "_values", "indices", "values", "_nnz", "is_coalesced"),
        *("crow_indices", "col_indices", "ccol_indices", "row_indices"),
        *("sparse_dim", "dense_dim", "detach", "alias", "_coalesced_"),
        *("zero_", "zeros_like", "empty_like", "_to_dense"),
    )
)
"""Operators that are right on meta, or make what is dense."""

CONSTRUCTORS: Final = frozenset(
    {
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
        "aten.sparse_compressed_tensor.comp_plain_value_size",
    }
)
COPIES: Final = frozenset({"aten.clone.default", "aten._to_copy.default"})


class Known(NamedTuple):
    """A sparse argument of an operator.

    Attributes:
        planned: The argument, on meta.
        parts: What stands for its positions and values on the CPU.
    """

    planned: Tensor
    parts: tuple[Tensor, ...]

    def has(self, positions: Sequence[Tensor]) -> bool:
        """Whether it has these positions, in this order."""
        own = self.parts[:-1]
        return len(own) == len(positions) and all(map(torch.equal, own, positions))


class SparseCalls:
    """Runs the operators that take or make sparse tensors.

    Args:
        registry: Numbers of tensors.
        lifting: Makes constants of positions.
        values: Computes positions.
    """

    def __init__(
        self, registry: TensorRegistry, lifting: Lifting, values: ValueSource
    ) -> None:
        self._registry = registry
        self._lifting = lifting
        self._values = values
        self._making: set[object] = set()

    def run(self, table: OpTable, given: Given, run: Callable[[], Any]) -> Any:
        """Return what an operator returns, its sparse tensors with their elements.

        Args:
            table: The operator.
            given: What it is given.
            run: Runs it on meta, as if the sparse tensors had no elements.

        Raises:
            MissingValueError: The positions cannot be computed, or take too much.
        """
        if table.name in CONSTRUCTORS:
            return construct(run())
        if table.name.startswith(CONVERSIONS):
            return self._run_for_real(table, given, reads_all=True)
        layouts = [t.layout for t, _ in given.inputs]
        if SPARSE.isdisjoint(layouts) or table.name in ON_META:
            return run()
        if table.name in COPIES:
            return copy(given, run())
        key = (table.func, *layouts)
        if key not in self._making and not writes_sparse(table, given):
            returned = run()
            if SPARSE.isdisjoint(t.layout for t in tensors_in(returned)):
                return returned
            self._making.add(key)
        return self._run_for_real(table, given)

    def _run_for_real(
        self, table: OpTable, given: Given, *, reads_all: bool = False
    ) -> Any:
        """Run an operator on the CPU, with the positions that it is given."""
        metas = [t for t, seen in given.inputs if seen[2].is_meta]
        if sum(map(count_nbytes, metas)) > MAX_NBYTES and not reads_all:
            raise MissingValueError(
                f"{table.name} makes a sparse tensor; how many elements it holds is "
                "not computed beside dense tensors as large as these"
            )
        real_by_id = {id(t): t for t, _ in given.inputs}
        real_by_id |= {id(t): self._make_real(t, reads_all=reads_all) for t in metas}
        known = [
            Known(t, parts_of(real_by_id[id(t)]))
            for t in metas
            if is_sparse(t)
        ]
        with RealTorch(), torch.no_grad():
            args, kwargs = (replace(v, real_by_id) for v in (given.args, given.kwargs))
            returned = table.func(*args, **kwargs)
        dense = {id(real_by_id[id(t)]): t for t in metas}
        return self._put_on_meta(returned, known, dense)

    def _make_real(self, tensor: Tensor, *, reads_all: bool) -> Tensor:
        """Return a tensor on the CPU with the positions of one on meta."""
        if is_sparse(tensor):
            *positions, values = parts_of(tensor)
            parts = [*map(self._read, positions), make_stand_in(values, has_ones=True)]
            return build_sparse(tensor, parts, is_coalesced=has_coalesced(tensor))
        is_number = tensor.is_floating_point() or tensor.is_complex()
        return make_stand_in(tensor) if is_number and not reads_all else self._read(tensor)

    def _read(self, tensor: Tensor) -> Tensor:
        """Return a copy of what a dense tensor holds."""
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        return self._values.read([(tensor, self._registry.read(tensor))])[0].clone()

    def _put_on_meta(
        self, value: Any, known: Sequence[Known], argument_by_id: dict[int, Tensor]
    ) -> Any:
        """Return what an operator returned on the CPU, on meta.

        Args:
            value: That.
            known: The sparse arguments, before the operator ran.
            argument_by_id: By the identity of a tensor on the CPU, that on meta.
        """
        if isinstance(value, (list, tuple)):
            return [self._put_on_meta(v, known, argument_by_id) for v in value]
        if not isinstance(value, Tensor) or not is_sparse(value):
            return put_on_meta(value, argument_by_id)
        argument = argument_by_id.get(id(value))
        *positions, values = parts_of(value)
        alike = next((k for k in known if k.has(positions)), None)
        if argument is not None and alike is not None and alike.planned is argument:
            return argument  # its values alone were written
        lifted = map(self._lift, positions)
        parts = lifted if alike is None else parts_of(alike.planned)[:-1]
        made = build_sparse(
            value, [*parts, put_on_meta(values)], is_coalesced=has_coalesced(value)
        )
        if argument is None:
            return made
        argument.data = made
        return argument

    def _lift(self, positions: Tensor) -> Tensor:
        """Return a meta tensor of which it is known which positions it holds."""
        return self._lifting.lift(positions, is_noted=False)


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor holds positions, and values at them."""
    return tensor.layout in SPARSE


def writes_sparse(table: OpTable, given: Given) -> bool:
    """Whether an operator writes a sparse tensor."""
    values = dict(zip(table.arguments, given.args, strict=False)) | {**given.kwargs}
    written = [value for name, value in values.items() if name in table.written]
    return any(map(is_sparse, tensors_in(written)))


def construct(made: Tensor) -> Tensor:
    """Return a tensor like one that was made of positions and values.

    Its values have a storage of their own, by which it is known. On the CPU they are
    those that it was made of: a replay refuses to read one after a write of the other.
    """
    *positions, values = parts_of(made)
    parts = [*positions, put_on_meta(values)]
    return build_sparse(made, parts, is_coalesced=has_coalesced(made))


def copy(given: Given, made: Tensor) -> Tensor:
    """Return a copy of a sparse tensor, of which meta copies no elements.

    Args:
        given: What the operator was given.
        made: What it made.
    """
    if not made.is_meta:
        return made
    source = given.args[0]
    *positions, values = parts_of(source)
    parts = [*positions, torch.empty_like(values, dtype=made.dtype)]
    return build_sparse(source, parts, is_coalesced=has_coalesced(source))
