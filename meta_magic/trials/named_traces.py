"""A trace whose shapes are shown by name: the same program, with named sizes.

Calls that share a signature may differ in names: (4, 4) is (B, H) in one and (H, B) in
another. So a named program has a signature for each. Read :func:`name_trace` first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meta_magic.errors import TrialError
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.named_sizes import NamedSize
from meta_magic.trace.notes import Note
from meta_magic.trace.program import HEADER, MODULE_HEADER, Program, Structure
from meta_magic.trace.signature import Geometry, Signature
from meta_magic.trace.trace import Trace
from meta_magic.trials.dims import Dims
from meta_magic.trials.size_formulas import evaluate


@dataclass(frozen=True, kw_only=True)
class NamedTrace(Trace):
    """A trace with shapes by name.

    Attributes:
        plain: The trace with numbers, whose notes it has.
        texts: Which names have no formulas, and why.
    """

    plain: Trace
    texts: tuple[str, ...] = ()

    @property
    def named(self) -> Trace:
        """Return itself."""
        return self

    @property
    def dims(self) -> Dims | None:
        """The names of sizes."""
        return self.plain.dims

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of the trace, and which names have no formulas."""
        own = (Note(kind="dims", text=text, line=None) for text in self.texts)
        return (*self.plain.notes, *own)

    @property
    def wrong(self) -> tuple[Note, ...]:
        """What runs and is wrong."""
        return self.plain.wrong


def name_trace(trace: Trace) -> Trace:
    """Return a trace with shapes by name; notes say which names have no formulas."""
    own = {one.name: getattr(trace, one.name) for one in fields(trace)}
    try:
        dims = trace.dims
    except TrialError as error:
        return NamedTrace(**own, plain=trace, texts=(f"no sizes have names: {error}",))
    if dims is None:
        return trace
    own["program"] = Naming(trace.program, dims).name_program()
    own["modules"] = tuple(name_module(node, trace, dims) for node in trace.modules)
    return NamedTrace(**own, plain=trace, texts=dims.caveats)


def find_shape(trace: Trace, tensor: int | None, shape: Sequence[int]) -> str:
    """Return the shape of a tensor by name."""
    dims = trace.dims
    if dims is None:
        raise TrialError('the recording has no names: use record(dims="B,T")')
    if tensor is None:
        raise TrialError("the recording has no such tensor")
    return f"[{', '.join(dims.name(tensor, shape))}]"


class Naming:
    """Gives the shapes of a program names."""

    def __init__(self, program: Program, dims: Dims) -> None:
        self._program, self._dims = program, dims
        self._known: dict[tuple[Geometry, tuple[str, ...]], Geometry] = {}

    def name_geometry(self, geometry: Geometry, tensor: int) -> Geometry:
        """Return the metadata of a tensor with named sizes."""
        texts = self._dims.name(tensor, geometry.shape)
        key = geometry, texts
        if key not in self._known:
            pairs = zip(geometry.shape, texts, strict=True)
            shape = tuple(NamedSize(size, text) for size, text in pairs)
            self._known[key] = replace(geometry, shape=shape)
        return self._known[key]

    def name_program(self) -> Program:
        """Return the program with named sizes."""
        program = self._program
        words = np.frombuffer(program.words, np.uint32).copy()
        numbers: dict[tuple[int, tuple[tuple[str, ...], ...]], int] = {}
        signatures: list[Signature] = []
        for offset, end in zip(program.offsets[:-1], program.offsets[1:], strict=True):
            old = int(words[offset])
            tensors = words[offset + HEADER : end].tolist()
            one = program.signatures[old]
            pairs = zip(tensors, (*one.inputs, *one.outputs), strict=True)
            key = old, tuple(self._dims.name(n, g.shape) for n, g in pairs)
            if key not in numbers:
                numbers[key] = len(signatures)
                signatures.append(self._name(program.signatures[old], tensors))
            words[offset] = numbers[key]
        values, structures = self._name_modules()
        raised = program.raised
        if raised is not None:
            named = self._name(raised.signature, raised.tensors)
            raised = replace(raised, signature=named)
        return replace(
            program,
            words=words.tobytes(),
            signatures=tuple(signatures),
            module_values=values,
            structures=structures,
            raised=raised,
        )

    def _name(
        self, signature: Signature, tensors: "list[int] | tuple[int, ...]"
    ) -> Signature:
        given = (*signature.inputs, *signature.outputs)
        named = tuple(map(self.name_geometry, given, tensors))
        n = len(signature.inputs)
        return replace(signature, inputs=named[:n], outputs=named[n:])

    def _name_modules(self) -> tuple[bytes, tuple[Structure, ...]]:
        """Return the tensors of module calls, and their named structures."""
        program = self._program
        values = np.frombuffer(program.module_values, np.uint32).copy()
        rows = np.frombuffer(program.module_rows, np.uint32)
        structures: dict[Structure, int] = {}
        for start in rows[MODULE_HEADER - 1 :: MODULE_HEADER].tolist():
            sides, at = [], start + 1
            for side in program.structures[int(values[start])]:
                tensors = (values[at : at + len(side)] >> 1).tolist()
                at += len(side)
                sides.append(
                    tuple(
                        (path, self.name_geometry(geometry, tensor))
                        for (path, geometry), tensor in zip(side, tensors, strict=True)
                    )
                )
            structure = sides[0], sides[1]
            values[start] = structures.setdefault(structure, len(structures))
        return values.tobytes(), tuple(structures)


def name_module(node: ModuleNode, trace: Trace, dims: Dims) -> ModuleNode:
    """Return a module whose tensors have named sizes."""
    storages = np.frombuffer(trace.program.storage_by_tensor, np.uint32).tolist()
    by_storage: dict[int, list[tuple[str, ...]]] = {}
    for (tensor, _), texts in dims.shapes.items():
        by_storage.setdefault(storages[tensor], []).append(texts)

    def name_shape(shape: tuple[int, ...], storage: int) -> tuple[int, ...]:
        for texts in by_storage.get(storage, ()):
            if tuple(evaluate(text, dims.values) for text in texts) == shape:
                return tuple(map(NamedSize, shape, texts))
        return shape

    def name_node(one: ModuleNode) -> ModuleNode:
        tensors = tuple(
            replace(tensor, shape=name_shape(tensor.shape, storage))
            for tensor, storage in zip(one.tensors, one.storages, strict=False)
        )
        children = tuple(map(name_node, one.children))
        return replace(one, tensors=tensors or one.tensors, children=children)

    return name_node(node)
