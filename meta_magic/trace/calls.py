"""The operator and module calls of a recording, as its users read them.

Every record is frozen and has plain values. None holds a tensor or a module, so a trace
never keeps storage alive, and two equal runs compare equal. ``trace.ops[3]`` builds one
:class:`OpCall` from its row, so a trace of a million calls holds no records. Read
``OpCalls._build`` beside ``HEADER`` of ``program.py``.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Generic, TypeVar, overload

import torch

from meta_magic.trace.formulas.call_costs import count_flops, count_traffic
from meta_magic.trace.program import (
    HEADER,
    MODULE_HEADER,
    TIED,
    Program,
    find_assumed,
    find_raised,
)
from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.signature import (
    Argument,
    Geometry,
    Phase,
    SourcePosition,
    TensorArgument,
)
from meta_magic.trace.units import format_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """The metadata of one tensor at the moment an operator read or produced it.

    Field names follow :class:`torch.Tensor`; sizes, strides and the storage offset
    count elements, not bytes.

    Attributes:
        tensor_id: Number of the tensor object, in order of first sight.
        storage_id: Number of its untyped storage. Two tensors with the same
            ``storage_id`` alias each other, as a view does its base.
        shape: Size of each dimension, outermost first.
        stride: Elements to skip to reach the next entry of each dimension; None for
            a layout without strides.
        storage_offset: Elements before the first entry; None for such a layout.
        dtype: Element type.
        device: Device of the tensor. One that is not ``meta`` is real: it has data.
        layout: ``torch.strided`` or a sparse layout.
        requires_grad: Whether autograd records what is done with it; None for the
            tensors of an operator, which runs below autograd.
        is_conj: Whether a conjugation is still to be done.
        is_neg: Whether a negation is still to be done.
        place: Device that the code names for it, while it is on ``meta``; or None.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3).t()
        >>> trace.ops[-1].outputs[0].stride
        (1, 3)
    """

    tensor_id: int
    storage_id: int
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    storage_offset: int | None
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool | None
    is_conj: bool = False
    is_neg: bool = False
    place: torch.device | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def geometry(self) -> Geometry:
        """The metadata without identity: equal for tensors that are alike."""
        return Geometry(
            shape=self.shape,
            stride=self.stride,
            storage_offset=self.storage_offset,
            dtype=self.dtype,
            device=self.device,
            layout=self.layout,
            is_conj=self.is_conj,
            is_neg=self.is_neg,
            placement=self.place,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, an expanded element counted each time."""
        return self.numel * self.dtype.itemsize

    @property
    def is_real(self) -> bool:
        """Whether the tensor has data."""
        return self.device.type != "meta"

    def __repr__(self) -> str:
        return f"<{describe_tensor(self)}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One dispatched call of an operator.

    Attributes:
        index: Position in the trace, from 0.
        op: torch's name with the overload, such as ``aten.addmm.default``.
        inputs: Tensor arguments in schema order, with those inside lists.
        outputs: Tensors returned.
        arguments: (name, value) pairs as given, tensors as :class:`TensorMetadata`;
            arguments left at their default are absent.
        writes: Indices into ``inputs`` of the tensors that the operator writes.
        views: For each output, the index of the input whose storage it shares, or None.
        module: Name of the module within its root, as ``state_dict`` keys it (the root
            itself is ``""``); None outside of any module, or when the module was gone
            before the recording ended.
        root: Index into ``Trace.modules`` of the tree that holds it, or None.
        module_call: Index into ``Trace.module_calls``; None outside of any call.
        phase: What the program was doing.
        line: Line of the cell, ``%%meta`` itself being line 1; None when the cell was
            not running. For a backward operator, the line of its forward operator.
        position: The innermost frame that is not torch's, None when there is none.
        function: The Python-level torch call that this came from, or None.
        forward: For a backward operator, the index of the forward operator that it
            differentiates; None for other operators and for gradient accumulation.
        flops: Floating-point operations of products and the like, 2 for each
            multiply-add; None for an operator without a formula. See ``Trace.cost``.
        nbytes_read: Bytes that it reads: each element once, an expanded one too, and of
            a table the rows that are looked up; 0 for a view.
        nbytes_written: Bytes that it makes or writes; 0 for a view.
        evaluation: The cost of answering it with real values, because it reads data;
            None for all other calls, which ran on meta.
        kernel: For attention, what kernel the device would choose, and why; else None.
        assumed: The assumption on its sizes or on those of its inputs; None for none.
        raised: The error that ended the block: type and first line of its text; None
            for all other calls. It is the last call and returned and wrote nothing. It
            may be a call of a function: then ``op`` is the name of the function.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> trace.ops[-1].op, trace.ops[-1].flops
        ('aten.mm.default', 48)
    """

    index: int
    op: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    arguments: tuple[tuple[str, Argument], ...]
    writes: tuple[int, ...]
    views: tuple[int | None, ...]
    module: str | None
    root: int | None
    module_call: int | None
    phase: Phase
    line: int | None
    position: SourcePosition | None
    function: str | None
    forward: int | None
    flops: int | None
    nbytes_read: int
    nbytes_written: int
    evaluation: Evaluation | None = None
    kernel: str | None = None
    assumed: str | None = None
    raised: str | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte read or written; None without FLOPs or bytes."""
        nbytes = self.nbytes_read + self.nbytes_written
        return self.flops / nbytes if self.flops and nbytes else None

    @property
    def place(self) -> str | None:
        """Devices that the code names for the tensors that it makes or writes."""
        made = (*self.outputs, *(self.inputs[i] for i in self.writes))
        named = [str(tensor.place) for tensor in made if tensor.place is not None]
        return ", ".join(dict.fromkeys(named)) or None

    @property
    def is_view(self) -> bool:
        """Whether all returned tensors share storage with an argument, unwritten."""
        return bool(self.outputs) and not self.writes and None not in self.views

    def __repr__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        flow = describe_flow(self.inputs, self.outputs)
        raised = "" if self.raised is None else f", raised {self.raised}"
        return f"<OpCall {self.index}: {self.op}{flow}{line}{raised}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of a module.

    Attributes:
        index: Position among the module calls, in order of their beginning.
        module: Name of the module within its root, as in :class:`OpCall`.
        root: Index into ``Trace.modules``, or None.
        class_name: Qualified name of the module's class.
        parent: Index of the module call inside which this one ran, or None.
        line: Line of the cell that called it, or None.
        position: The frame that called it, or None.
        first_op: Index of its first operator.
        end_op: Index after its last operator; equal to ``first_op`` if it made none.
        inputs: (path, tensor) pairs of its arguments, such as ``("0", ...)`` for the
            first positional one or ``("past.1", ...)`` inside the keyword ``past``.
        outputs: (path, tensor) pairs of its results; empty when it raised.

    Example:
        >>> with record() as trace:
        ...     y = nn.Linear(3, 4)(torch.ones(2, 3))
        >>> trace.module_calls[0]
        <ModuleCall 0: Linear float32 (2, 3) -> float32 (2, 4)>
    """

    index: int
    module: str | None
    root: int | None
    class_name: str
    parent: int | None
    line: int | None
    position: SourcePosition | None
    first_op: int
    end_op: int
    inputs: tuple[tuple[str, TensorMetadata], ...]
    outputs: tuple[tuple[str, TensorMetadata], ...]

    def __repr__(self) -> str:
        name = f" {self.module!r}" if self.module else ""
        taken, made = ([t for _, t in flow] for flow in (self.inputs, self.outputs))
        flow = describe_flow(taken, made)
        return f"<ModuleCall {self.index}: {self.class_name}{name}{flow}>"


def describe_flow(
    inputs: Sequence[TensorMetadata], outputs: Sequence[TensorMetadata]
) -> str:
    """Return the tensors that a call read and returned, as text."""
    taken, made = (", ".join(map(describe_tensor, side)) for side in (inputs, outputs))
    return (f" {taken}" if taken else "") + (f" -> {made}" if made else "")


def describe_tensor(tensor: TensorMetadata) -> str:
    """Return dtype, shape, and a device that is real or named by the code."""
    device = tensor.device if tensor.is_real else tensor.place
    dtype = str(tensor.dtype).removeprefix("torch.")
    where = "" if device is None else f" {device}"
    return f"{dtype} {format_shape(tensor.shape)}{where}"


Record = TypeVar("Record")


class Rows(Sequence[Record], Generic[Record]):
    """The rows of a program as records, each built when it is read."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._words = memoryview(program.words).cast("I")
        self._storages = memoryview(program.storage_by_tensor).cast("I")
        self._module_rows = memoryview(program.module_rows).cast("I")

    @abstractmethod
    def _build(self, index: int) -> Record:
        """Return the record at ``index``, which lies within the rows."""

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...

    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        if isinstance(index, slice):
            return tuple(self._build(i) for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside of {self!r}")
        return self._build(index % len(self))

    def __iter__(self) -> Iterator[Record]:
        return map(self._build, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._program == other._program

    __hash__ = None  # type: ignore[assignment]  # equal by value, too large to hash

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,}>"

    def _tensor(
        self, number: int, geometry: Geometry, *, requires_grad: bool | None = None
    ) -> TensorMetadata:
        return TensorMetadata(
            tensor_id=number,
            storage_id=self._storages[number],
            shape=geometry.shape,
            stride=geometry.stride,
            storage_offset=geometry.storage_offset,
            dtype=geometry.dtype,
            device=geometry.device,
            layout=geometry.layout,
            requires_grad=requires_grad,
            is_conj=geometry.is_conj,
            is_neg=geometry.is_neg,
            place=geometry.placement,
        )


class OpCalls(Rows[OpCall]):
    """The operator calls in the order of dispatch, the one that raised as the last.

    Attributes:
        raised_by_call: ``OpCall.raised`` of the calls that have it.
        evaluation_by_call: ``OpCall.evaluation``, likewise.
        kernel_by_call: ``OpCall.kernel``, likewise.
        assumed_by_call: ``OpCall.assumed``, likewise.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program.with_raised)
        self.raised_by_call = {first: text for first, _, text in find_raised(program)}
        self._owner_by_storage = dict(program.owner_by_storage)
        self.evaluation_by_call = {e.call: e for e in program.evaluations}
        self.kernel_by_call = {
            call: choice.text
            for choice in program.kernels
            for call in range(choice.first_op, choice.end_op)
        }
        self.assumed_by_call = find_assumed(program)
        signatures = self._program.signatures
        self._flops = cache(lambda number: count_flops(signatures[number]))
        self._traffic = cache(lambda number: count_traffic(signatures[number]))

    def __len__(self) -> int:
        return len(self._program.offsets) - 1

    def _build(self, index: int) -> OpCall:
        program, words = self._program, self._words
        offset = program.offsets[index]
        signature = program.signatures[words[offset]]
        site = program.call_sites[words[offset + 1] - 1]
        link = words[offset + 3]
        forward = link - TIED if link >= TIED else None
        tensors = words[offset + HEADER : program.offsets[index + 1]]
        n_inputs = len(signature.inputs)
        inputs = tuple(map(self._tensor, tensors[:n_inputs], signature.inputs))
        outputs = tuple(map(self._tensor, tensors[n_inputs:], signature.outputs))
        module_word = words[offset + 2]
        if not module_word and forward is not None:
            module_word = words[program.offsets[forward] + 2]
        written = (*outputs, *(inputs[i] for i in signature.writes))
        traffic = self._traffic(words[offset])
        number = self._module_number(module_word, (t.storage_id for t in written))
        root, module, _ = (
            (None, None, "") if number is None else program.modules[number]
        )
        return OpCall(
            index=index,
            op=signature.op,
            inputs=inputs,
            outputs=outputs,
            arguments=tuple(
                (name, fill(value, inputs)) for name, value in signature.arguments
            ),
            writes=signature.writes,
            views=signature.views,
            module=module,
            root=root,
            module_call=call_of(module_word),
            phase=site.phase,
            line=site.line,
            position=site.position,
            function=site.function,
            forward=forward,
            flops=self._flops(words[offset]),
            nbytes_read=traffic.nbytes_read,
            nbytes_written=traffic.nbytes_written,
            evaluation=self.evaluation_by_call.get(index),
            kernel=self.kernel_by_call.get(index),
            assumed=self.assumed_by_call.get(index),
            raised=self.raised_by_call.get(index),
        )

    def phase(self, index: int) -> Phase:
        """Return the phase of a call, without building its record."""
        offset = self._program.offsets[index]
        return self._program.call_sites[self._words[offset + 1] - 1].phase

    def _module_number(self, word: int, written: Iterable[int]) -> int | None:
        call = call_of(word)
        if call is not None:
            return self._module_rows[call * MODULE_HEADER]
        # Outside of module calls an operator that makes or writes a parameter belongs
        # to the module that holds the parameter, whoever initializes it.
        for storage in written:
            owner = self._owner_by_storage.get(storage)
            if owner is not None:
                return owner
        return word >> 1 if word else None


class ModuleCalls(Rows[ModuleCall]):
    """The module calls of a program, in the order in which they began."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._values = memoryview(program.module_values).cast("I")

    def __len__(self) -> int:
        return len(self._module_rows) // MODULE_HEADER

    def _build(self, index: int) -> ModuleCall:
        program, start = self._program, index * MODULE_HEADER
        row = self._module_rows[start : start + MODULE_HEADER]
        number, parent, position, line, first_op, end_op, values = row
        root, module, class_name = program.modules[number]
        inputs, outputs = program.structures[self._values[values]]
        words = iter(self._values[values + 1 :])
        return ModuleCall(
            index=index,
            module=module,
            root=root,
            class_name=class_name,
            parent=parent - 1 if parent else None,
            line=line or None,
            position=program.positions[position - 1] if position else None,
            first_op=first_op,
            end_op=end_op,
            inputs=tuple((path, self._value(next(words), g)) for path, g in inputs),
            outputs=tuple((path, self._value(next(words), g)) for path, g in outputs),
        )

    def _value(self, word: int, geometry: Geometry) -> TensorMetadata:
        return self._tensor(word >> 1, geometry, requires_grad=bool(word & 1))


def call_of(module_word: int) -> int | None:
    """Return the module call in a module word (see ``program.HEADER``), or None."""
    is_call = module_word and not module_word % 2
    return module_word // 2 - 1 if is_call else None


def fill(value: Argument, tensors: Sequence[TensorMetadata]) -> Argument:
    """Return ``value`` with a tensor in place of each :class:`TensorArgument`."""
    if isinstance(value, TensorArgument):
        return tensors[value.index]
    if isinstance(value, tuple):
        return tuple(fill(item, tensors) for item in value)
    return value
