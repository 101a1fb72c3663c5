"""A trace on the wire: what the report's JavaScript reads, live and in a saved file.

What there are thousands of are columns of integers that point into tables, as in the
program itself, so that gzip finds what repeats. ``static/data.js`` is the reader; both
change together with ``VERSION``.
"""

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meta_magic.cost.call_work import OneCall, count_one
from meta_magic.cost.program_columns import Integers
from meta_magic.trace.derived_facts import first_operators
from meta_magic.trace.modules import ModuleNode, at_any_depth
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.signature import Geometry, Place, Signature, SourcePosition
from meta_magic.trace.summary import describe_failure, format_headline
from meta_magic.view.column_values import columns_payload, remarks_payload
from meta_magic.view.details_payload import details_payload, name_inputs
from meta_magic.view.explanation_payload import explanation_payload
from meta_magic.view.memory_payload import memory_payload
from meta_magic.view.texts import find_texts
from meta_magic.view.tokens import write_tokens
from meta_magic.view.wire import (
    Table,
    as_columns,
    as_deltas,
    as_differences,
    count_runs,
    format_arguments,
    write_geometry,
    write_position,
    write_tensor,
)
from meta_magic.view.work_payload import work_payload

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["VERSION", "build_payload", "pack"]

VERSION: Final = 5
PHASES: Final = ("init", "forward", "backward", "optimizer", "other")


def pack(trace: "Trace") -> bytes:
    """Return the payload as it is sent: JSON, compressed by gzip."""
    text = json.dumps(build_payload(trace), separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)


@at_any_depth
def build_payload(trace: "Trace") -> dict[str, Any]:
    """Return all that the report shows of a trace, as plain lists and numbers."""
    return Payload(trace).build()


class Payload:
    """Builds the payload of one trace; the tables are shared by all its parts."""

    def __init__(self, trace: "Trace") -> None:
        self._trace = trace
        self._program = trace.program.with_raised
        self._geometries: Table[Geometry] = Table(write_geometry)
        self._positions: Table[SourcePosition] = Table(write_position)
        self._numbers = itertools.count()
        self._module_by_place: dict[tuple[int, str], int] = {}

    def build(self) -> dict[str, Any]:
        """Return the payload."""
        trace, program = self._trace, self._program
        works = [*map(count_one, program.signatures)]
        parts = write_failure(trace) | {
            "version": VERSION,
            **self._write_words(),
            "nbytes_by_dtype": count_nbytes(trace.modules),
            "modules": [
                module
                for root, node in enumerate(trace.modules)
                for module in self._write_modules(node, root, -1)
            ],
            "signatures": as_columns(
                [*map(self._write_signature, program.signatures, works)]
            ),
            "places": as_columns([*map(self._write_place, program.places)]),
            "ops": self._write_ops(),
            "storages": as_deltas(np.frombuffer(program.storage_by_tensor, np.uint32)),
            "owners": [
                [storage, self._find_module(number)]
                for storage, number in program.owner_by_storage
            ],
            "columns": columns_payload(trace),
            "remarks": remarks_payload(trace),
            "calls": self._write_calls(),
            "details": details_payload(trace),
            "memory": memory_payload(trace),
            "work": work_payload(works),
        }
        return parts | {
            "positions": as_columns(self._positions.rows),
            "geometries": self._geometries.rows,
        }

    def _write_words(self) -> dict[str, Any]:
        """Return what is said of the whole, and the source that ran."""
        trace = self._trace
        return {
            "headline": format_headline(trace),
            "source": trace.source,
            "tokens": write_tokens(trace.source),
            "cell": {"file": trace.cell.file, "first": trace.cell.first_line},
            "texts": [*find_texts(self._program)],
            "notes": [
                {"text": note.text, "line": note.line or 0} for note in trace.notes
            ],
        }

    def _write_signature(self, signature: Signature, work: OneCall) -> dict[str, Any]:
        return {
            "op": signature.op,
            "args": format_arguments(signature),
            "names": name_inputs(signature),
            "inputs": [*map(self._geometries.of, signature.inputs)],
            "outputs": [*map(self._geometries.of, signature.outputs)],
            "writes": list(signature.writes),
            "views": [-1 if view is None else view for view in signature.views],
            "flops": work.flops if work.kind == "product" else -1,
        }

    def _write_place(self, place: Place) -> dict[str, Any]:
        position = place.position
        return {
            "function": place.function or "",
            "line": place.line or 0,
            "phase": PHASES.index(place.phase),
            "position": -1 if position is None else self._positions.of(position),
        }

    def _write_modules(
        self, node: ModuleNode, root: int, parent: int
    ) -> Iterator[dict[str, Any]]:
        """Yield a module and all below it, parents first."""
        number = next(self._numbers)
        self._module_by_place.setdefault((root, node.fqn), number)
        shared = node.shared_with
        places = node.places if self._trace.peak_by_place else ()
        named = {"place": ", ".join(places)} if places else {}
        if node.kind != node.class_name:
            named["kind"] = node.kind
        yield named | {
            "parent": parent,
            "name": node.name,
            "fqn": node.fqn,
            "class_name": node.class_name,
            "tensors": [*map(write_tensor, node.tensors)],
            "n_calls": node.n_calls,
            "first_call": -1 if node.first_call is None else node.first_call,
            "shared_with": -1
            if shared is None
            else self._module_by_place[root, shared],
        }
        for child in node.children:
            yield from self._write_modules(child, root, number)

    def _find_module(self, number: int) -> int:
        """Return the row of a module by its number in the program, or -1."""
        root, fqn, _ = self._program.modules[number]
        if root is None or fqn is None:
            return -1
        return self._module_by_place.get((root, fqn), -1)

    def _find_modules(self, numbers: Integers) -> list[int]:
        """Return the rows of many modules; -1 for the number -1, too."""
        rows = [*map(self._find_module, range(len(self._program.modules))), -1]
        found: list[int] = np.asarray(rows)[numbers].tolist()
        return found

    def _write_ops(self) -> dict[str, list[int]]:
        columns = self._trace.columns
        back = np.arange(columns.n_calls) - columns.forward
        return {
            "signature": columns.signature.tolist(),
            "place": columns.place.tolist(),
            "module": self._find_modules(columns.find_holders(self._program)),
            "call": columns.module_call.tolist(),
            "forward": np.where(columns.forward < 0, 0, back).tolist(),
            "functions": count_runs(first_operators(self._program)),
            "tensors": as_deltas(columns.tensor),
        }

    def _write_calls(self) -> dict[str, list[Any]]:
        structures: Table[Any] = Table(self._write_structure)
        program = self._program
        words = np.frombuffer(program.module_rows, np.uint32).astype(np.int64)
        rows = words.reshape(-1, MODULE_HEADER).T
        module, parent, position, line, first_op, end_op, values = rows
        structure = np.frombuffer(program.module_values, np.uint32).astype(np.int64)
        return {
            "module": self._find_modules(module),
            "parent": (parent - 1).tolist(),
            "line": line.tolist(),
            "position": self._positions.all_of(program.positions, position - 1),
            "first": as_differences(first_op),
            "length": (end_op - first_op).tolist(),
            "structure": structures.all_of(program.structures, structure[values]),
            "structures": structures.rows,
        }

    def _write_structure(self, structure: Any) -> list[list[dict[str, Any]]]:
        return [
            [{"path": path, "geometry": self._geometries.of(g)} for path, g in side]
            for side in structure
        ]


def write_failure(trace: "Trace") -> dict[str, Any]:
    """Return what ended the block, and why; nothing did where ``error`` is None."""
    return {
        "failure": describe_failure(trace),
        "explanation": explanation_payload(trace),
        "error": trace.error,
        "error_line": trace.error_line or 0,
    }


def count_nbytes(roots: Iterable[ModuleNode]) -> dict[str, int]:
    """Return the bytes of parameters and buffers by dtype, tied ones counted once."""
    nbytes: dict[str, int] = {}
    for root in roots:
        for node in root.walk():
            for tensor in node.tensors:
                if tensor.kind != "attribute" and tensor.tied_to is None:
                    name = str(tensor.dtype).removeprefix("torch.")
                    nbytes[name] = nbytes.get(name, 0) + tensor.nbytes
    return nbytes
