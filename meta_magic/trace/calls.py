"""The operator and module calls of a recording, as its users read them.

Every class here is a frozen record of plain values. None holds a tensor or a module,
so a trace never keeps storage alive, and two equal runs compare equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.signature import Argument, Geometry, Phase, SourcePosition
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
