"""The operator and module calls of a program, as lazy sequences of records.

``trace.ops[3]`` builds one :class:`OpCall` from its row; a trace of a million calls
holds no records. Read ``OpCalls._build`` beside ``HEADER`` of ``program.py``.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar, overload

from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata
from meta_magic.trace.derived_facts import find_assumed, find_raised
from meta_magic.trace.formulas.call_costs import count_flops, count_traffic
from meta_magic.trace.program import HEADER, MODULE_HEADER, TIED, Program
from meta_magic.trace.signature import Argument, Geometry, Phase, TensorArgument

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
